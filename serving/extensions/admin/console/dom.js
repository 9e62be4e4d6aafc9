// Helpers that make elements. Text is always text: no code of this page makes HTML from a string.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string" && !(element instanceof SVGElement)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== undefined && child !== null && child !== false) element.append(child);
  }
  return element;
}

export const h = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const s = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
export const byId = id => document.getElementById(id);
export const replace = (parent, ...children) => parent.replaceChildren(...children.flat(Infinity).filter(c => c || c === 0));

// Gives `parent` one element for each item, and keeps the elements of unchanged items, so that opened details and the
// keyboard focus stay.
export function keyed(parent, items, keyOf, make) {
  const kept = parent._kept || new Map(), now = new Map(), elements = [];
  for (const item of items) {
    const key = keyOf(item), text = JSON.stringify(item), before = kept.get(key);
    const found = before && before.text === text ? before : { text, element: make(item, before && before.element) };
    now.set(key, found);
    elements.push(found.element);
  }
  parent._kept = now;
  const same = parent.children.length === elements.length && elements.every((e, n) => parent.children[n] === e);
  if (!same) parent.replaceChildren(...elements);
}

// A table that becomes a list of cards on narrow screens: each cell has its column's name. Roles are explicit, because
// some browsers drop them when `display` changes.
export function table(caption, columns, rows, options = {}) {
  const head = h("tr", { role: "row" }, columns.map(c => h("th", { scope: "col", role: "columnheader", class: c.number ? "number" : "" }, c.title)));
  const body = rows.map(cells => h("tr", { role: "row" }, cells.map((cell, n) => h("td", {
    role: "cell", class: columns[n].number ? "number" : "", "data-label": columns[n].title,
  }, cell === null || cell === undefined || cell === "" ? "–" : cell))));
  return h("table", { class: `stack ${options.class || ""}`, role: "table" },
    h("caption", { class: options.caption ? "" : "hidden" }, caption),
    h("thead", { role: "rowgroup" }, head), h("tbody", { role: "rowgroup" }, body));
}

export const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);
export const section = (title, ...children) => h("section", { class: "panel", "aria-label": title }, h("h2", {}, title), ...children);
export const field = (label, control, hint) => h("label", { class: "field" }, h("span", {}, label), control, hint ? h("small", {}, hint) : null);
export const button = (text, onclick, attributes = {}) => h("button", { type: "button", onclick, ...attributes }, text);

export function code(text, label) {
  const copied = button("Copy", async () => {
    try { await navigator.clipboard.writeText(text); copied.textContent = "Copied"; }
    catch { const range = document.createRange(); range.selectNodeContents(body); getSelection().removeAllRanges(); getSelection().addRange(range); copied.textContent = "Selected"; }
    setTimeout(() => { copied.textContent = "Copy"; }, 1500);
  }, { class: "quiet copy", "aria-label": `Copy ${label}` });
  const body = h("code", {}, text);
  return h("div", { class: "code" }, h("div", { class: "code-head" }, h("span", {}, label), copied), h("pre", { tabindex: "0", role: "region", "aria-label": label }, body));
}

export function toast(text, bad = false) {
  const element = byId("toast");
  element.textContent = text;
  element.className = bad ? "shown bad" : "shown";
  clearTimeout(element._timer);
  element._timer = setTimeout(() => { element.className = ""; element.textContent = ""; }, 6000);
}
