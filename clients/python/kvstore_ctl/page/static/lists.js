// Tables that stay while their figures change: leases, namespaces, tenants.

import { NoAnswer, Refused, ask } from "./api.js";
import { byId, cell, el, keyed, say, table } from "./dom.js";
import { bytes, count, duration, share, some } from "./format.js";

const LEASES = [
  { title: "Lease", text: (each) => each.name || `lease ${each.number}` },
  { title: "Tenant", text: (each) => each.tenant },
  { title: "State", text: (each) => (each.expired ? "⚠ past its time" : "living") },
  { title: "Processes", text: (each) => each.pids.join(", ") || "none" },
  { title: "Age", number: true, text: (each) => duration(each.age) },
  { title: "Pins", number: true, text: (each) => count(each.pins) },
  { title: "Pages held", number: true, text: (each) => count(each.pinned_pages) },
  { title: "Slots reserved", number: true, text: (each) => count(each.reserved_slots) },
  { title: "In quarantine", number: true, text: (each) => count(each.quarantined_slots) },
  { title: "Oldest hold", number: true, text: (each) => duration(each.oldest_hold_age) },
  { title: "Found", number: true, text: (each) => share(each.found, each.asked) },
];
const NAMESPACES = [
  { title: "Namespace", text: (each) => each.name || `number ${each.number}` },
  { title: "Tenant", text: (each) => each.tenant },
  { title: "Model", text: (each) => each.model + (each.adapter ? " + adapter" : "") },
  { title: "Pages", number: true, text: (each) => count(each.pages) },
  { title: "Memory", number: true, text: (each) => bytes(each.bytes) },
  { title: "Nodes", number: true, text: (each) => count(each.nodes) },
  { title: "Pins", number: true, text: (each) => count(each.pins + each.named_pins) },
  { title: "Lookups", number: true, text: (each) => count(each.lookups) },
  { title: "Tokens saved", number: true, text: (each) => count(each.found) },
  { title: "Hit rate", number: true, text: (each) => share(each.found, each.asked) },
];
const TENANTS = [
  { title: "Tenant", text: (each) => each.tenant },
  { title: "Tier 1", number: true, text: (each) => bytes(each.tier1_bytes) },
  { title: "Quota", number: true, text: (each) => (each.quota_bytes === null ? "no bound" : bytes(each.quota_bytes)) },
  { title: "Leases", number: true, text: (each) => count(each.leases) },
  { title: "Pins", number: true, text: (each) => count(each.pins) },
  { title: "Named pins", number: true, text: (each) => count(each.named_pins) },
];
const HOLDS = ["What", "Namespace", "Pages", "Tokens", "Slots", "Since"];
const KINDS = { pin: "pin", source: "page to copy from", reservation: "reservation" };

// A table under `place`, made once: a row an entry, whose first cell `first` may make.
class List {
  constructor(place, caption, columns, empty, first = null) {
    this.place = byId(place);
    this.columns = columns;
    this.empty = el("p", { class: "empty" }, empty);
    this.note = el("p", { class: "quiet note" });
    this.first = first;
    this.body = el("tbody");
    const head = columns.map((each) => el("th", { scope: "col", class: each.number ? "number" : null }, each.title));
    this.table = el(
      "table",
      { class: "list" },
      el("caption", { class: "unseen" }, caption),
      el("thead", null, el("tr", null, head)),
      this.body,
    );
    this.place.append(this.empty, this.table, this.note);
  }

  show(entries, leftOut) {
    this.empty.hidden = entries.length > 0;
    this.table.hidden = entries.length === 0;
    say(this.note, leftOut > 0 ? `${count(leftOut)} more are not shown: these are the largest.` : "");
    keyed(
      this.body,
      entries,
      (each) => each.number ?? each.tenant,
      (each) => this.row(each),
      (row, each) => this.update(row, each),
    );
  }

  row(entry) {
    const row = el("tr", null, this.columns.map((each) => cell(each, "")));
    if (this.first !== null) row.cells[0].append(this.first(entry));
    return row;
  }

