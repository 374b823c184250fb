// What a bar of the tree is, in words.

import { bytes, count, some } from "./format.js";

export function keyOf(bar) {
  return bar.kind === "other" ? `other-${bar.of.id}` : `node-${bar.entry.id}`;
}

export function heldBy(entry) {
  return entry.holds === 0 ? "nobody" : some(entry.holds, "hold");
}

export function describe(bar, namespace) {
  const { entry } = bar;
  const size = namespace?.pages > 0 ? namespace.bytes / namespace.pages / namespace.page_tokens : 0;
  const uses = `${some(entry.hits, "hit")}. Held by ${heldBy(entry)}.`;
  if (bar.kind === "other") {
    return `${some(entry.count, "smaller prefix", "smaller prefixes")} with ${some(entry.total, "token")} in all: ${uses}`;
  }
  const below = entry.total - entry.tokens;
  const rest = below > 0 ? `, and ${count(below)} in ${some(entry.nodes, "run")} after them` : "";
  return `Tokens ${count(bar.from)} to ${count(bar.to)}: ${some(entry.tokens, "token")}${rest}, ${bytes(entry.total * size)}. ${uses}`;
}
