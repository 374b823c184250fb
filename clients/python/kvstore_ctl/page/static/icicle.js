// Where each bar of a tree stands: from tokens to places, without a pixel.

// What may be narrower than this part of the picture is drawn so wide, to be seen and hit.
const STEM = 0.2;

// `node` is the one looked at, as the server has it; the root, whose id is 0, has no bar.
// Returns bars with `from` and `to` in tokens and `row`, `rows`; the number of rows; and from
// and to which token the picture goes.
export function layOut(node) {
  const bars = [];
  let row = 0;
  let end = node.start + node.tokens;

  function place(entry, above, depth) {
    const bar = { kind: "node", entry, above, depth, from: entry.start, to: entry.start + entry.tokens, row };
    bars.push(bar);
    end = Math.max(end, bar.to);
    below(entry, bar, depth);
    bar.rows = Math.max(row - bar.row, 1);
    row = Math.max(row, bar.row + 1);
  }

  function below(entry, bar, depth) {
    for (const child of entry.children) place(child, bar, depth + 1);
    if (entry.other !== null) {
      const from = entry.start + entry.tokens;
      const mean = Math.max(Math.round(entry.other.total / entry.other.count), 1);
      bars.push({ kind: "other", entry: entry.other, of: entry, above: bar, depth: depth + 1, from, to: from + mean, row, rows: 1 });
      end = Math.max(end, from + mean);
      row += 1;
    }
  }

  if (node.id === 0) below(node, null, 0);
  else place(node, null, 1);
  return { bars, rows: row, ...shown(bars, end) };
}

// A first bar that is long and all of the picture's rows is cut, so that there is room for the others.
function shown(bars, end) {
  const [first] = bars;
  if (first === undefined) return { from: 0, to: 1, cut: false };
  const tops = bars.filter((each) => each.depth === first.depth);
  const rest = end - first.to;
  if (tops.length > 1 || rest <= 0) return { from: Math.min(...tops.map((each) => each.from)), to: end, cut: false };
  const from = Math.max(first.from, Math.floor(first.to - (rest * STEM) / (1 - STEM)));
  return { from, to: end, cut: from > first.from };
}

// Bins of hits, from few to many; each has a colour.
const HITS = [1, 2, 5, 20, 100];
export const HITS_NAMES = ["none", "1", "2–4", "5–19", "20–99", "100 and more"];

export function binOf(entry) {
  return HITS.filter((least) => entry.hits >= least).length;
}

// The bar that an arrow key leads to, or null.
export function neighbour(bars, bar, key) {
  const siblings = bars.filter((each) => each.depth === bar.depth);
  const at = siblings.indexOf(bar);
  switch (key) {
    case "ArrowLeft":
      return bar.above;
    case "ArrowRight":
      return bars.find((each) => each.above === bar) ?? null;
    case "ArrowUp":
      return siblings[at - 1] ?? null;
    case "ArrowDown":
      return siblings[at + 1] ?? null;
    case "Home":
      return bars[0];
    case "End":
      return bars[bars.length - 1];
    default:
      return null;
  }
}
