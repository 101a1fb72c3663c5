// Print the steps of a payload's flow: a name, or a pair of a box's name and its steps.

import fs from "node:fs";
import { decode, PHASES } from "../../meta_magic/view/static/data.js";
import { Boxes } from "../../meta_magic/view/static/flow/boxes.js";
import { follow_values } from "../../meta_magic/view/static/flow/values.js";

const [path, phase] = process.argv.slice(2);
const trace = await decode(fs.readFileSync(path));
const boxes = new Boxes(follow_values(trace), PHASES.indexOf(phase), true);
const read = (item) => {
  const name = boxes.name(item);
  return item.items.length ? [name, item.items.map(read)] : name;
};
console.log(JSON.stringify(boxes.root.items.map(read)));
