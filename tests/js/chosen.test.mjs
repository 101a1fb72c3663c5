import assert from "node:assert/strict";
import { test } from "node:test";
import { ColumnChoice, style_columns } from "../../meta_magic/view/static/tables/chosen.js";

const COLUMNS = [
  { name: "name", help: "", width: 100, is_pinned: true },
  { name: "bytes", help: "", width: 50 },
  { name: "line", help: "", width: 50, is_extra: true },
];
const names = (choice) => choice.shown.map(({ name }) => name);

/** A browser's storage. */
function store(text) {
  const kept = { text };
  globalThis.localStorage = {
    getItem: () => kept.text, setItem: (_, value) => { kept.text = value; },
  };
  return kept;
}

test("what is extra is shown if it was chosen", () => {
  store(null);
  const choice = new ColumnChoice("Modules", COLUMNS);
  assert.deepEqual(names(choice), ["name", "bytes"]);
  choice.toggle(COLUMNS[2]);
  choice.toggle(COLUMNS[1]);
  assert.deepEqual(names(choice), ["name", "line"]);
  assert.deepEqual(names(new ColumnChoice("Modules", COLUMNS)), ["name", "line"]);
  choice.reset();
  assert.deepEqual(names(new ColumnChoice("Modules", COLUMNS)), ["name", "bytes"]);
});

test("a name is shown, whatever is stored", () => {
  store('{"shown": {"name": false}, "widths": {}}');
  assert.deepEqual(names(new ColumnChoice("Modules", COLUMNS)), ["name", "bytes"]);
});

test("what is stored and makes no sense is left", () => {
  for (const text of ["", "[", "null", "3", '{"shown": 1}', '{"widths": {"bytes": "wide"}}']) {
    store(text);
    const choice = new ColumnChoice("Modules", COLUMNS);
    assert.deepEqual(names(choice), ["name", "bytes"]);
    assert.equal(choice.width_of(COLUMNS[1]), undefined);
  }
});

test("a width is neither nothing nor more than a page", () => {
  store(null);
  const choice = new ColumnChoice("Modules", COLUMNS);
  const widths = [-7, 3, 70, 5000].map((width) => {
    choice.resize(COLUMNS[1], width);
    return choice.width_of(COLUMNS[1]);
  });
  assert.deepEqual(widths, [undefined, 40, 70, 1200]);
});

test("a column whose width was chosen has it, the others share the rest", () => {
  const choose = ({ name }) => (name === "bytes" ? 70 : undefined);
  // 100 + 70 + 50 leave 180: two thirds of it for the first, which is twice as wide.
  assert.deepEqual(style_columns(COLUMNS, choose, 400),
    { "--mm-tracks": "220px 70px 110px", "--mm-width": "400px" });
});

test("what does not fit whole lies behind, and the others fill the room", () => {
  const styles = style_columns(COLUMNS, () => undefined, 180);
  // A name leaves room for the two others, 100.
  assert.deepEqual(styles, { "--mm-tracks": "80px 50px 50px", "--mm-width": "180px" });
  // It has at least 60; with 50 that leaves 10, too few for the third: two thirds of it are for the first.
  assert.deepEqual(style_columns(COLUMNS, () => undefined, 120),
    { "--mm-tracks": "67px 53px 50px", "--mm-width": "170px" });
});
