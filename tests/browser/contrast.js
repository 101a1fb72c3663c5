// How well each text is seen on what is behind it, as WCAG computes it.

const style_of = (element, pseudo) => getComputedStyle(element, pseudo);

function* ancestors(element) {
  for (let one = element; one; one = one.parentElement) yield one;
}

const is_shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });

const colors = new Map();
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });

/** Red, green, blue (0 to 255) and alpha (0 to 1) of any color of CSS. */
function read_color(color) {
  if (!colors.has(color)) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    colors.set(color, color === "none" ? [0, 0, 0, 0] : [r, g, b, a / 255]);
  }
  return colors.get(color);
}

const lay_over = (below, [r, g, b, a], opacity = 1) =>
  below.map((value, i) => value + ([r, g, b][i] - value) * a * opacity);

function luminance(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(a, b) {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
}

const opacity_of = (element) =>
  [...ancestors(element)].reduce((product, one) => product * Number(style_of(one).opacity), 1);

/** The grounds that may be behind a box: more than one where a gradient is. */
function grounds_of(element, box) {
  let grounds = [[255, 255, 255]];
  for (const one of [...ancestors(element)].reverse()) {
    const { backgroundColor, backgroundImage } = style_of(one);
    grounds = grounds.map((ground) => lay_over(ground, read_color(backgroundColor)));
    const stops = backgroundImage.match(/(rgba?|color|oklab|oklch)\([^()]*\)/g) ?? [];
    grounds = [...grounds, ...stops.flatMap((stop) =>
      grounds.map((ground) => lay_over(ground, read_color(stop))))];
    if (one.localName === "svg") grounds = add_shapes(grounds, one, element, box);
  }
  return grounds;
}

/** What is drawn before a text and behind its middle. */
function add_shapes(grounds, svg, element, box) {
  const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  for (const shape of svg.querySelectorAll("rect, circle, polygon, ellipse")) {
    if (!(shape.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING)) continue;
    const at = shape.getBoundingClientRect();
    if (x < at.left || x > at.right || y < at.top || y > at.bottom || !is_shown(shape)) continue;
    const { fill, fillOpacity } = style_of(shape);
    const opacity = Number(fillOpacity) * opacity_of(shape);
    grounds = grounds.map((ground) => lay_over(ground, read_color(fill), opacity));
  }
  return grounds;
}

/** Whether a text is drawn upon a broad line of its own, in the color of the ground. */
function is_haloed(element) {
  const { paintOrder, stroke, strokeWidth } = style_of(element);
  return paintOrder.startsWith("stroke") && stroke !== "none" && parseFloat(strokeWidth) > 2;
}

function least_contrast(element, box, pseudo) {
  const style = style_of(element, pseudo);
  const color = element.closest("svg") && !pseudo ? style.fill : style.color;
  const opacity = opacity_of(element) * (pseudo ? Number(style.opacity) : 1);
  const grounds = is_haloed(element) ? [read_color(style.stroke).slice(0, 3)] : grounds_of(element, box);
  const ratios = grounds.map((ground) => contrast(lay_over(ground, read_color(color), opacity), ground));
  const size = parseFloat(style.fontSize);
  const is_large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  return [Math.min(...ratios), is_large ? 3 : 4.5];
}

const is_off = (element) => element.closest(":disabled, [aria-disabled=true]");

function* check_contrast(texts, root) {
  const parts = texts.map(({ element, text, seen }) => ({ element, text, seen, pseudo: null }));
  for (const element of root.querySelectorAll("*")) {
    if (!is_shown(element)) continue;
    const seen = element.getBoundingClientRect();
    for (const pseudo of ["::before", "::after"]) {
      const text = style_of(element, pseudo).content.match(/^"(.*\S.*)"$/)?.[1];
      if (text) parts.push({ element, text, seen, pseudo });
    }
    if (element.placeholder) parts.push({ element, text: element.placeholder, seen, pseudo: "::placeholder" });
    if (element.localName === "select") parts.push({ element, text: element.value, seen, pseudo: null });
  }
  for (const { element, text, seen, pseudo } of parts) {
    if (is_off(element)) continue;
    const [ratio, wanted] = least_contrast(element, seen, pseudo);
    if (ratio < wanted - 0.01) yield [`contrast ${ratio.toFixed(2)}`, element, text];
  }
}
