// What a person could not read or reach in the report that is shown: `check_report()` gives
// a list of `{what, where, text}`, and `check_colors()` what of that depends on the colors. They
// look at what is drawn, whatever drew it. `contrast.js` stands before it.

const SLACK = 1.5; // pixels that may be missing without anybody seeing it

const CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex], [role=button]";

/** A few words by which a person finds the element. */
function name_place(element) {
  const steps = [...ancestors(element)].slice(0, 3).reverse();
  return steps.map((one) => [one.localName, ...one.classList].join(".")).join(" > ");
}

const intersect = (a, b) => ({
  left: Math.max(a.left, b.left), right: Math.min(a.right, b.right),
  top: Math.max(a.top, b.top), bottom: Math.min(a.bottom, b.bottom),
});

const width_of = (box) => box.right - box.left;
const height_of = (box) => box.bottom - box.top;

/**
 * What hides a part of a box: walks up to the first that scrolls, which is a way to see it.
 * Nothing is cut along a side that something scrolls.
 */
function find_clip(element, box) {
  let seen = box;
  let cut_by = null;
  const is_scrolled = { x: false, y: false };
  for (const one of ancestors(element)) {
    const { overflowX, overflowY } = style_of(one);
    const is_inline = style_of(one).display === "inline";
    if (is_inline || one === document.documentElement || one === document.body) continue;
    if (overflowX === "visible" && overflowY === "visible") continue;
    const frame = one.getBoundingClientRect();
    const beyond = {
      x: overflowX !== "visible" && (box.right > frame.right + SLACK || box.left < frame.left - SLACK),
      y: overflowY !== "visible" && (box.bottom > frame.bottom + SLACK || box.top < frame.top - SLACK),
    };
    is_scrolled.x ||= /auto|scroll/.test(overflowX) || one.matches(".mm-flow-graph");
    is_scrolled.y ||= /auto|scroll/.test(overflowY) || one.matches(".mm-flow-graph");
    if ((beyond.x && !is_scrolled.x) || (beyond.y && !is_scrolled.y)) cut_by ??= one;
    seen = intersect(seen, frame);
  }
  return { seen, cut_by };
}

/** Every piece of text with the boxes of its lines, as far as anything of it is in sight. */
function find_texts(root) {
  const texts = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (walker.nextNode()) {
    const { currentNode: node } = walker;
    const element = node.parentElement;
    if (!node.data.trim() || element.closest("title, option, script, style") || !is_shown(element)) continue;
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      if (rect.width < 1 || rect.height < 1) continue;
      const { seen, cut_by } = find_clip(element, rect);
      if (width_of(seen) < 2 || height_of(seen) < 4) continue;
      texts.push({ element, text: node.data.trim(), seen, cut_by });
    }
  }
  return texts;
}

const has_title = (element) => [...ancestors(element)].some((one) =>
  one.getAttribute("title") || [...one.children].some((child) =>
    child.localName === "title" && child.textContent));

/** A title may be made when the pointer comes. */
function is_explained(element) {
  if (has_title(element)) return true;
  for (const name of ["pointerover", "mouseover", "pointerenter", "mouseenter"]) {
    element.dispatchEvent(new PointerEvent(name, { bubbles: !name.endsWith("enter") }));
  }
  const is_named = has_title(element);
  element.dispatchEvent(new PointerEvent("pointerout", { bubbles: true }));
  element.dispatchEvent(new PointerEvent("mouseout", { bubbles: true }));
  return is_named;
}

const has_all = (text) => !/…$|\.\.\.$/.test(text);

function* check_cut(texts) {
  for (const { element, text, cut_by } of texts) {
    if (cut_by && !is_explained(element)) yield ["cut", element, text];
    else if (!has_all(text) && text.length > 1 && !is_explained(element)) yield ["shortened", element, text];
  }
}

/** What lies in a layer of its own, that hides what is below: a fixed head, a tip. */
function layers_of(element, above) {
  const found = [];
  for (const one of ancestors(element)) {
    if (one === above) break;
    const { position, backgroundColor } = style_of(one);
    if (position !== "static" && read_color(backgroundColor)[3] > 0.9) found.push(one);
  }
  return found.length > 0;
}

function shared_of(a, b) {
  for (const one of ancestors(a)) if (one.contains(b)) return one;
  return document.documentElement;
}

function* check_overlaps(texts) {
  const sorted = [...texts].sort((a, b) => a.seen.left - b.seen.left);
  for (const [i, a] of sorted.entries()) {
    for (const b of sorted.slice(i + 1)) {
      if (b.seen.left > a.seen.right - SLACK) break;
      if (a.element === b.element) continue;
      const common = intersect(a.seen, b.seen);
      const least = Math.min(height_of(a.seen), height_of(b.seen));
      if (height_of(common) < 0.3 * least || width_of(common) < SLACK) continue;
      const shared = shared_of(a.element, b.element);
      if (layers_of(a.element, shared) || layers_of(b.element, shared)) continue;
      yield ["overlap", a.element, `${a.text} / ${b.text}`];
    }
  }
}

