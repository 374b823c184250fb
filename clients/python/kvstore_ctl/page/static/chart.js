// A picture of a number over time, with a cursor that pointer and arrow keys move.

import { el, svg, whenSized } from "./dom.js";
import { clock } from "./format.js";

const LEFT = 46;
const RIGHT = 6;
const TOP = 8;
const BOTTOM = 20;

// `describe` says in words what a point is; `draw` returns shapes for points, given x and y.
export class Chart {
  constructor(place, { title, height, top, label, describe, draw }) {
    this.options = { height, top, label, describe, draw };
    this.points = [];
    this.span = 600;
    this.now = 0;
    this.at = null;
    this.readout = el("span", { class: "readout", "aria-live": "polite" });
    this.picture = el("div", {
      class: "chart",
      tabindex: 0,
      role: "group",
      "aria-label": title,
      keydown: (event) => this.key(event),
      pointermove: (event) => this.point(event),
      pointerleave: () => this.move(null),
      blur: () => this.move(null),
    });
    place.append(el("h3", { class: "chart-title" }, title, " ", this.readout), this.picture);
    this.title = title;
    whenSized(this.picture, () => this.render());
  }

  // Points of the last `span` seconds before `now`, which are seconds of the server's life.
  show(points, span, now, empty) {
    const marked = this.at === null ? null : this.points[this.at]?.time;
    this.points = points;
    this.span = span;
    this.now = now;
    this.empty = empty;
    const again = points.findIndex((each) => each.time === marked);
    this.at = again < 0 ? null : again;
    this.render();
  }

  get width() {
    return Math.max(this.picture.clientWidth, 120);
  }

  x(time) {
    const inner = this.width - LEFT - RIGHT;
    return LEFT + inner * (1 - (this.now - time) / this.span);
  }

  render() {
    const { height, top, label, draw } = this.options;
    const largest = top(this.points);
    const bottom = height - BOTTOM;
    const y = (value) => bottom - ((bottom - TOP) * value) / largest;
    const lines = [0, largest / 2, largest].map((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, label(value)),
    ]);
    const times = [1, 0.5, 0].map((part) =>
      svg(
        "text",
        {
          class: "tick",
          x: part === 1 ? LEFT : part === 0 ? this.width - RIGHT : this.x(this.now - this.span / 2),
          y: height - 4,
          "text-anchor": part === 1 ? "start" : part === 0 ? "end" : "middle",
        },
        part === 0 ? "now" : spanText(this.span * part),
      ),
    );
    const cursor = this.at === null ? null : this.cursor(bottom);
    const seen = this.points.filter((each) => each.time > this.now - this.span);
    const nothing =
      seen.length > 0 ? null : svg("text", { class: "nothing", x: LEFT + 8, y: bottom - 10 }, this.empty ?? "");
    this.picture.replaceChildren(
      svg(
        "svg",
        { width: this.width, height, role: "img", "aria-label": this.summary(seen) },
        lines,
        draw(seen, (time) => Math.max(this.x(time), LEFT), y),
        times,
        cursor,
        nothing,
      ),
    );
    const marked = this.at === null ? null : this.points[this.at];
    const text = marked ? this.options.describe(marked, this.timeOf(marked.time)) : "";
    if (this.readout.textContent !== text) this.readout.textContent = text;
  }

  summary(points) {
    const last = points[points.length - 1];
    const latest = last ? this.options.describe(last, "latest") : (this.empty ?? "nothing yet");
    return `${this.title}, the last ${spanText(this.span).slice(1)}; ${latest}`;
  }

  cursor(bottom) {
    const marked = this.points[this.at];
    const place = this.x((marked.time + marked.from) / 2);
    return svg("line", { class: "cursor", x1: place, x2: place, y1: TOP, y2: bottom });
  }

  timeOf(time) {
    return clock(new Date(Date.now() - (this.now - time) * 1000));
  }

  move(at) {
    if (at === this.at) return;
    this.at = at;
    this.render();
  }

  point(event) {
    const from = this.picture.getBoundingClientRect().left;
    const inner = this.width - LEFT - RIGHT;
    const time = this.now - this.span * (1 - (event.clientX - from - LEFT) / inner);
    const at = this.points.findIndex((each) => each.time >= time && each.from <= time);
    this.move(at < 0 ? null : at);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || this.points.length === 0) return;
    event.preventDefault();
    const last = this.points.length - 1;
    const from = this.at ?? (step < 0 ? last + 1 : -1);
    this.move(Math.min(Math.max(from + step, 0), last));
  }
}

function spanText(seconds) {
  if (seconds >= 7200) return `−${Math.round(seconds / 3600)} h`;
  return seconds >= 120 ? `−${Math.round(seconds / 60)} min` : `−${Math.round(seconds)} s`;
}

// A column for each point: `value` of it, from the axis up.
export function columns(points, x, y, value, kind) {
  return points
    .filter((each) => value(each) > 0)
    .map((each) => {
      const left = x(each.from);
      const width = Math.max(x(each.time) - left - 0.5, 1);
      return svg("rect", { class: kind, x: left, width, y: y(value(each)), height: y(0) - y(value(each)) });
    });
}

// A stair through the points that have a value; where one has none the line is broken.
export function stair(points, x, y, value, kind) {
  let path = "";
  let broken = true;
  for (const each of points) {
    const level = value(each);
    if (level === null) {
      broken = true;
      continue;
    }
    path += `${broken ? "M" : "L"}${x(each.from).toFixed(1)} ${y(level).toFixed(1)}H${x(each.time).toFixed(1)}`;
    broken = false;
  }
  return svg("path", { class: kind, d: path, fill: "none" });
}
