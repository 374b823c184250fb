// The prefixes of a namespace: asked for, drawn, and walked through.

import { NoAnswer, Refused, ask } from "./api.js";
import { byId, el, keyed, say, svg, table, whenSized } from "./dom.js";
import { count, short, some } from "./format.js";
import { HITS_NAMES, binOf, layOut, neighbour } from "./icicle.js";
import { axis, patterns, torn } from "./tree_shapes.js";
import { describe, heldBy, keyOf } from "./tree_words.js";

const HEIGHT = 460;
// On a narrow screen a finger has to hit a bar, so there are fewer.
const NARROW = 500;
const WIDE_LIMITS = { nodes: 60, row: 12 };
const NARROW_LIMITS = { nodes: 24, row: 24 };
const HIGHEST_ROW = 40;
const AXIS = 18;
// Pixels at a bar's beginning that say by a pattern who holds it.
const BAND = 9;
// Pixels of a letter, on average: what does not fit is left out.
const LETTER = 6.6;
const NO_NAMESPACE = "No pages yet: no worker has opened a namespace. It opens one when it first asks for a prompt.";
const NO_PAGES = "No pages yet: nothing that a worker computed has been inserted in this namespace.";

export class Tree {
  constructor() {
    this.place = byId("tree-picture");
    this.choice = byId("tree-namespace");
    this.namespaces = [];
    this.answer = null;
    this.at = { node: 0, skip: 0 };
    this.active = null;
    this.asked = 0;
    this.chosen = "";
    this.choice.addEventListener("change", () => {
      this.chosen = this.choice.value;
      this.go(0);
    });
    whenSized(this.place, () => this.draw());
  }

  clear() {
    this.answer = null;
    this.at = { node: 0, skip: 0 };
  }

  get namespace() {
    return this.namespaces.find((each) => String(each.number) === this.choice.value);
  }

  get limits() {
    return this.place.clientWidth < NARROW ? NARROW_LIMITS : WIDE_LIMITS;
  }

  // Takes the namespaces that there are; the one chosen stays chosen.
  offer(namespaces) {
    this.namespaces = namespaces;
    keyed(
      this.choice,
      namespaces,
      (each) => each.number,
      (each) => el("option", { value: each.number }),
      (option, each) => say(option, `${each.name || each.model} · ${each.tenant} · ${some(each.pages, "page")}`),
    );
    this.choice.disabled = namespaces.length < 2;
    if (this.choice.value !== this.chosen) this.at = { node: 0, skip: 0 };
    this.chosen = this.choice.value;
    if (namespaces.length === 0) {
      this.clear();
      this.draw();
    }
  }

  go(node, skip = 0) {
    this.at = { node, skip };
    this.active = null;
    return this.refresh();
  }

  // Asks again. A node that went, by an eviction or because two became one, leads to the beginning.
  async refresh() {
    const namespace = this.namespace;
    if (namespace === undefined) return;
    const turn = (this.asked += 1);
    try {
      const answer = await ask("api/tree", { namespace: namespace.number, count: this.limits.nodes, ...this.at });
      if (turn !== this.asked) return;
      this.answer = answer;
      this.draw();
    } catch (error) {
      if (error instanceof Refused && this.at.node !== 0) await this.go(0);
      else if (!(error instanceof Refused || error instanceof NoAnswer)) throw error;
    }
  }

  draw() {
    const node = this.answer?.node;
    const empty = node === undefined || (node.id === 0 && node.children.length === 0);
    this.path(empty ? null : node);
    this.legend(empty);
    if (empty) {
      const why = this.namespaces.length === 0 ? NO_NAMESPACE : NO_PAGES;
      this.place.replaceChildren(el("p", { class: "empty" }, why));
      say(byId("tree-detail"), "");
      byId("tree-table").replaceChildren();
      return;
    }
    this.plan = layOut(node);
    this.picture();
    this.tabulate();
  }

  picture() {
    const { bars, rows, from, to, cut } = this.plan;
    const width = Math.max(this.place.clientWidth, 120);
    const high = Math.min(Math.max(Math.floor(HEIGHT / rows), this.limits.row), HIGHEST_ROW);
    const x = (tokens) => Math.max(((tokens - from) / (to - from)) * width, 0);
    const focused = this.place.contains(document.activeElement);
    const active = bars.find((each) => keyOf(each) === this.active) ?? bars[0];
    this.active = keyOf(active);
    const shapes = bars.map((bar) => this.bar(bar, x, high, bar === active));
    this.place.replaceChildren(
      svg(
        "svg",
        {
          class: "icicle",
          width,
          height: rows * high + AXIS,
          role: "group",
          "aria-label": "Prefixes; arrow keys move, Enter zooms in, Escape zooms out",
          keydown: (event) => this.key(event),
        },
        patterns(),
        shapes,
        cut ? svg("path", { class: "torn", d: torn(rows * high) }) : null,
        axis(from, to, x, width, rows * high),
      ),
    );
    if (focused) this.place.querySelector('[tabindex="0"]').focus();
    this.tell(active);
  }