/** A text of a drawn box that sticks out of it. */
function* check_boxes(root) {
  for (const text of root.querySelectorAll("svg g > text")) {
    const rect = [...text.parentElement.children].find((one) => one.localName === "rect");
    if (!rect || !is_shown(text) || !text.textContent.trim()) continue;
    const [inner, outer] = [text.getBoundingClientRect(), rect.getBoundingClientRect()];
    if (inner.left < outer.left - SLACK || inner.right > outer.right + SLACK) {
      yield ["sticks out", text, text.textContent];
    }
  }
}

/** A wire that runs through a text: any but its own, which a halo keeps from it. */
function* check_wires(texts) {
  const labels = texts.filter(({ element }) => element.closest(".mm-flow-graph"));
  for (const path of document.querySelectorAll(".mm-wire > path:not(.mm-reach, .mm-head)")) {
    const at = path.getBoundingClientRect();
    const near = labels.filter(({ element, seen }) =>
      (path.parentElement !== element.parentElement || !is_haloed(element))
      && seen.left < at.right && seen.right > at.left && seen.top < at.bottom && seen.bottom > at.top);
    if (!near.length) continue;
    for (const { element, text, seen } of near) {
      if (points_of(path).some(({ x, y }) => x > seen.left + SLACK && x < seen.right - SLACK
        && y > seen.top + 3 && y < seen.bottom - 3)) yield ["on a wire", element, text];
    }
  }
}

const drawn = new WeakMap();

/** Where a path runs on the screen. */
function points_of(path) {
  if (drawn.has(path)) return drawn.get(path);
  const matrix = path.getScreenCTM();
  const points = [];
  const length = path.getTotalLength();
  for (let at = 0; at <= length; at += 4) points.push(path.getPointAtLength(at).matrixTransform(matrix));
  drawn.set(path, points);
  return points;
}

function* check_width() {
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth <= clientWidth) return;
  for (const element of document.body.querySelectorAll("*")) {
    const at = element.getBoundingClientRect();
    if (at.right <= clientWidth + 1 || !is_shown(element)) continue;
    if (find_clip(element, at).seen.right > clientWidth + 1) {
      yield [`wider than the page by ${scrollWidth - clientWidth}`, element, element.textContent.slice(0, 40)];
    }
  }
}

/** What a screen reader would say of a control. */
function name_of(element) {
  const ids = element.getAttribute("aria-labelledby")?.split(" ") ?? [];
  const labels = [...ids.map((id) => document.getElementById(id)), ...element.labels ?? []];
  const is_named_by_text = !/^(input|select|textarea)$/.test(element.localName);
  return [
    element.getAttribute("aria-label"), ...labels.map((label) => label?.textContent),
    is_named_by_text && element.textContent, element.getAttribute("title"), element.placeholder,
  ].some((text) => text && text.trim());
}

const look_of = (element) => {
  const parts = [element, ...element.querySelectorAll("*")].slice(0, 400);
  return parts.map((one) => [null, "::after"].map((pseudo) => {
    const { outlineStyle, outlineWidth, boxShadow, borderColor, stroke, strokeWidth } = style_of(one, pseudo);
    const outline = outlineStyle === "none" ? "" : outlineStyle + outlineWidth;
    return [outline, boxShadow, borderColor, stroke, strokeWidth].join();
  }).join()).join();
};

/** Needs that a key was pressed last: a browser shows no focus to who uses a pointer. */
function* check_controls(root) {
  const kinds = new Set();
  for (const element of root.querySelectorAll(CONTROLS)) {
    if (!is_shown(element) || is_off(element)) continue;
    if (!name_of(element)) yield ["no name", element, element.outerHTML.slice(0, 60)];
    const kind = [element.localName, element.getAttribute("class"), element.getAttribute("role")].join();
    if (element.tabIndex < 0 || kinds.has(kind)) continue;
    kinds.add(kind);
    document.activeElement.blur();
    const before = look_of(element);
    element.focus({ preventScroll: true, focusVisible: true });
    if (look_of(element) === before) yield ["no focus to see", element, element.textContent.slice(0, 40)];
  }
  document.activeElement.blur();
}

const describe = (found) => found.map(([what, element, text]) =>
  ({ what, where: name_place(element), text }));

const REPORT = document.getElementById("report");

const check_colors = () => describe([...check_contrast(find_texts(REPORT), REPORT)]);

function check_report() {
  const texts = find_texts(REPORT);
  return describe([
    ...check_width(), ...check_cut(texts), ...check_overlaps(texts), ...check_boxes(REPORT),
    ...check_wires(texts),    ...check_contrast(texts, REPORT), ...check_controls(REPORT),
  ]);
}
