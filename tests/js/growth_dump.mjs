// What the browser works out of the growths and stretches on the standard input, as JSON.

import { json } from "node:stream/consumers";
import { find_largest, find_peak, resize_lives } from "../../meta_magic/view/static/memory/growth.js";

const { growth, stretches, sizes, rooms } = await json(process.stdin);
const lives = stretches.row.map(() => ({ nbytes: 0 }));
console.log(JSON.stringify({
  peaks: sizes.map((size) => find_peak({ ...growth, recorded: [] }, size)),
  largest: rooms.map((nbytes) => find_largest(growth, nbytes)),
  stretches: sizes.map((size) => resize_lives(lives, stretches, size).map(({ nbytes }) => nbytes)),
}));
