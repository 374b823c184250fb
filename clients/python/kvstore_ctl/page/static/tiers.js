// What each tier's bytes are used for: a bar, and its figures.

import { byId, cell, el, keyed, say } from "./dom.js";
import { bytes, count, share } from "./format.js";

const NAMES = { 1: "Tier 1, in place", 2: "Tier 2, host memory", 3: "Tier 3, disk" };
// In the order of the bar; what they are called to people.
const STATES = {
  cached: "cached",
  reserved: "reserved, being written",
  moving: "moving between tiers",
  detached: "detached, still held",
  quarantined: "in quarantine",
  free: "free",
};
const COLUMNS = [{ title: "State" }, { title: "Memory", number: true }, { title: "Slots", number: true }];
const NO_MEMORY = "No memory taken yet: the first namespace takes it.";

export function showTiers(tiers) {
  keyed(byId("tiers"), tiers, (each) => each.tier, makeTier, updateTier);
}

function makeTier(tier) {
  return el(
    "div",
    { class: "tier" },
    el("h3", { class: "chart-title" }, NAMES[tier.tier] ?? `Tier ${tier.tier}`, " ", el("span", { class: "readout" })),
    el("div", { class: "stack", role: "img" }),
    el(
      "table",
      { class: "plain states" },
      el("caption", { class: "unseen" }, `${NAMES[tier.tier]}: memory by state`),
      el("thead", { class: "unseen" }, el("tr", null, COLUMNS.map((each) => el("th", { scope: "col" }, each.title)))),
      el("tbody"),
    ),
    el("p", { class: "quiet note" }),
  );
}

function updateTier(place, tier) {
  const taken = Object.values(tier.bytes).reduce((sum, each) => sum + each, 0);
  const all = Math.max(tier.budget, taken);
  const used = taken - (tier.bytes.free ?? 0);
  say(place.querySelector(".readout"), `${bytes(used)} used of ${bytes(all)}, ${share(used, all)}`);
  const parts = Object.keys(STATES)
    .filter((each) => (tier.bytes[each] ?? 0) > 0)
    .map((state) => ({ state, size: tier.bytes[state], slots: tier.slots[state] }));
  const stack = place.querySelector(".stack");
  stack.setAttribute("aria-label", `${share(used, all)} of ${bytes(all)} used`);
  keyed(
    stack,
    parts,
    (each) => each.state,
    (each) => el("i", { class: `part state-${each.state}` }),
    (part, each) => {
      part.style.width = `${(100 * each.size) / all}%`;
    },
  );
  keyed(
    place.querySelector("tbody"),
    parts,
    (each) => each.state,
    (each) =>
      el(
        "tr",
        null,
        el("td", null, el("i", { class: `swatch state-${each.state}`, "aria-hidden": "true" }), STATES[each.state]),
        cell(COLUMNS[1], ""),
        cell(COLUMNS[2], ""),
      ),
    (row, each) => {
      say(row.cells[1], bytes(each.size));
      say(row.cells[2], count(each.slots));
    },
  );
  say(place.querySelector(".note"), noteOf(tier, taken));
}

function noteOf(tier, taken) {
  if (tier.state === "failed") return "Failed: the store goes on without it. The log says why.";
  if (tier.tier === 3) {
    return `${count(tier.written_pages)} pages written, ${count(tier.read_pages)} read, ${count(tier.evicted_pages)} evicted.`;
  }
  if (taken === 0) return NO_MEMORY;
  const back = tier.retiring_extents > 0 ? `, ${count(tier.retiring_extents)} of them going back` : "";
  return `In ${count(tier.extents)} ${tier.extents === 1 ? "extent" : "extents"}${back}.`;
}
