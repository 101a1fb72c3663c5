// The Flow view: draws what layout.js placed, as far as it is in sight.

import { PHASES } from "./data.js";
import { draw, fill, format_bytes, format_shape, make, make_id, save_file } from "./dom.js";
import { Boxes, choose_phase, find_phase, follow_values, list_phases, walk } from "./graph.js";
import { BOX_HEADER, BOX_INSET, arrange, forget_layout } from "./layout.js";

const MAP_SIDE = 100; // pixels
const DRAG_SLOP = 4; // pixels that a click may move
const EDGE = 10; // pixels round what is shown
const IN_SIGHT = 60; // pixels that cannot be moved out of sight
const PNG_SIDE = 8000; // pixels
const MANY_OPEN = 50; // boxes in one box, opened at first
const EXPORT_STYLES = [
  "fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "paint-order",
  "font-family", "font-size", "font-weight", "text-anchor",
];
// As browsers compute `color-mix`, which other programs than browsers cannot read.
const MIXED_COLOR = /color\(srgb ([\d.]+) ([\d.]+) ([\d.]+).*?\)/g;
const to_rgb = (_, ...parts) => `rgb(${parts.slice(0, 3).map((n) => Math.round(255 * n))})`;
const FLOW_LEGEND = { new: "new tensor", view: "view of its base", write: "written in place" };

/**
 * Show how tensors flow through the operators of a trace.
 * @param {HTMLElement} element empty
 * @param {import("./data.js").TraceView} trace
 * @param {import("./selection.js").Selection} selection
 * @param {{depth?: number, hide?: string[]}} settings
 */
