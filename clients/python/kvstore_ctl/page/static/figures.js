// The figures of now, at the top.

import { byId, el, keyed, say } from "./dom.js";
import { count, duration, share, short, some } from "./format.js";
import { lately } from "./rates.js";

const MINUTE = 60;

export function showFigures(state, samples) {
  keyed(
    byId("figures"),
    figuresOf(state, lately(samples.fine, MINUTE)),
    (each) => each.name,
    (each) => el("div", null, el("dt", null, each.name), el("dd"), el("dd", { class: "quiet" })),
    (place, each) => {
      say(place.children[1], each.value);
      say(place.children[2], each.note);
      place.classList.toggle("alarm", each.alarm === true);
    },
  );
}

function figuresOf(state, recent) {
  const { totals, held } = state;
  const saved = totals.matched_token_count + totals.copied_token_count;
  const quarantined = held.quarantined_slots;
  const corrupt = totals.corrupt_page_count;
  return [
    {
      name: "Hit rate",
      value: share(saved, totals.asked_token_count),
      note: recent === null ? "no lookups in the last minute" : `${share(recent, 1)} in the last minute`,
    },
    { name: "Tokens saved", value: short(saved), note: `of ${short(totals.asked_token_count)} asked` },
    {
      name: "Lookups",
      value: short(totals.lookup_count),
      note: `${short(totals.full_hit_count)} full, ${short(totals.partial_hit_count)} partial, ${short(totals.miss_count)} none`,
    },
    {
      name: "Pages evicted",
      value: short(totals.evicted_page_count),
      note: `of ${short(totals.inserted_page_count)} inserted; ${short(totals.returned_page_count)} came back`,
    },
    {
      name: "Held",
      value: some(held.pins, "pin"),
      note: `${some(held.reservations, "reservation")}, ${some(held.named_pins, "named pin")}`,
    },
    {
      name: "Quarantine",
      value: quarantined > 0 ? `⚠ ${some(quarantined, "slot")}` : "none",
      note: quarantined > 0 ? `since ${duration(held.oldest_quarantine_age)}` : `${some(held.expired_leases, "lease")} past its time`,
      alarm: quarantined > 0,
    },
    {
      name: "Corrupt pages",
      value: corrupt > 0 ? `⚠ ${count(corrupt)}` : "none",
      note: `of ${short(totals.verified_page_count)} looked at`,
      alarm: corrupt > 0,
    },
  ];
}
