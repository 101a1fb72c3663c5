// The cell as written: each line beside the shapes that it made, each expression with its
// tensors; then the notebook's other methods. Text is only ever set as text.

import { format_bytes, format_shape, make, shorten_dtype, shorten_op } from "./dom.js";

const SOURCE_MAX = 3; // shapes beside a line, tensors in a tip
const SOURCE_NOTEBOOK = /[\\/]ipykernel_\d+[\\/]|^<ipython-input-/;
const SOURCE_KEYWORDS = new Set((
  "False None True and as assert async await break case class continue def del elif else "
  + "except finally for from global if import in is lambda match nonlocal not or pass raise "
  + "return try while with yield"
).split(" "));
const SOURCE_KINDS = ["comment", "string", "number", "keyword"];
const SOURCE_TOKENS = new RegExp(String.raw`(#.*)|([rbfut]{0,2}(?:`
  + `"""|'''`.split("|").map((q) => String.raw`${q}(?:\\[^]|[^\\])*?(?:${q}|$)`).join("|")
  + String.raw`|"(?:\\[^]|[^"\\\n])*"?|'(?:\\[^]|[^'\\\n])*'?))|(\d[\w.]*)`
  + String.raw`|([\p{L}_][\p{L}\p{N}_]*)`, "giu");

/**
 * @typedef {import("./data.js").TraceView} TraceView
 * @typedef {import("./data.js").Place} Place
 * @typedef {import("./data.js").Call} Call
 * @typedef {import("./selection.js").Selected} Selected
 * @typedef {{file: string, scope: string, first: number, text: string}} SourceText
 * @typedef {{depth?: number, file?: string, first?: number, texts?: SourceText[]}} SourceSettings
 *   the cell's file, the number of its first line, and the text of other functions, if known
 * @typedef {{index: number, key: string, signature: number}} SourceStep
 *   an operator; its signature is negative if it begins no pass
 * @typedef {{ops: number[], calls: Call[]}} SourcePass what a line did in one go
 * @typedef {{key: string, number: number, steps: SourceStep[], calls: Call[],
 *   n_inside: number, passes: SourcePass[], shown: number}} SourceRow
 *   `n_inside`: operators of the functions that it called; `shown`: a pass
 * @typedef {{key: string, start: number, end: number, column: number, end_column: number,
 *   names: Set<string>}} SourcePosition `names`: of the functions that were called there
 * @typedef {{file: string, scope: string, first: number, lines: string[] | null,
 *   rows: Map<number, SourceRow>, positions: Map<string, SourcePosition>}} SourceListing
 *   `first`: number of the first of `lines`, which are null where the text is not known
 * @typedef {{listing: SourceListing, row: string, number: number, key: string}} SourceSpot
 * @typedef {{listing: SourceListing, number: number, key: string}} SourcePart of an element
 * @typedef {{from: number, to: number, key: string}} SourceSpan
 * @typedef {SourceSpan & {inner: SourceNode[]}} SourceNode
 */

/** Where a column, in UTF-8 bytes, is in a string. @param {string} line @param {number} column */
export function source_index(line, column) {
  let index = 0;
  for (const char of line) {
    const code = char.codePointAt(0) ?? 0;
    column -= code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    if (column < 0) break;
    index += char.length;
  }
  return index;
}

/** What is coloured in a Python text. @param {string} text @returns {SourceSpan[]} */
export function source_tokens(text) {
  return [...text.matchAll(SOURCE_TOKENS)].map(({ 0: word, index, ...groups }) => {
    const kind = SOURCE_KINDS.find((_, i) => groups[i + 1]) ?? "";
    const is_plain = kind === "keyword" && !SOURCE_KEYWORDS.has(word);
    return { from: index, to: index + word.length, key: is_plain ? "" : kind };
  }).filter(({ key }) => key);
}

/** Parts of positions on a line. @param {SourceListing} listing @param {number} number */
export function source_spans({ lines, first, positions }, number) {
  const line = lines?.[number - first] ?? "";
  const here = [...positions.values()].filter(
    ({ start, end, column }) => column >= 0 && start <= number && number <= end);
  return here.map(({ key, start, end, column, end_column }) => ({
    key,
    from: number === start ? source_index(line, column) : line.search(/\S|$/),
    to: number === end ? source_index(line, end_column) : line.trimEnd().length,
  })).filter(({ from, to }) => from < to);
}