export function mount_flow(element, trace, selection, { depth = 1, hide = ["parameters"] } = {}) {
  element.classList.add("mm-flow");
  if (!trace.n_ops) {
    element.append(make("p", {}, "No operator ran."));
    return;
  }
  const values = follow_values(trace);
  const [content, map_nodes, map_view] = [draw("g"), draw("path"), draw("rect")];
  const map = draw("svg", { class: "mm-flow-map", "aria-hidden": "true" }, map_nodes, map_view);
  const status = make("span", { class: "mm-flow-status", role: "status" });
  let boxes = new Boxes(values, choose_phase(trace));
  let view = { x: 0, y: 0, w: 0, h: 0, zoom: 1 };
  let spots = []; // what is laid out, see `list_spots`
  let painted = new Map(); // elements by spot
  let active = null; // the item where the keyboard is

  // What is open, and where it stands.

  function show_phase(phase) {
    boxes = new Boxes(values, phase);
    phases.value = String(phase);
    status.textContent = `${boxes.root.n_ops.toLocaleString("en")} operators`;
    active = null;
    const open = (box, level) => {
      if (box.kind === "part" || level > depth) return;
      box.is_open = true;
      for (const item of box.items.slice(0, MANY_OPEN)) open(item, level + 1);
    };
    open(boxes.root, 0);
    show_parameters();
  }

  function show_parameters() {
    boxes.has_parameters = parameters.checked;
    for (const item of walk(boxes.root)) item.arranged = null;
    refresh();
    go_home();
  }

  /** Lay out what is open. */
  function refresh() {
    const { w, h } = arrange(boxes, boxes.root);
    spots = list_spots(boxes.root.arranged);
    const leaves = spots.filter(({ thing }) => thing.item && !thing.inner);
    const path = leaves.map(({ thing, x, y }) =>
      `M${x} ${y}h${thing.w}v${thing.h}h${-thing.w}z`).join("");
    map_nodes.setAttribute("d", path);
    const scale = Math.min(MAP_SIDE / w, (svg.clientHeight - 2 * EDGE) / h);
    const [width, height] = [Math.max(8, w * scale), Math.max(8, h * scale)];
    fill(map, { viewBox: `0 0 ${w} ${h}`, width, height, preserveAspectRatio: "none" });
  }

  const find_spot = (item) => spots.find(({ thing }) => thing.item === item);

  /** Open or close a box; its header stays where it is. */
  function toggle(box) {
    const before = find_spot(box);
    box.is_open = !box.is_open;
    forget_layout(box.parent);
    refresh();
    const { x, y } = find_spot(box);
    move(view.x + x - before.x, view.y + y - before.y);
  }

  /** Open what an item is in, and bring it into sight. */
  function reveal(item) {
    for (let box = item.parent; box; box = box.parent) {
      if (!box.is_open) forget_layout(box);
      box.is_open = true;
    }
    refresh();
    go_to(item);
  }

  // The viewport.

  /** Show what is right of and below a point, and paint only that. */
  function move(left, top, zoom = view.zoom) {
    const [w, h] = [svg.clientWidth / zoom, svg.clientHeight / zoom];
    const { root: { arranged } } = boxes;
    // Some of it stays in sight.
    const clamp = (start, size, room) =>
      Math.max(IN_SIGHT / zoom - room, Math.min(size - IN_SIGHT / zoom, start));
    const [x, y] = [clamp(left, arranged.w, w), clamp(top, arranged.h, h)];
    view = { x, y, w, h, zoom };
    svg.setAttribute("viewBox", `${x} ${y} ${w} ${h}`);
    fill(map_view, { x, y, width: w, height: h });
    map.classList.toggle("mm-hidden", arranged.w * arranged.h < 4 * w * h);
    const before = painted;
    painted = new Map();
    for (const spot of spots.filter((one) => is_in(one, view))) {
      painted.set(spot, before.get(spot) ?? content.appendChild(draw_spot(spot)));
    }
    for (const [spot, group] of before) if (!painted.has(spot)) group.remove();
    mark();
  }

  /** Show all; at least at a given size, from the top. */
  function fit(least = 0, height = svg.clientHeight) {
    const { w, h } = boxes.root.arranged;
    const sizes = [svg.clientWidth / (w + 2 * EDGE), height / (h + 2 * EDGE)];
    const zoom = Math.max(least, Math.min(1, ...sizes)) || 1;
    move(Math.min(-EDGE, (w - svg.clientWidth / zoom) / 2),
      least ? -EDGE : (h - svg.clientHeight / zoom) / 2, zoom);
  }

  const go_home = () => fit(0.6, Infinity);

  /** Zoom; a point of the viewport stays in place. */
  function zoom_by(factor, x = view.w / 2, y = view.h / 2) {
    const zoom = Math.min(4, Math.max(0.005, view.zoom * factor));
    const shift = 1 - view.zoom / zoom;
    move(view.x + x * shift, view.y + y * shift, zoom);
  }

  /** Move the keyboard to an item, and as little as brings it into sight. */
  function go_to(item) {
    active = item;
    const { thing, x, y } = find_spot(item);
    const edge = EDGE / view.zoom;
    const find_shift = (start, size, room) => {
      if (start >= edge && start + size <= room - edge) return 0;
      return start - Math.max(edge, (room - size) / 2);
    };
    move(view.x + find_shift(x - view.x, thing.w, view.w),
      view.y + find_shift(y - view.y, Math.min(thing.h, 2 * BOX_HEADER), view.h));
  }

  function draw_spot({ thing, x, y, level }) {
    const { item, detail } = thing;
    const group = thing.path ? draw_wire(thing) : draw_node(thing, values);
    group.setAttribute("transform", `translate(${x},${y})`);
    group.append(draw("title", {}, explain(boxes, thing).join("\n")));
    return item ? fill(group, {
      role: "treeitem", id: make_id(), "aria-level": level,
      "aria-label": `${boxes.name(item)} ${detail}`.trim(),
      "aria-expanded": item.kind !== "op" && String(item.is_open),
      onclick: () => act(item),
    }) : group;
  }

  // What is selected, and where the keyboard is.

  /** Select an operator or a module; other boxes are no one thing. */
  function select(item) {
    const { kind, [kind]: index } = item;
    if (index >= 0) selection.select({ kind, index }, svg);
  }

  /** Select an item; open or close it, if it is a box. */
  function act(item) {
    active = item;
    select(item);
    if (item.kind !== "op") toggle(item);
  }

  function is_selected(item) {
    const { kind, index } = selection.current ?? {};
    if (kind === "line") return !item.is_open && trace.place(item.last_op).line === index;
    return kind === item.kind && index === item[kind];
  }

  function mark() {
    svg.removeAttribute("aria-activedescendant");
    for (const [{ thing: { item } }, group] of painted) {
      if (!item) continue;
      group.classList.toggle("mm-selected", is_selected(item));
      group.classList.toggle("mm-active", item === active);
      group.setAttribute("aria-selected", String(is_selected(item)));
      if (item === active) svg.setAttribute("aria-activedescendant", group.id);
    }
  }

  selection.subscribe((selected, source) => {
    const { kind, index } = selected ?? {};
    const is_other = kind === "op" && !boxes.items[index];
    if (source !== svg && is_other) show_phase(find_phase(trace, index));
    const item = kind === "op" ? boxes.items[index] : kind === "module" && boxes.find_box(index);
    if (source !== svg && item) reveal(item);
    mark();
  });

  /** Do what a key stands for. */
  function press(event) {
    const items = spots.map(({ thing }) => thing.item).filter(Boolean);
    const at = items.indexOf(active);
    const step = (to) => go_to(items[Math.max(0, Math.min(items.length - 1, to))]);
    const is_open = active?.is_open || active?.kind === "op";
    const acts = {
      ArrowDown: () => step(at + 1),
      ArrowUp: () => step(at - 1),
      ArrowRight: () => (active && !is_open ? toggle(active) : step(at + 1)),
      ArrowLeft: () => (active?.is_open ? toggle(active) : step(items.indexOf(active?.parent))),
      Home: () => step(0),
      End: () => step(items.length - 1),
      Enter: () => active && act(active),
      " ": () => active && select(active),
      "+": () => zoom_by(1.25),
      "-": () => zoom_by(0.8),
      0: () => fit(),
    };
    if (event.altKey || event.ctrlKey || event.metaKey || !(event.key in acts)) return;
    event.preventDefault();
    acts[event.key]();
  }

  /** Go to the next thing of which the name holds what is searched for. */
  function search({ key, shiftKey }) {
    const query = searchbox.value.trim().toLowerCase();
    if (key !== "Enter" || !query) return;
    const found = walk(boxes.root).filter(({ kind, op, module }) => {
      if (kind === "op") return trace.signature(op).op.toLowerCase().includes(query);
      const { fqn, class_name } = trace.modules[module] ?? {};
      return kind === "module" && `${fqn} ${class_name}`.toLowerCase().includes(query);
    });
    const at = found.indexOf(active);
    const next = (shiftKey ? Math.max(at, 0) + found.length - 1 : at + 1) % found.length;
    status.textContent = found.length ? `${next + 1} of ${found.length} found` : "nothing found";
    if (!found.length) return;
    reveal(found[next]);
    select(found[next]);
  }

  // The mouse.

  let hold = null; // where the pointer was, while it is down
  const release = () => { hold = null; };
  const svg = draw("svg", {
    class: "mm-flow-graph", tabindex: 0, role: "tree", "aria-label": "Flow of tensors",
    onkeydown: press,
    onpointerdown: (event) => { hold = event.button ? null : event; },
    onpointerup: release,
    onpointercancel: release,
    onpointermove: (event) => {
      if (!hold || !event.buttons) return release();
      const [x, y] = [event.clientX - hold.clientX, event.clientY - hold.clientY];
      if (!svg.hasPointerCapture(event.pointerId) && Math.hypot(x, y) < DRAG_SLOP) return;
      svg.setPointerCapture(event.pointerId);
      hold = event;
      move(view.x - x / view.zoom, view.y - y / view.zoom);
    },
    onwheel: (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== svg) return;
      event.preventDefault();
      const { left, top } = svg.getBoundingClientRect();
      const [x, y] = [event.clientX - left, event.clientY - top];
      zoom_by(1.0015 ** -event.deltaY, x / view.zoom, y / view.zoom);
    },
  }, content);
  const go_on_map = ({ buttons, offsetX, offsetY }) => {
    const { w, h } = boxes.root.arranged;
    const [x, y] = [(offsetX / map.clientWidth) * w, (offsetY / map.clientHeight) * h];
    if (buttons) move(x - view.w / 2, y - view.h / 2);
  };
  fill(map, { onpointerdown: go_on_map, onpointermove: go_on_map });
  new ResizeObserver(() => {
    if (!svg.clientWidth) return;
    const was_hidden = !view.w;
    refresh();
    if (was_hidden) go_home();
    else move(view.x, view.y);
    if (was_hidden && active) go_to(active);
  }).observe(svg);

  // What is saved, and the buttons.

  /** Save all that is open as a picture of its own, with the colours that it has here. */
  async function save_picture(is_png) {
    const { w, h } = boxes.root.arranged;
    const [width, height] = [w + 2 * EDGE, h + 2 * EDGE];
    const { x, y, zoom } = view;
    move(-EDGE, -EDGE, Math.min(svg.clientWidth / width, svg.clientHeight / height));
    const background = getComputedStyle(svg).backgroundColor;
    const copy = draw("svg", {
      width, height, viewBox: `-10 -10 ${width} ${height}`, style: `background:${background}`,
    }, content.cloneNode(true));
    const originals = content.querySelectorAll("rect, path, text");
    copy.querySelectorAll("rect, path, text").forEach((element, i) => {
      const style = getComputedStyle(originals[i]);
      const styles = EXPORT_STYLES.map((name) =>
        `${name}:${style.getPropertyValue(name).replace(MIXED_COLOR, to_rgb)}`);
      element.setAttribute("style", styles.join(";"));
    });
    move(x, y, zoom);
    const text = new XMLSerializer().serializeToString(copy);
    if (!is_png) {
      save_file(new Blob([text], { type: "image/svg+xml" }), "flow.svg");
      return;
    }
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    await image.decode();
    const scale = Math.min(2, PNG_SIDE / width, PNG_SIDE / height);
    const canvas = make("canvas", { width: width * scale, height: height * scale });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save_file(blob, "flow.png"));
  }

  const make_button = (text, title, onclick) =>
    make("button", { type: "button", title, "aria-label": title, onclick }, text);
  const phases = make("select", {
    "aria-label": "Phase", onchange: () => show_phase(Number(phases.value)),
  }, ...list_phases(trace).map((phase) => make("option", { value: phase }, PHASES[phase])));
  const searchbox = make("input", {
    type: "search", placeholder: "Search", "aria-label": "Search in the flow", onkeydown: search,
  });
  const parameters = make("input", {
    type: "checkbox", checked: !hide.length && "", onchange: show_parameters,
  });
  element.append(
    make("div", { class: "mm-flow-bar" },
      phases, searchbox, make("label", {}, parameters, " parameters and constants"),
      make_button("−", "Zoom out", () => zoom_by(0.8)),
      make_button("+", "Zoom in", () => zoom_by(1.25)),
      make_button("fit", "Fit all into view", () => fit()),
      make_button("SVG", "Save as SVG", () => save_picture(false)),
      make_button("PNG", "Save as PNG", () => save_picture(true)),
      ...Object.entries(FLOW_LEGEND).map(([kind, text]) =>
        make("span", { class: `mm-flow-key mm-key-${kind}` }, text)),
      status),
    make("div", { class: "mm-flow-stage" }, svg, map),
  );
  show_phase(boxes.phase);
}

