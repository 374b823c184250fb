// What is drawn beside the bars of the tree: patterns, a torn edge, an axis of tokens.

import { svg } from "./dom.js";
import { count } from "./format.js";

export function patterns() {
  const paper = svg("rect", { class: "band", width: 6, height: 6 });
  const lines = svg("path", { d: "M-1 1L1 -1M0 6L6 0M5 7L7 5", class: "pattern-line" });
  const size = { width: 6, height: 6, patternUnits: "userSpaceOnUse" };
  return svg(
    "defs",
    null,
    svg("pattern", { id: "held", ...size }, paper, lines),
  );
}

export function torn(height) {
  let path = "M0 0";
  for (let y = 0; y < height; y += 8) path += `L4 ${y + 4}L0 ${y + 8}`;
  return path;
}

export function axis(from, to, x, width, top) {
  const step = [1, 2, 5]
    .flatMap((each) => [0, 1, 2, 3, 4, 5, 6].map((power) => each * 10 ** power))
    .sort((one, other) => one - other)
    .find((each) => ((to - from) / each) * 72 <= width);
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) ticks.push(at);
  return ticks.map((at) => [
    svg("line", { class: "grid", x1: x(at), x2: x(at), y1: top, y2: top + 4 }),
    svg(
      "text",
      { class: "tick", x: Math.min(Math.max(x(at), 2), width - 2), y: top + 15, "text-anchor": x(at) < 12 ? "start" : x(at) > width - 24 ? "end" : "middle" },
      count(at),
    ),
  ]);
}