/** Put spans into each other; what would stick out is cut off. @param {SourceSpan[]} spans */
export function source_nest(spans) {
  /** @type {SourceNode} */
  const root = { from: 0, to: Infinity, key: "", inner: [] };
  const open = [root];
  for (const span of [...spans].sort((a, b) => a.from - b.from || b.to - a.to)) {
    while (open[0].to <= span.from) open.shift();
    const node = { ...span, to: Math.min(span.to, open[0].to), inner: [] };
    open[0].inner.push(node);
    open.unshift(node);
  }
  return root.inner;
}

/**
 * Split the operators of a line into its passes: one begins where a position is met again
 * or, if there is but one position, where the signatures repeat.
 * @param {SourceStep[]} steps @returns {number[][]}
 */
export function source_passes(steps) {
  /** @type {SourceStep[][]} */
  const passes = [];
  let met = new Set();
  steps.forEach((step, i) => {
    const before = steps[i - 1];
    const goes_on = before?.key === step.key && before.index + 1 === step.index;
    if (!i || (!goes_on && step.signature >= 0 && met.has(step.key))) {
      passes.push([]);
      met = new Set();
    }
    met.add(step.key);
    passes[passes.length - 1].push(step);
  });
  return passes.flatMap((pass) => {
    const n = pass.length;
    let period = pass.some(({ key }) => key !== pass[0].key) ? n : 1;
    const repeats = (/** @type {SourceStep} */ step, /** @type {number} */ i) =>
      step.signature === pass[i % period].signature;
    while (n % period || !pass.every(repeats)) period += 1;
    const starts = [...pass.keys()].filter((i) => i % period === 0);
    return starts.map((i) => pass.slice(i, i + period).map(({ index }) => index));
  });
}

/** Divide what ran on a line into passes. @param {SourceRow} row */
function source_close(row) {
  const { steps, calls, passes } = row;
  passes.push(...source_passes(steps).map((ops) => ({ ops, calls: [] })));
  const is_ahead = steps.length && calls[0]?.first_op < steps[0].index;
  let at = 0;
  calls.forEach((call, i) => {
    // A line without operators of its own begins anew where it calls a module again.
    const here = passes[passes.length - 1]?.calls ?? [];
    const is_new = !i || call.parent !== calls[i - 1].parent
      || here.some(({ module }) => module === call.module);
    if (!steps.length && is_new) at = passes.push({ ops: [], calls: [] }) - 1;
    while (passes[at + 1]?.ops[0] <= (is_ahead ? call.end_op : call.first_op)) at += 1;
    passes[at].calls.push(call);
  });
  row.shown = passes.length - 1;
}

/** The shapes that a pass made, newest last. @param {TraceView} trace @param {SourcePass} pass */
export function source_shapes(trace, { ops, calls }) {
  const made = [
    ...ops.map((at) => ({ at, of: trace.signatures[trace.op_signature[at]].outputs })),
    ...calls.map((c) => ({ at: c.end_op - 0.5, of: c.outputs.map((o) => o.geometry) })),
  ].sort((a, b) => b.at - a.at).flatMap(({ of }) => [...of].reverse());
  const shapes = made.map((g) => `${format_shape(g.shape)} ${shorten_dtype(g.dtype)}`);
  return [...new Set(shapes)].reverse();
}

/** Whether the passes of two lines took turns. @param {SourceRow} a @param {SourceRow} b */
export function source_is_same_loop(a, b) {
  const [x, y] = [a, b].map((row) => row.passes.map((p) => p.ops[0] ?? p.calls[0].first_op));
  return x.length === y.length && x.every((at, k) =>
    k + 1 === x.length || Math.max(at, y[k]) < Math.min(x[k + 1], y[k + 1]));
}

/**
 * Gather what ran on each line of the cell, which stands first, and of other functions.
 * @param {TraceView} trace
 */
