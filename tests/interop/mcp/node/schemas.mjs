// Writes the published JSON schemas of MCP to DIRECTORY/REVISION.json: `node schemas.mjs DIRECTORY`.
// The conformance suite carries them, as literals of its bundle; the revisions are told apart by
// what they define.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const bundle = readFileSync(
  new URL("node_modules/@modelcontextprotocol/conformance/dist/index.js", import.meta.url),
  "utf8",
);

function literalAt(start) {
  let depth = 0;
  let quote = null;
  for (let at = start; ; at++) {
    const letter = bundle[at];
    if (quote !== null) {
      if (letter === "\\") at++;
      else if (letter === quote) quote = null;
    } else if ("`'\"".includes(letter)) quote = letter;
    else if (letter === "{") depth++;
    else if (letter === "}" && --depth === 0) return bundle.slice(start, at + 1);
  }
}

function revisionOf(defined) {
  if ("DiscoverRequest" in defined) return "2026-07-28";
  if ("icons" in defined.Tool.properties) return "2025-11-25";
  if ("ResourceLink" in defined) return "2025-06-18";
  if ("JSONRPCBatchRequest" in defined) return "2025-03-26";
  throw new Error("a schema of an unknown revision");
}

const directory = process.argv[2];
mkdirSync(directory, { recursive: true });
const start = /\{\$schema:`https?:\/\/json-schema\.org\/[^`]*`,(?:definitions|\$defs):\{Annotations/g;
const found = [];
for (const match of bundle.matchAll(start)) {
  const schema = new Function(`return ${literalAt(match.index)}`)();
  const revision = revisionOf(schema.definitions ?? schema.$defs);
  writeFileSync(join(directory, `${revision}.json`), JSON.stringify(schema, null, 1));
  found.push(revision);
}
if (found.sort().join() !== "2025-03-26,2025-06-18,2025-11-25,2026-07-28") {
  throw new Error(`the suite carries other schemas than were expected: ${found}`);
}
