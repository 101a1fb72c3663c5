// How long each device takes for each signature of the payload on the standard input, and
// whether it waits for its memory then, as JSON.

import { buffer } from "node:stream/consumers";
import { decode } from "../../meta_magic/view/static/data.js";
import { count_seconds, read_work, waits_for_memory } from "../../meta_magic/view/static/rooflines.js";

const trace = await decode(await buffer(process.stdin));
const works = trace.signatures.map((_, i) => read_work(trace, i));
console.log(JSON.stringify(Object.fromEntries(trace.work.devices.map((device) => [device.name, {
  seconds: works.map((one) => count_seconds(one, device)),
  is_bound_by_memory: works.map((one) => waits_for_memory(one, device)),
}]))));
