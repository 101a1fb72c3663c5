import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const folder = new URL("../../meta_magic/view/static/", import.meta.url);
const NAMES = ["graph.js", "layout.js", "flow.js"];
const files = new Map(NAMES.map((name) => [name, readFileSync(new URL(name, folder), "utf8")]));

test("the view can be imported where there is no document", async () => {
  const { mount_flow } = await import(new URL("flow.js", folder));
  assert.equal(typeof mount_flow, "function");
});

test("no name is ever set as HTML", () => {
  for (const text of files.values()) {
    assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacent/);
  }
});

test("imports and exports can be stripped line by line", () => {
  for (const text of files.values()) {
    for (const line of text.match(/^(import|export).*/gm) ?? []) {
      assert.match(line, /^import \{.*\} from "\.\/\w+\.js";$|^export (function|class|const) /);
    }
    assert.doesNotMatch(text, /\bimport\(["'][^"']+["']\)(?!\.)|export \{|export default/);
  }
});

test("all classes begin with mm-", () => {
  const css = readFileSync(new URL("flow.css", folder), "utf8");
  for (const [, name] of css.matchAll(/\.([a-z][\w-]*)/g)) assert.match(name, /^mm-/);
});
