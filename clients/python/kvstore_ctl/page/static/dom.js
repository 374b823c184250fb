// Elements, made of names, attributes and text. Text is never read as markup.

const SVG = "http://www.w3.org/2000/svg";

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined));
  return element;
}

export function el(name, attributes, ...children) {
  return made(document.createElement(name), attributes, children);
}

export function svg(name, attributes, ...children) {
  return made(document.createElementNS(SVG, name), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

// Sets a text only where it differs, so that what a reader has selected stays.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Lets `parent` have one child an entry, in their order. One that is there stays the same
// element, and keeps focus and whatever was opened in it.
export function keyed(parent, entries, keyOf, make, update) {
  const there = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  entries.forEach((entry, place) => {
    const key = String(keyOf(entry));
    let child = there.get(key);
    if (child === undefined) {
      child = make(entry);
      child.dataset.key = key;
    }
    there.delete(key);
    update(child, entry);
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
  for (const child of there.values()) child.remove();
}

// A table whose cells keep the name of their column, for narrow screens.
export function table(caption, columns, rows) {
  const head = columns.map((each) => el("th", { scope: "col", class: each.number ? "number" : null }, each.title));
  return el(
    "table",
    { class: "plain" },
    el("caption", { class: "unseen" }, caption),
    el("thead", null, el("tr", null, head)),
    el("tbody", null, rows.map((row) => el("tr", null, row.map((value, place) => cell(columns[place], value))))),
  );
}

export function cell(column, value) {
  return el("td", { class: column.number ? "number" : null, "data-label": column.title }, value);
}

// Calls `draw` with the width of an element, in pixels, and again whenever it changes.
export function whenSized(element, draw) {
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(element.clientWidth);
    if (width !== last && width > 0) {
      last = width;
      draw();
    }
  }).observe(element);
}
