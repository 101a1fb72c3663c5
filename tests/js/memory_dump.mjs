// What the Memory view works out of the payload on the standard input, as JSON.

import { buffer } from "node:stream/consumers";
import { decode } from "../../meta_magic/view/static/data.js";
import { add_up_lives, list_live, read_lives } from "../../meta_magic/view/static/memory/lives.js";

const trace = await decode(await buffer(process.stdin));
const lives = read_lives(trace);
const name_rows = (names, rows) => Object.fromEntries(names.map((name, i) => [name, [...rows[i]]]));
const { places, categories } = trace.memory;
const { totals, peak, by_category } = add_up_lives(trace, lives, -1);
console.log(JSON.stringify({
  totals: [...totals], peak,
  by_category: name_rows(categories, by_category.map((bytes) => bytes.subarray(0, trace.n_ops))),
  by_place: name_rows(places, places.map((_, i) => add_up_lives(trace, lives, i).totals)),
  live: [...totals.keys()].map((op) => {
    const { by_module, by_line } = list_live(trace, lives, -1, op);
    return [[...by_module], [...by_line]];
  }),
}));
