// Numbers as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function count(value) {
  return whole.format(value);
}

// A count in few characters: 1,234 and 12.3 k, 4.5 M.
export function short(value) {
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) {
      const scaled = value / (unit === "k" ? 1e3 : size);
      return `${scaled.toFixed(scaled < 100 ? 1 : 0)} ${unit}`;
    }
  }
  return count(value);
}

export function bytes(value) {
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(unit > 0 && value < 10 ? 1 : 0)} ${UNITS[unit]}`;
}

export function share(part, all) {
  if (all <= 0) return "–";
  const percent = (100 * part) / all;
  return `${percent.toFixed(percent > 0 && percent < 99.95 ? 1 : 0)} %`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

// "1 page", "2 pages".
export function some(value, noun, plural = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : plural}`;
}

export function clock(date) {
  return date.toTimeString().slice(0, 8);
}