export function source_listings(trace) {
  const { file, first } = trace.cell;
  const text = trace.source.replace(/\r\n?/g, "\n").trimEnd();
  const lines = text ? text.split("\n") : [];
  /** @type {SourceListing[]} */
  const listings = [{ file, scope: "", first, lines, rows: new Map(), positions: new Map() }];
  const find = (/** @type {Place} */ place) => {
    if (place.file === file && place.line) return 0;
    if (!place.file || (lines.length && !SOURCE_NOTEBOOK.test(place.file))) return -1;
    const is_its = (/** @type {{file: string, scope: string}} */ other) =>
      other.file === place.file && other.scope === place.scope;
    const known = trace.texts.find(is_its);
    const at = listings.findIndex(is_its);
    return at > 0 ? at : listings.push({
      file: place.file, scope: place.scope, first: known?.first ?? 0,
      lines: known?.text.split("\n") ?? null, rows: new Map(), positions: new Map(),
    }) - 1;
  };
  /** @type {(SourceSpot | null)[]} */
  const spots = trace.places.map((place) => {
    const { start: number, column, end, end_column } = place;
    const at = find(place);
    const key = `${at}:${number}:${column}-${end}:${end_column}`;
    return at < 0 ? null : { listing: listings[at], row: `${at}:${number}`, number, key };
  });
  for (let index = 0; index < trace.n_ops; index += 1) {
    const { function: name, line, phase, ...range } = trace.places[trace.op_place[index]] ?? {};
    const spot = spots[trace.op_place[index]];
    // A backward operator stands where its forward one does, and made nothing there.
    if (trace.op_forward[index] >= 0) continue;
    if (line && spot?.listing !== listings[0]) source_row(listings[0], line).n_inside += 1;
    if (!spot) continue;
    // What autograd or an optimizer repeats is no loop: each stands for itself.
    const signature = phase === 2 || phase === 3 ? -1 - index : trace.op_signature[index];
    const { listing, number, row, key } = spot;
    source_row(listing, number, row).steps.push({ index, key, signature });
    const position = listing.positions.get(key) ?? { ...range, key, names: new Set() };
    position.names.add(name.split(".").pop() || shorten_op(trace.op(index).signature.op));
    listing.positions.set(key, position);
  }
  for (const call of trace.calls) {
    const is_inside = trace.calls[call.parent]?.line === call.line;
    if (call.line && !is_inside) source_row(listings[0], call.line).calls.push(call);
  }
  for (const { rows } of listings) rows.forEach(source_close);
  return { listings, spots };
}

/** @param {SourceListing} listing @param {number} number @param {string} key */
function source_row({ rows }, number, key = `0:${number}`) {
  const row = rows.get(number)
    ?? { key, number, steps: [], calls: [], n_inside: 0, passes: [], shown: 0 };
  rows.set(number, row);
  return row;
}

/** The last line that ran, of a cell that failed; else 0. @param {TraceView} trace */
export function source_last_line(trace) {
  if (!trace.error) return 0;
  const call = trace.calls.filter(({ line }) => line).pop();
  for (let i = trace.n_ops - 1; i >= (call?.first_op ?? 0); i -= 1) {
    const line = trace.op_forward[i] < 0 && trace.places[trace.op_place[i]]?.line;
    if (line) return line;
  }
  return call?.line ?? 0;
}

/** Operators in words, line by line. @param {TraceView} trace @param {number[]} ops */
export function source_describe(trace, ops) {
  const signatures = ops.map((i) => trace.signatures[trace.op_signature[i]]);
  const last = ops[ops.length - 1];
  const { place, module } = trace.op(last);
  const names = signatures.map(({ op }) => shorten_op(op));
  const outputs = signatures.filter((s) => s.outputs.length).pop()?.outputs ?? [];
  const { fqn, class_name } = trace.modules[module] ?? {};
  const n_hidden = outputs.length - SOURCE_MAX;
  return [
    place.function || names[0],
    `${names.length > 6 ? "… " : ""}${names.slice(-6).join(" → ")}`,
    ...outputs.slice(0, SOURCE_MAX).map(({ shape, dtype, stride, nbytes }) => [
      format_shape(shape), dtype, ...(stride ? [`stride ${format_shape(stride)}`] : []),
      format_bytes(nbytes),
    ].join(" · ")),
    ...(n_hidden > 0 ? [`and ${n_hidden} more`] : []),
    ...(class_name ? [`in ${fqn || "the root"}: ${class_name.split(".").pop()}`] : []),
  ];
}

/** Append part of a line to an element, in colours. */
function source_color(
  /** @type {Element} */ parent, /** @type {string} */ line, /** @type {SourceSpan[]} */ tokens,
  /** @type {number} */ from, /** @type {number} */ to,
) {
  for (const token of tokens) {
    const [start, end] = [Math.max(token.from, from), Math.min(token.to, to)];
    if (start >= end) continue;
    const part = make("span", { class: `mm-token-${token.key}` }, line.slice(start, end));
    parent.append(line.slice(from, start), part);
    from = end;
  }
  parent.append(line.slice(from, to));
}

