// Print each function of some files that is longer than a number of lines, as TypeScript's
// parser sees them. Usage: node sizes.mjs TYPESCRIPT LINES FILE...

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [typescript, limit, ...paths] = process.argv.slice(2);
const ts = createRequire(import.meta.url)(typescript);

/** What a function is called, or the kind of what it is. */
function name_of(node) {
  const is_given = ts.isVariableDeclaration(node.parent) || ts.isPropertyDeclaration(node.parent);
  const name = node.name ?? (is_given && node.parent.name);
  return name ? name.getText() : ts.SyntaxKind[node.kind];
}

for (const path of paths) {
  const text = readFileSync(path, "utf8");
  const file = ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true, ts.ScriptKind.JS);
  const line_of = (position) => file.getLineAndCharacterOfPosition(position).line;
  const visit = (node) => {
    const n_lines = line_of(node.end) - line_of(node.getStart(file)) + 1;
    if (ts.isFunctionLike(node) && n_lines > Number(limit)) {
      console.log(`${path}: ${name_of(node)}: ${n_lines} lines`);
    }
    ts.forEachChild(node, visit);
  };
  visit(file);
}
