// Hit rate and tokens saved, over minutes or a day.

import { Chart, columns, stair } from "./chart.js";
import { byId, table } from "./dom.js";
import { count, share, short } from "./format.js";
import { points, roundUp } from "./rates.js";

const SPANS = { fine: 600, coarse: 86400 };
const LEAST_SPAN = 60;
// Points across a picture, of a second each at least, or of a minute.
const MOST_POINTS = 120;
const LEAST_WIDTH = { fine: 1, coarse: 60 };
// Rows of the table: the ten minutes minute by minute, the day hour by hour.
const ROW_SECONDS = { fine: 60, coarse: 3600 };
const NOTHING = "No lookups in this time.";

export class Reuse {
  constructor() {
    this.hitRate = new Chart(byId("hit-rate"), {
      title: "Hit rate, tokens found of tokens asked",
      height: 120,
      top: () => 1,
      label: (value) => `${100 * value} %`,
      describe: (each, when) =>
        each.hitRate === null ? `${when}: no lookups` : `${when}: ${share(each.saved, each.asked)}`,
      draw: (all, x, y) => [stair(all, x, y, (each) => each.hitRate, "line")],
    });
    this.saved = new Chart(byId("saved"), {
      title: "Tokens a second: found, of those asked",
      height: 120,
      top: (all) => roundUp(Math.max(...all.map((each) => each.askedRate), 1)),
      label: short,
      describe: (each, when) => `${when}: ${short(each.savedRate)} found of ${short(each.askedRate)} a second`,
      draw: (all, x, y) => [
        columns(all, x, y, (each) => each.askedRate, "asked"),
        columns(all, x, y, (each) => each.savedRate, "found"),
      ],
    });
    this.chosen = "fine";
    byId("span").addEventListener("change", (event) => {
      this.chosen = event.target.value;
      this.show(this.samples, this.now);
    });
  }

  show(samples, now) {
    this.samples = samples;
    this.now = now;
    // Of a young server all of its life, which is less than was chosen.
    const span = Math.min(SPANS[this.chosen], Math.max(now, LEAST_SPAN));
    const width = Math.max(LEAST_WIDTH[this.chosen], span / MOST_POINTS);
    const kept = this.kept();
    const all = kept.length > 0 ? points(kept, width) : [];
    const seen = all.filter((each) => each.asked > 0).length > 0 ? all : [];
    this.hitRate.show(seen, span, now, NOTHING);
    this.saved.show(seen, span, now, NOTHING);
    this.tabulate(kept);
  }

  // Of the day there may be no minute yet: what there is of the last one is shown with it.
  kept() {
    const { fine, coarse } = this.samples;
    if (this.chosen === "fine") return fine;
    const last = coarse[coarse.length - 1];
    return last === undefined ? [] : [...coarse, ...fine.filter((each) => each.time > last.time).slice(-1)];
  }

  tabulate(kept) {
    const rows = kept.length > 0 ? points(kept, ROW_SECONDS[this.chosen]).reverse() : [];
    const names = ["Until", "Lookups", "Tokens asked", "Found", "Hit rate", "Pages evicted", "Back after that"];
    const heads = names.map((title, place) => ({ title, number: place > 0 }));
    byId("reuse-table").replaceChildren(
      table(
        "Reuse over time",
        heads,
        rows.map((each) => [
          this.hitRate.timeOf(each.time),
          count(each.lookups),
          count(each.asked),
          count(each.saved),
          share(each.saved, each.asked),
          count(each.evicted),
          count(each.returned),
        ]),
      ),
    );
  }
}