let source_n_views = 0;

/**
 * Show the source of a trace.
 * @param {HTMLElement} element @param {TraceView} trace
 * @param {import("./selection.js").Selection} selection @param {SourceSettings} settings
 */
export function mount_source(element, trace, selection, settings = {}) {
  const view = new SourceView(trace, selection, settings);
  element.append(view.root);
  selection.subscribe((selected, source) => {
    if (source !== view) view.mark(selected, true);
  });
  view.mark(selection.current, true);
}

class SourceView {
  /** @type {Map<Element, SourcePart>} */
  #parts = new Map();

  /** Lines and expressions, by key. @type {Map<string, Element[]>} */
  #elements = new Map();

  /** Beside each line. @type {Map<SourceRow, Element>} */
  #shapes = new Map();

  /** What is selected elsewhere. @type {Element[]} */
  marked = [];

  /**
   * @param {TraceView} trace @param {import("./selection.js").Selection} selection
   * @param {SourceSettings} settings
   */
  constructor(trace, selection, settings) {
    this.trace = trace;
    this.selection = selection;
    const { listings, spots } = source_listings(trace);
    this.cell = listings[0];
    this.listings = listings.filter(({ lines, rows }) => lines?.length || rows.size);
    this.spots = spots;
    this.tip = make("div", {
      class: "mm-source-tip", role: "tooltip", id: `mm-source-${(source_n_views += 1)}`, hidden: "",
    });
    this.box = make("div", {
      class: "mm-source-box", tabindex: 0, role: "group", "aria-label": "Source",
    }, ...this.listings.map((listing) => this.#make_listing(listing)));
    if (!this.listings.length) this.box.append("no source was recorded");
    this.root = make("div", { class: "mm-source" }, this.box, this.tip);
    this.#listen();
    // Nothing can be scrolled to while the view is hidden.
    new ResizeObserver(() => this.#reveal(this.marked)).observe(this.box);
  }

  #listen() {
    this.box.addEventListener("click", (event) => this.#choose(event));
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#hide_tip();
      const { tagName } = /** @type {Element} */ (event.target);
      if (event.key === "Enter" && tagName === "SPAN") this.#choose(event);
    });
    for (const name of ["pointerover", "focusin"]) {
      this.box.addEventListener(name, (event) => this.#show_tip(event));
    }
    for (const name of ["pointerleave", "focusout", "scroll"]) {
      this.box.addEventListener(name, () => this.#hide_tip());
    }
  }

  /** @param {SourceListing} listing */
  #make_listing(listing) {
    const { file, scope, first, lines, rows } = listing;
    const tokens = source_tokens(lines?.join("\n") ?? "");
    const grid = make("div", { class: "mm-source-lines" });
    let offset = 0;
    const numbers = lines?.map((_, i) => first + i) ?? [...rows.keys()].sort((a, b) => a - b);
    for (const number of numbers) {
      const end = offset + (lines?.[number - first].length ?? 0);
      const here = tokens.filter(({ from, to }) => from < end && to > offset);
      const start = offset;
      grid.append(...this.#make_line(listing, number, here.map(
        ({ from, to, key }) => ({ from: from - start, to: to - start, key }),
      )));
      offset = end + 1;
    }
    if (listing === this.cell) return grid;
    const is_installed = /[\\/](site|dist)-packages[\\/]/.test(file);
    const where = SOURCE_NOTEBOOK.test(file) ? "in another cell" : file.split(/[\\/]/).pop();
    const head = make("summary", { title: file }, make("b", {}, scope), ` ${where}`);
    return make("details", is_installed ? {} : { open: "" }, head, grid);
  }

  /** @param {SourceListing} listing @param {number} number @param {SourceSpan[]} tokens */
  #make_line(listing, number, tokens) {
    const row = listing.rows.get(number);
    const { lines, first, positions } = listing;
    const code = make("code");
    if (lines) {
      const line = lines[number - first];
      const nodes = source_nest(source_spans(listing, number));
      this.#fill(code, listing, line, tokens, nodes, 0, line.length);
    } else {
      const here = [...positions.values()].filter(({ start }) => start === number);
      for (const { key, names } of here.sort((a, b) => a.end_column - b.end_column)) {
        const label = [...names].slice(0, SOURCE_MAX).join(", ");
        code.append(this.#make_part("span", listing, number, key, label), "  ");
      }
    }
    const stepper = row && row.passes.length > 1 ? [this.#make_stepper(row)] : [];
    const shapes = make("div", { class: "mm-source-shapes" }, ...stepper, make("span"));
    const label = { class: "mm-source-number", "aria-label": `Line ${number}` };
    const line = this.#make_part("div", listing, number, row?.key ?? "",
      row ? make("button", label, String(number)) : make("span", label, String(number)),
      code, shapes);
    if (row) this.#shapes.set(row, shapes);
    if (row) this.#show_pass(row);
    if (listing !== this.cell) return [line];
    const notes = this.trace.notes.filter((note) => note.line === number);
    if (number === source_last_line(this.trace)) {
      notes.push({ kind: "error", text: `last line that ran: ${this.trace.error}`, line: number });
    }
    return [line, ...notes.map(({ kind, text }) =>
      make("div", { class: `mm-source-note mm-source-${kind}` }, text))];
  }