/** What is laid out, where it stands in the whole; what is in a box comes after it. */
function list_spots({ nodes, wires }, x = 0, y = 0, level = 1, spots = []) {
  for (const thing of wires) spots.push({ thing, x, y, level });
  for (const thing of nodes) {
    const [left, top, inner] = [x + thing.x, y + thing.y, thing.inner];
    spots.push({ thing, x: left, y: top, level });
    if (!inner) continue;
    list_spots(inner, left + (thing.w - inner.w) / 2, top + BOX_INSET, level + 1, spots);
  }
  return spots;
}

/** Whether what is at a spot is seen in a view at all. */
function is_in({ thing, x, y }, view) {
  const { left = 0, top = 0, right = thing.w, bottom = thing.h } = thing;
  return x + left < view.x + view.w && x + right > view.x
    && y + top < view.y + view.h && y + bottom > view.y;
}

function draw_wire({ kind, path, heads, label, label_x, label_y }) {
  return draw("g", { class: `mm-wire mm-${kind}` },
    draw("path", { class: "mm-reach", d: path }), draw("path", { d: path }),
    draw("path", { class: "mm-head", d: heads }),
    draw("text", { x: label_x, y: label_y }, label));
}

function draw_node({ item, kind, w, h, text, detail }, { makes }) {
  const is_failed = text.startsWith("✗") && kind !== "open";
  const effect = makes[item?.op]?.[0]?.kind;
  const rect = (more = {}) => draw("rect", { width: w, height: h, rx: item ? 4 : 9, ...more });
  const write = (x, name, written, y = Math.min(BOX_HEADER, h) / 2 + 4) =>
    draw("text", { x, y, class: name }, written);
  const group = draw("g", {
    class: `mm-node mm-${kind} mm-${effect} ${is_failed ? "mm-failed" : ""}`,
  });
  if (kind === "closed" && item.kind !== "module") group.append(rect({ x: 4, y: 4 }));
  group.append(rect());
  if (kind === "open") group.append(rect({ height: BOX_HEADER, class: "mm-handle" }));
  if (kind !== "open" && kind !== "closed") group.append(write(w / 2, "mm-middle", text));
  else {
    group.append(write(7, "mm-arrow", item.is_open ? "▾" : "▸"), write(22, "", text),
      write(22, "mm-detail", detail, 31));
  }
  return group;
}

/** More about what the pointer is over, in lines. */
function explain(boxes, { item, values }) {
  const { trace } = boxes;
  if (item && item.kind !== "op") {
    return [`${trace.modules[item.module]?.fqn ?? ""}  ${boxes.name(item)}`, boxes.describe(item)];
  }
  const made = item ? boxes.values.makes[item.op] : values;
  const lines = made.slice(0, 8).flatMap(({ geometry, kind, storage, maker }) => {
    const { shape, dtype, stride, nbytes, device } = geometry;
    const origin = maker < 0 ? ""
      : ` by ${trace.signature(maker).op}, operator ${maker}, line ${trace.place(maker).line}`;
    return [
      `${format_shape(shape)} ${dtype} on ${device}, ${format_bytes(nbytes)}`,
      `  stride ${stride ? format_shape(stride) : "unknown"}, storage ${storage}`,
      `  ${FLOW_LEGEND[kind] ?? "from outside"}${origin}`,
    ];
  });
  if (!item) return lines;
  const { op, args } = trace.signature(item.op);
  const place = trace.place(item.op);
  return [`${op}(${args})`, `${place.function}, line ${place.line}`, ...lines];
}
