// Where, in the flow of a payload, wires run through labels and boxes, and what overlaps:
// as JSON, by direction and level; up to a level.

import fs from "node:fs";
import { decode } from "../../meta_magic/view/static/data.js";
import { Boxes } from "../../meta_magic/view/static/flow/boxes.js";
import { arrange } from "../../meta_magic/view/static/flow/layout.js";
import { count_levels, open_levels } from "../../meta_magic/view/static/flow/levels.js";
import { measure_text } from "../../meta_magic/view/static/flow/letters.js";
import { choose_phase, follow_values } from "../../meta_magic/view/static/flow/values.js";

const STEP = 2; // pixels between the points of a wire that are looked at
const LETTERS = 9; // height of a label's letters in pixels

/** The corners of a path, curves cut into short lines: pairs of points. */
export function list_lines(path) {
  let [x, y] = [0, 0];
  const lines = [];
  const go = (to_x, to_y) => {
    lines.push([x, y, to_x, to_y]);
    [x, y] = [to_x, to_y];
  };
  for (const [, letter, text] of path.matchAll(/([A-Za-z])([^A-Za-z]*)/g)) {
    const [a, b, c, d, e, f] = text.trim().split(/ /).map(Number);
    if (letter === "M") [x, y] = [a, b];
    else if (letter === "H") go(a, y);
    else if (letter === "V") go(x, a);
    else if (letter === "h") go(x + a, y);
    else if (letter === "v") go(x, y + a);
    else if (letter === "C") {
      const [x0, y0] = [x, y];
      const mix = (t, p, q, r, s) =>
        (1 - t) ** 3 * p + 3 * (1 - t) ** 2 * t * q + 3 * (1 - t) * t * t * r + t ** 3 * s;
      for (let t = 0.05; t < 1.01; t += 0.05) go(mix(t, x0, a, c, e), mix(t, y0, b, d, f));
    } else throw new Error(`unknown letter ${letter} in ${path}`);
  }
  return lines;
}

const list_points = ([x, y, to_x, to_y]) => {
  const n = Math.ceil(Math.hypot(to_x - x, to_y - y) / STEP) || 1;
  return Array.from({ length: n + 1 }, (_, i) => [x + ((to_x - x) * i) / n, y + ((to_y - y) * i) / n]);
};

const is_in = (box, [x, y], edge = 1) =>
  x > box.x + edge && x < box.x + box.w - edge && y > box.y + edge && y < box.y + box.h - edge;

const is_over = (a, b) => a.x < b.x + b.w - 1 && b.x < a.x + a.w - 1
  && a.y < b.y + b.h - 1 && b.y < a.y + a.h - 1;

/** What is crossed and overlaps in a box, and in the open ones in it, each as a text. */
export function find_crossings({ nodes, wires }) {
  const labels = wires.filter(({ label }) => label).map(({ label, label_x, label_y }) => {
    const w = measure_text(label);
    return { text: `label ${label}`, x: label_x - w / 2, y: label_y - LETTERS / 2, w, h: LETTERS };
  });
  const boxes = [...labels, ...nodes];
  const found = nodes.flatMap(({ inner }) => (inner ? find_crossings(inner) : []));
  for (const wire of wires) {
    const points = list_lines(wire.path).flatMap(list_points);
    for (const box of boxes) {
      if (points.some((point) => is_in(box, point))) {
        found.push(`wire from ${wire.from.text} to ${wire.ends[0]?.node.text} through ${box.text}`);
      }
    }
  }
  boxes.forEach((box, i) => {
    for (const other of boxes.slice(0, i)) {
      if (is_over(box, other)) found.push(`${box.text} over ${other.text}`);
    }
  });
  return found;
}

async function main() {
  const trace = await decode(fs.readFileSync(process.argv[2]));
  const values = follow_values(trace);
  const found = {};
  for (const is_across of [false, true]) {
    for (const has_functions of [true, false]) {
      const boxes = new Boxes(values, choose_phase(trace), has_functions);
      boxes.is_across = is_across;
      const last = Math.min(Number(process.argv[3]), count_levels(boxes.root) + 1);
      for (let level = 0; level <= last; level += 1) {
        open_levels(boxes.root, level);
        const whole = arrange(boxes, boxes.root);
        const key = `${is_across ? "across" : "down"} ${has_functions ? "functions" : "operators"} ${level}`;
        found[key] = { crossings: find_crossings(whole), w: Math.round(whole.w), h: Math.round(whole.h) };
      }
    }
  }
  console.log(JSON.stringify(found));
}

if (process.argv[2]) await main();
