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
  const styles = style_columns(COLUMNS, ({ name }) => (name === "bytes" ? 70 : undefined));
  assert.deepEqual(styles, {
    "--mm-tracks": "minmax(min(100px, 30cqw), 100fr) 70px minmax(50px, 50fr)",
    "--mm-width": "calc(min(100px, 30cqw) + 70px + 50px)",
  });
});