  update(row, entry) {
    this.columns.forEach((column, place) => {
      const target = place === 0 && this.first !== null ? row.cells[0].querySelector(".name") : row.cells[place];
      say(target, column.text(entry));
    });
    row.classList.toggle("late", entry.expired === true);
  }
}

// Leases, each of which can be opened to see its holds.
export class Leases {
  constructor() {
    this.opened = new Set();
    this.names = new Map();
    this.list = new List(
      "lease-table",
      "Leases",
      LEASES,
      "No leases: no worker is attached to the store.",
      (entry) =>
        el(
          "button",
          { type: "button", class: "opens", "aria-expanded": "false", click: () => this.toggle(entry.number) },
          el("span", { class: "name" }),
        ),
    );
  }

  show(leases, leftOut, namespaces) {
    this.names = new Map(namespaces.map((each) => [each.number, each.name || `number ${each.number}`]));
    // What is opened below a row would be taken for an entry that is gone.
    const details = new Map([...this.list.body.querySelectorAll("tr.holds")].map((each) => [each.dataset.of, each]));
    for (const each of details.values()) each.remove();
    this.list.show(leases, leftOut);
    for (const row of this.list.body.querySelectorAll("tr[data-key]")) {
      const detail = details.get(row.dataset.key);
      if (detail !== undefined) row.after(detail);
    }
    const there = new Set(leases.map((each) => each.number));
    for (const each of this.opened) if (!there.has(each)) this.opened.delete(each);
  }

  async toggle(number) {
    if (!this.opened.delete(number)) this.opened.add(number);
    const row = this.rowOf(number);
    row.querySelector("button").setAttribute("aria-expanded", String(this.opened.has(number)));
    if (this.opened.has(number)) await this.load(number);
    else this.detailOf(number)?.remove();
  }

  async refresh() {
    for (const each of this.opened) await this.load(each);
  }

  async load(number) {
    try {
      const answer = await ask("api/holds", { lease: number });
      if (!this.opened.has(number)) return;
      const cellOf = this.detailOf(number)?.cells[0] ?? this.makeDetail(number);
      cellOf?.replaceChildren(...this.holds(answer));
    } catch (error) {
      if (!(error instanceof Refused || error instanceof NoAnswer)) throw error;
    }
  }

  makeDetail(number) {
    const place = el("td", { colspan: LEASES.length });
    this.rowOf(number)?.after(el("tr", { class: "holds", "data-of": number }, place));
    return place;
  }

  rowOf(number) {
    return this.list.body.querySelector(`tr[data-key="${number}"]`);
  }

  detailOf(number) {
    return this.list.body.querySelector(`tr[data-of="${number}"]`);
  }

  holds(answer) {
    if (answer.holds.length === 0) return ["It holds nothing."];
    const columns = HOLDS.map((title, place) => ({ title, number: place > 1 }));
    const rows = answer.holds.map((each) => [
      KINDS[each.kind] + (each.announced_tokens > 0 ? `, announced to ${count(each.announced_tokens)} tokens` : ""),
      this.names.get(each.namespace) ?? "gone",
      count(each.pages) + (each.detached_pages > 0 ? `, ${count(each.detached_pages)} detached` : ""),
      count(each.tokens),
      count(each.slots),
      duration(each.age),
    ]);
    const more = answer.left_out > 0 ? [`${some(answer.left_out, "more hold")} not shown.`] : [];
    return [table("Holds", columns, rows), ...more];
  }
}

export class Namespaces {
  constructor() {
    const empty = "No namespaces: no worker has opened one.";
    this.namespaces = new List("namespace-table", "Namespaces", NAMESPACES, empty);
    this.tenants = new List("tenant-table", "Tenants", TENANTS, "No tenant has anything.");
  }

  show(state) {
    this.namespaces.show(state.namespaces, state.left_out.namespaces);
    this.tenants.show(state.tenants, state.left_out.tenants);
  }
}
