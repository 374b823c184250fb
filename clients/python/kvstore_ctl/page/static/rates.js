// From counts that only grow to what happened in between.

// Samples as the server has them, a list a moment, kept for as long as the server keeps them.
export class Samples {
  constructor() {
    this.clear();
  }

  clear() {
    this.columns = {};
    this.fine = [];
    this.coarse = [];
  }

  get newest() {
    return this.fine.length > 0 ? this.fine[this.fine.length - 1].time : -1;
  }

  add(answer) {
    for (const [name, most] of [["fine", 600], ["coarse", 1440]]) {
      const kept = this[name];
      for (const values of answer[name]) {
        const sample = Object.fromEntries(answer.columns.map((column, place) => [column, values[place]]));
        if (kept.length === 0 || sample.time > kept[kept.length - 1].time) kept.push(sample);
      }
      kept.splice(0, Math.max(kept.length - most, 0));
    }
  }
}

// What was asked and found between samples, `width` seconds at a time, as points in time.
// A point without a question has no rate: null.
export function points(samples, width) {
  const found = [];
  let from = samples[0];
  for (const sample of samples.slice(1)) {
    const seconds = sample.time - from.time;
    if (seconds < width * 0.99) continue;
    const asked = sample.asked - from.asked;
    const saved = sample.found - from.found;
    found.push({
      from: from.time,
      time: sample.time,
      asked,
      saved,
      lookups: sample.lookups - from.lookups,
      evicted: sample.evicted - from.evicted,
      returned: sample.returned - from.returned,
      askedRate: asked / seconds,
      savedRate: saved / seconds,
      hitRate: asked > 0 ? saved / asked : null,
    });
    from = sample;
  }
  return found;
}

// The share that was found of what was asked in the last `seconds`, or null.
export function lately(samples, seconds) {
  const last = samples[samples.length - 1];
  const first = samples.find((each) => last !== undefined && each.time >= last.time - seconds);
  if (first === undefined || last.asked === first.asked) return null;
  return (last.found - first.found) / (last.asked - first.asked);
}

// A round number that is not below `value`, for the end of an axis.
export function roundUp(value) {
  if (value <= 0) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((each) => each * size).find((each) => each >= value);
}
