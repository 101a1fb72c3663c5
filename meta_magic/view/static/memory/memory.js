// The Memory view: live bytes over time, and the live storages after one operator.

import { find_live } from "../alive.js";
import { add_up_modules, build_tops } from "../charts/areas.js";
import { make_measure, make_paint } from "../charts/charts.js";
import { Treemap } from "../charts/treemap.js";
import { list_path } from "../data.js";
import { format_bytes, make } from "../dom.js";
import { find_module } from "../selection.js";
import { is_op_selected } from "../tables/operators.js";
import { FitTable } from "./fit.js";
import { add_up_lives, list_live } from "./lives.js";
import { Timeline } from "./timeline.js";

/** @typedef {import("../charts/areas.js").Area} Area */

/** Shows the memory of a trace; owns the device, -1 for all, and the operator that are chosen. */
export class MemoryView {
  width = 0;
  sized = make("span");
  maps = make("div", { class: "mm-charts mm-alive" });
  paints = { module: make_paint(), line: make_paint() }; // whichever operator is chosen

  /**
   * @param {import("../data.js").TraceView} trace
   * @param {import("../selection.js").Selection} selection
   * @param {import("../times.js").Times} times
   */
  constructor(trace, selection, times) {
    this.trace = trace;
    this.selection = selection;
    this.times = times;
    this.lives = this.recorded = find_live(trace).lives;
    this.measure = make_measure();
    const { places: devices, accelerator } = trace.memory;
    const all = devices.map((_, i) => add_up_lives(trace, this.lives, i));
    const most = all.map(({ totals, peak }) => totals[peak]);
    this.chosen = most.indexOf(Math.max(...most));
    this.series = all[this.chosen];
    this.timeline = new Timeline(trace, this.series, {
      measure: this.measure, select: (index) => selection.select({ kind: "op", index }),
    });
    this.jump = make("button", {
      type: "button", class: "mm-link", title: "select the operator of the peak",
      onclick: () => selection.select({ kind: "op", index: this.series.peak }),
    });
    this.timeline.element.prepend(make("figcaption", {},
      "Bytes alive after each operator", this.sized, " ", ...this.make_chooser(devices), this.jump));
    this.charts = make("div", { class: "mm-charts" }, this.timeline.element);
    this.fit = new FitTable(times, most[devices.indexOf(accelerator)], accelerator);
    this.element = make("div", { class: "mm-memory" }, this.charts, this.fit.element, this.maps);
    this.show_series();
  }

  /** @param {string[]} devices */
  make_chooser(devices) {
    if (devices.length < 2) return [];
    const names = [...devices, "all devices"].map((name, i) =>
      make("option", { selected: i === this.chosen }, name));
    const onchange = ({ target }) => {
      this.chosen = devices.indexOf(target.value);
      this.series = add_up_lives(this.trace, this.lives, this.chosen);
      this.show_series();
    };
    return [make("select", { "aria-label": "Device", onchange }, ...names), " "];
  }

  /** Show other bytes, and a text that says where they come from; by default those recorded. */
  show_lives(lives = this.recorded, words = "") {
    if (lives === this.lives) return;
    this.lives = lives;
    this.series = add_up_lives(this.trace, lives, this.chosen);
    this.sized.textContent = words;
    this.show_series();
  }

  /** Show the bytes of the chosen device, and its peak. */
  show_series() {
    this.at = this.series.peak;
    this.timeline.show(this.series);
    this.jump.textContent = `peak ${format_bytes(this.series.totals[this.at])}`;
    this.show_live();
  }

  /** Show the live storages after the chosen operator, by module and by line. */
  show_live() {
    const { trace, at } = this;
    const { by_module, by_line } = list_live(trace, this.lives, this.chosen, at);
    const title = `Alive after operator ${at},`;
    this.by_module = this.make_map(`${title} by module`, "module", this.list_modules(by_module));
    this.by_line = this.make_map(`${title} by line`, "line", this.list_lines(by_line));
    this.drawn = [this.by_module, this.by_line];
    this.maps.replaceChildren(...this.drawn.map(({ element }) => element));
    this.resize_maps();
  }

  /** @param {string} title @param {"module" | "line"} kind @param {Area[]} tops */
  make_map(title, kind, tops) {
    const least = kind === "line" ? 1 : 0;
    const map = new Treemap(title, tops, {
      format: format_bytes, measure: this.measure, paint: this.paints[kind],
      select: (index) => index >= least && this.selection.select({ kind, index }),
    });
    if (!tops.length) map.svg.remove();
    for (const button of map.element.querySelectorAll("button")) button.title = `select the ${kind}`;
    return map;
  }

  /** @param {Map<number, number>} by_module @returns {Area[]} */
  list_modules(by_module) {
    const totals = add_up_modules(this.trace, ({ index }) => by_module.get(index) ?? 0);
    const tops = build_tops(this.trace, (module) => totals[module]);
    const value = by_module.get(-1) ?? 0;
    const words = "outside of modules";
    const outside = { name: words, words, value, at: -1, modules: [], children: [] };
    return [...tops, ...value ? [outside] : []].sort((a, b) => b.value - a.value);
  }

  /** @param {Map<number, number>} by_line @returns {Area[]} */
  list_lines(by_line) {
    const { source, cell } = this.trace;
    const texts = source.split(/\r?\n/);
    return [...by_line].map(([line, value]) => {
      const text = texts[line - cell.first]?.trim();
      const name = line ? `line ${line}` : "no line of the cell";
      return { name, words: text ? `${name}: ${text}` : name, value, at: line, modules: line ? [line] : [], children: [] };
    }).sort((a, b) => b.value - a.value);
  }

  resize() {
    if (!this.charts.clientWidth || this.charts.clientWidth === this.width) return;
    this.width = this.charts.clientWidth;
    this.timeline.resize(this.timeline.element.clientWidth);
    this.resize_maps();
  }

  resize_maps() {
    if (this.width) for (const { element, resize } of this.drawn) resize(element.clientWidth);
    this.mark();
  }

  /** Show what is selected. */
  follow() {
    const { kind, index } = this.selection.current ?? {};
    if (kind === "op") this.timeline.point(index);
    if (kind === "op" && index !== this.at) {
      this.at = index;
      this.show_live();
    } else this.mark();
  }

  /** Mark what is selected, in all charts. */
  mark() {
    const { trace, selection: { current } } = this;
    const { kind, index } = current ?? {};
    const line = { line: index, op: kind === "op" && trace.site(index).line }[kind] ?? 0;
    this.by_module.mark(list_path(trace, find_module(trace, current)));
    this.by_line.mark([line]);
    this.timeline.mark((op) => is_op_selected(trace, current, op));
  }
}

/**
 * Show the memory.
 * @param {HTMLElement} element @param {import("../data.js").TraceView} trace
 * @param {import("../selection.js").Selection} selection
 * @param {import("../report.js").Settings} settings
 * @param {import("../times.js").Times} times @param {import("../report.js").Live} live
 */
export function mount_memory(element, trace, selection, settings, times, live) {
  if (!trace.n_ops || !trace.memory.sizes.some(Boolean)) {
    element.append("No tensor of this trace takes memory.");
    return;
  }
  const view = new MemoryView(trace, selection, times);
  live.make_fit(view);
  element.append(view.element);
  new ResizeObserver(() => view.resize()).observe(view.element);
  selection.subscribe(() => view.follow());
}
