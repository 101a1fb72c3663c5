// Light or dark, as the page around a report: most pages show it only by their colours.

/** Whether a colour of CSS is nearer to white than to black. @param {string} color */
function is_light(color) {
  const context = new OffscreenCanvas(1, 1).getContext("2d");
  context.fillStyle = color;
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue] = context.getImageData(0, 0, 1, 1).data;
  return 2 * red + 5 * green + blue > 4 * 255;
}

/**
 * Let what the browser colours be light or dark as the text round an element is, now and
 * when the page changes its theme. A frame that is made for the element looks like the
 * page round it.
 * @param {HTMLElement} element
 */
export function follow_scheme(element) {
  const held = new WeakRef(element);
  const frame = element.parentElement === document.body && window.frameElement;
  const page = frame ? frame.ownerDocument : document;
  const preference = matchMedia("(prefers-color-scheme: dark)");
  const observer = new MutationObserver(look);
  function look() {
    const report = held.deref();
    const around = frame || report?.parentElement;
    if (!report) {
      observer.disconnect();
      preference.removeEventListener("change", look);
    } else if (around) {
      const root = frame ? document.documentElement : report;
      root.style.colorScheme = is_light(getComputedStyle(around).color) ? "dark" : "light";
    }
  }
  look();
  for (const whole of [page.documentElement, page.body]) {
    observer.observe(whole, { attributes: true });
  }
  preference.addEventListener("change", look);
}