  bar(bar, x, high, active) {
    const left = x(bar.from);
    const width = Math.max(x(bar.to) - left, 3);
    const top = bar.row * high;
    const height = bar.rows * high;
    const box = { x: left + 0.5, y: top + 0.5, width: Math.max(width - 1, 2), height: Math.max(height - 1, 2) };
    const held = bar.entry.holds > 0;
    const text = this.label(bar, width);
    return svg(
      "g",
      {
        class: `bar ${bar.kind} bin-${binOf(bar.entry)}`,
        role: "button",
        tabindex: active ? 0 : -1,
        "data-bar": keyOf(bar),
        "aria-label": `${text === "" ? "" : `${text}. `}${describe(bar, this.namespace)} Level ${bar.depth}.`,
        click: () => this.zoom(bar),
        focus: () => this.activate(bar),
        pointerenter: () => this.tell(bar),
      },
      svg("rect", { class: "fill", ...box }),
      held ? svg("rect", { class: "mark", ...box, width: Math.min(BAND, box.width), fill: "url(#held)" }) : null,
      text === "" || high < 11
        ? null
        : svg("text", { x: left + BAND + 6, y: top + Math.min(height / 2 + 4, 19) }, text),
    );
  }

  label(bar, width) {
    const fits = (text) => text.length * LETTER + BAND + 10 < width;
    const long =
      bar.kind === "other"
        ? `${count(bar.entry.count)} more, ${short(bar.entry.total)} tokens`
        : `${this.plan.cut && bar === this.plan.bars[0] ? "… " : ""}${some(bar.entry.tokens, "token")} · ${some(bar.entry.hits, "hit")}`;
    const brief = bar.kind === "other" ? `+${short(bar.entry.count)}` : short(bar.entry.tokens);
    return [long, brief].find(fits) ?? "";
  }

  zoom(bar) {
    if (bar.kind === "other") this.go(bar.of.id, bar.entry.skip);
    else if (bar.entry.id !== this.at.node || this.at.skip > 0) this.go(bar.entry.id);
    else this.out();
  }

  out() {
    const { path } = this.answer.node;
    this.go(this.at.skip > 0 ? this.at.node : (path[path.length - 1]?.id ?? 0));
  }

  key(event) {
    const bar = this.plan.bars.find((each) => keyOf(each) === this.active);
    if (event.key === "Enter" || event.key === " ") this.zoom(bar);
    else if (event.key === "Escape" || event.key === "Backspace") this.out();
    else {
      const next = neighbour(this.plan.bars, bar, event.key);
      if (next === null) return;
      this.place.querySelector(`[data-bar="${CSS.escape(keyOf(next))}"]`).focus();
    }
    event.preventDefault();
  }

  activate(bar) {
    this.active = keyOf(bar);
    for (const each of this.place.querySelectorAll(".bar")) {
      each.setAttribute("tabindex", each.dataset.bar === this.active ? 0 : -1);
    }
    this.tell(bar);
  }

  tell(bar) {
    const ids = bar.entry.ids?.length > 0 ? ` First tokens: ${bar.entry.ids.join(" ")}` : "";
    say(byId("tree-detail"), describe(bar, this.namespace) + ids);
  }

  path(node) {
    const all = { id: 0, text: "all prefixes" };
    const above = node === null ? [] : [...node.path.filter((each) => each.id !== 0), ...(node.id === 0 ? [] : [node])];
    const steps = [all, ...above.map((each) => ({ id: each.id, text: some(each.tokens, "token") }))];
    if (node?.skipped > 0) steps.push({ id: null, text: `without the ${count(node.skipped)} largest` });
    byId("tree-path").replaceChildren(
      el(
        "ol",
        null,
        steps.map((each, place) =>
          el(
            "li",
            null,
            place === steps.length - 1
              ? el("span", { "aria-current": "location" }, each.text)
              : el("button", { type: "button", click: () => this.go(each.id) }, each.text),
          ),
        ),
      ),
    );
  }

  legend(empty) {
    const keys = [...HITS_NAMES.map((name, bin) => [`bin-${bin}`, name]), ["held", "held by a pin"]];
    byId("tree-legend").replaceChildren(
      ...(empty ? [] : keys).map(([swatch, name]) =>
        el("span", { class: "key" }, el("i", { class: `swatch ${swatch}`, "aria-hidden": "true" }), name),
      ),
    );
  }

  tabulate() {
    const names = ["Level", "From token", "Tokens", "With all below", "Hits", "Held by"];
    const heads = names.map((title) => ({ title, number: title !== "Held by" }));
    const rows = this.plan.bars.map((bar) => [
      count(bar.depth),
      bar.kind === "other" ? `${count(bar.entry.count)} more` : count(bar.from),
      bar.kind === "other" ? "–" : count(bar.entry.tokens),
      count(bar.entry.total),
      count(bar.entry.hits),
      heldBy(bar.entry),
    ]);
    byId("tree-table").replaceChildren(table("Prefixes", heads, rows));
  }
}