  /** Make the element of a line or of an expression. */
  #make_part(
    /** @type {"div" | "span"} */ tag, /** @type {SourceListing} */ listing,
    /** @type {number} */ number, /** @type {string} */ key,
    /** @type {(Node | string)[]} */ ...content
  ) {
    const is_line = tag === "div";
    const element = make(tag, {
      class: is_line ? "mm-source-line" : "mm-source-expression", ...(!is_line && { tabindex: 0 }),
    }, ...content);
    this.#parts.set(element, { listing, number, key });
    if (key) this.#elements.set(key, [...(this.#elements.get(key) ?? []), element]);
    return element;
  }

  /** Set part of a line, with its expressions inside each other. */
  #fill(
    /** @type {Element} */ parent, /** @type {SourceListing} */ listing, /** @type {string} */ line,
    /** @type {SourceSpan[]} */ tokens, /** @type {SourceNode[]} */ nodes,
    /** @type {number} */ from, /** @type {number} */ to,
  ) {
    for (const node of nodes) {
      source_color(parent, line, tokens, from, node.from);
      const start = listing.positions.get(node.key)?.start ?? 0;
      const element = this.#make_part("span", listing, start, node.key);
      this.#fill(element, listing, line, tokens, node.inner, node.from, node.to);
      parent.append(element);
      from = node.to;
    }
    source_color(parent, line, tokens, from, to);
  }

  /** @param {SourceRow} row */
  #show_pass(row) {
    const { passes, shown, n_inside } = row;
    const all = passes.length ? source_shapes(this.trace, passes[shown]) : [];
    const texts = all.slice(-SOURCE_MAX).map((text) => make("span", {}, text));
    const hidden = all.slice(0, -SOURCE_MAX);
    if (hidden.length) texts.push(make("span", { title: hidden.join("\n") }, `+${hidden.length}`));
    if (!all.length && n_inside) texts.push(make("span", {}, `${n_inside} ops inside`));
    const element = this.#shapes.get(row);
    element?.lastElementChild?.replaceChildren(...texts);
    const label = element?.querySelector("output");
    if (label) label.textContent = `pass ${shown + 1} of ${passes.length}`;
  }

  /** @param {SourceRow} row */
  #make_stepper(row) {
    const steps = [["‹", "Previous", -1], ["›", "Next", 1]].map(([text, name, by]) => {
      const label = `${name} pass of line ${row.number}`;
      const button = make("button", { type: "button", "aria-label": label }, `${text}`);
      button.addEventListener("click", (event) => {
        event.stopPropagation();
        this.#step(row, row.shown + Number(by));
      });
      return button;
    });
    return make("span", { class: "mm-source-pass" }, steps[0], make("output"), steps[1]);
  }

  /** Show a pass of a line, and of all lines of the same loop. */
  #step(/** @type {SourceRow} */ row, /** @type {number} */ shown) {
    if (!row.passes[shown]) return;
    for (const other of this.#shapes.keys()) {
      if (!source_is_same_loop(row, other)) continue;
      other.shown = shown;
      this.#show_pass(other);
    }
  }

  /** Select the expression or the line that was clicked. @param {Event} event */
  #choose(event) {
    const part = this.#find_part(event, ".mm-source-expression, .mm-source-line");
    if (!part || document.getSelection()?.isCollapsed === false) return;
    const ops = this.#find_ops(part);
    const is_line = part.listing === this.cell && !part.listing.positions.has(part.key);
    if (!is_line && !ops.length) return;
    /** @type {Selected} */
    const selected = is_line ? { kind: "line", index: part.number }
      : { kind: "op", index: ops[ops.length - 1] };
    this.mark(selected, false);
    this.selection.select(selected, this);
  }

  /** @param {Event} event @param {string} kind */
  #find_part({ target }, kind) {
    const element = target instanceof Element ? target.closest(kind) : null;
    return element && this.#parts.get(element);
  }

  /** Operators of a line or an expression: in the pass that is shown, if it ran there. */
  #find_ops(/** @type {SourcePart} */ { listing, number, key }) {
    const row = listing.rows.get(number);
    const shown = row?.passes[row.shown]?.ops ?? [];
    if (!listing.positions.has(key)) return shown;
    const own = row?.steps.filter((step) => step.key === key).map(({ index }) => index) ?? [];
    const met = new Set(shown);
    const here = own.filter((index) => met.has(index));
    return here.length ? here : own.slice(-1);
  }

  /** @param {Event} event */
  #show_tip(event) {
    this.#hide_tip();
    const part = this.#find_part(event, ".mm-source-expression");
    if (!part) return;
    const lines = source_describe(this.trace, this.#find_ops(part));
    this.tip.replaceChildren(...lines.map((line) => make("div", {}, line)));
    this.tip.hidden = false;
    for (const element of this.#elements.get(part.key) ?? []) {
      element.classList.add("mm-source-hover");
      element.setAttribute("aria-describedby", this.tip.id);
    }
    const target = /** @type {Element} */ (event.target);
    const [at, root, tip] = [target, this.root, this.tip].map((e) => e.getBoundingClientRect());
    const is_above = at.bottom + tip.height > root.bottom && at.top - tip.height > root.top;
    const top = is_above ? at.top - tip.height - 4 : at.bottom + 4;
    const left = Math.max(root.left, Math.min(at.left, root.right - tip.width));
    this.tip.style.translate = `${left - root.left}px ${top - root.top}px`;
  }

  #hide_tip() {
    this.tip.hidden = true;
    for (const element of this.box.querySelectorAll(".mm-source-hover")) {
      element.classList.remove("mm-source-hover");
      element.removeAttribute("aria-describedby");
    }
  }

  /** Keys of what is selected. @param {Selected} selected */
  #find_keys({ kind, index }) {
    if (kind === "line") return [`0:${index}`];
    const { trace, spots } = this;
    const modules = new Set([index]);
    for (const { index: i, parent } of trace.modules) if (modules.has(parent)) modules.add(i);
    const places = kind === "op" ? [trace.op_place[index]]
      : trace.op_place.filter((_, i) => modules.has(trace.op_module[i]));
    return [...new Set(places)].flatMap((place) => [
      `0:${trace.places[place]?.line}`, spots[place]?.row ?? "",
      kind === "op" ? spots[place]?.key ?? "" : "",
    ]);
  }

  /** Mark what is selected. @param {Selected | null} selected @param {boolean} follows */
  mark(selected, follows) {
    for (const element of this.box.querySelectorAll(".mm-selected")) {
      element.classList.remove("mm-selected");
    }
    const keys = selected ? this.#find_keys(selected) : [];
    const elements = keys.flatMap((key) => this.#elements.get(key) ?? []);
    for (const element of elements) element.classList.add("mm-selected");
    this.marked = follows ? elements : [];
    if (!follows) return;
    if (selected?.kind === "op") this.#show_op(selected.index);
    this.#reveal(elements);
  }

  /** Show the pass that an operator ran in. @param {number} index */
  #show_op(index) {
    const spot = this.spots[this.trace.op_place[index]];
    const row = spot?.listing.rows.get(spot.number);
    if (row) this.#step(row, row.passes.findIndex(({ ops }) => ops.includes(index)));
  }

  /** Scroll the box, and not the notebook, to the first and the innermost. */
  #reveal(/** @type {Element[]} */ elements) {
    for (const element of new Set([elements[0], elements[elements.length - 1]])) {
      const details = element?.closest("details");
      if (details) details.open = true;
      const inner = element?.classList.contains("mm-source-line") ? element.children[1] : element;
      if (!inner) continue;
      const [at, box] = [inner, this.box].map((e) => e.getBoundingClientRect());
      if (at.top < box.top || at.bottom > box.bottom) {
        this.box.scrollTop += at.top - box.top - box.height / 3;
      }
      if (inner === element && (at.left < box.left + 50 || at.right > box.right - box.width / 3)) {
        this.box.scrollLeft += at.left - box.left - box.width / 3;
      }
    }
  }
}
