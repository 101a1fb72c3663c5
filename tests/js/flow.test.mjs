import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

const folder = new URL("../../meta_magic/view/static/", import.meta.url);
const names = readdirSync(folder, { recursive: true }).filter((name) => name.endsWith(".js"));
const files = new Map(names.map((name) => [name, readFileSync(new URL(name, folder), "utf8")]));
const FLOW = /^flow\//;

test("the view can be imported where there is no document", async () => {
  const { mount_flow } = await import(new URL("flow/flow.js", folder));
  assert.equal(typeof mount_flow, "function");
});

test("no name is ever set as HTML", () => {
  for (const [name, text] of files) {
    if (!FLOW.test(name)) continue;
    assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacent/);
  }
});

test("imports and exports can be stripped line by line", () => {
  for (const [name, text] of files) {
    // What the page calls is exported there, on one line that is taken out as a whole.
    if (["live.js", "saved.js", "world.js", "varied.js", "lesson.js", "starter.js", "figure.js"].includes(name)) continue;
    for (const line of text.match(/^(import|export).*/gm) ?? []) {
      assert.match(line, /^import \{.*\} from "\.\.?\/[\w/]+\.js";$|^export (async function|function|class|const) /);
    }
    assert.doesNotMatch(text, /\bimport\(["'][^"']+["']\)(?!\.)|export \{|export default/);
  }
});

test("all classes begin with mm-", () => {
  const css = readFileSync(new URL("flow.css", folder), "utf8");
  for (const [, name] of css.matchAll(/\.([a-z][\w-]*)/g)) assert.match(name, /^mm-/);
});
