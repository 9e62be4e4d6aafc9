// Best items: a user, filters by the items' columns, and the items of one generation with their columns.

import { call, model as path, Refusal } from "./api.js";
import { quote } from "./commands.js";
import { button, code, field, h, replace, section, table } from "./dom.js";
import { milliseconds, score } from "./formats.js";
import { bodyOf, inputFields, literal, signatureOf } from "./tryit.js";

const MOST = 1000, NUMBER = /^-?\d+(\.\d+)?([eE][+-]?\d+)?$/;
// What was typed, by model, kept for a later visit.
const kept = new Map();

const isText = column => column.dtype === "string";
const members = text => text.split(",").map(part => part.trim()).filter(Boolean);

// A number's own digits: an int64 would lose some as a JavaScript number.
function literalOf(column, text) {
  if (isText(column)) return JSON.stringify(text);
  if (!NUMBER.test(text)) throw new Error(`${column.name}: expected a number, got ${text}`);
  return text;
}

// The JSON of a clause; "" for none. chosen: { mode, low, high, set }.
export function clauseOf(column, chosen) {
  if (chosen.mode === "range") {
    const ends = [chosen.low, chosen.high].map(end => (end || "").trim()), filled = ends.some(Boolean);
    return filled ? `[${ends.map(end => end ? literalOf(column, end) : "null").join(", ")}]` : "";
  }
  const set = members(chosen.set || "").map(text => literalOf(column, text)).join(", ");
  if (!set || !chosen.mode) return "";
  const among = isText(column) ? `[${set}]` : `{"in": [${set}]}`;
  return chosen.mode === "not" ? `{"not": ${among}}` : among;
}

// The text of the filter; "" if nothing is filtered.
export function filterOf(columns, filters) {
  const clauses = columns.map(column => [column.name, clauseOf(column, filters.get(column.name) || {})]).filter(([, clause]) => clause);
  return clauses.length ? `{${clauses.map(([name, clause]) => `${JSON.stringify(name)}: ${clause}`).join(", ")}}` : "";
}

// One row of the filters: the column, how it is compared, and with what.
function filterRow(column, chosen, changed) {
  const label = `${column.name}, ${column.ragged ? `list of ${isText(column) ? "texts" : "numbers"}` : isText(column) ? "text" : "number"}`;
  const input = (key, placeholder, name) => h("input", { value: chosen[key] || "", placeholder, autocomplete: "off", spellcheck: false, "aria-label": `${column.name} ${name}`, class: key === "set" ? "grow" : "small", oninput: event => { chosen[key] = event.target.value; changed(); } });
  const values = h("span", { class: "row grow" });
  const draw = () => replace(values,
    chosen.mode === "range" ? [input("low", "from", "from"), h("span", { class: "soft" }, "to"), input("high", "to", "to")] : [],
    chosen.mode === "in" || chosen.mode === "not" ? input("set", isText(column) ? "a, b" : "1, 2", "values") : []);
  const modes = [["", "any"], ...(isText(column) ? [] : [["range", "from … to"]]), ["in", "one of"], ["not", "not one of"]];
  const how = h("select", { "aria-label": label, onchange: () => { chosen.mode = how.value; draw(); changed(); } }, modes.map(([value, text]) => h("option", { value, selected: value === (chosen.mode || "") }, text)));
  draw();
  return h("div", { class: "filter" }, h("span", { title: label }, column.name), how, values);
}

const shown = value => value === null || value === undefined ? null : Array.isArray(value) ? value.join(", ") : typeof value === "number" ? score(value) : value;

export function bestView(page) {
  const fields = h("div", { class: "fields" }), lines = h("div", { class: "lines" }), result = h("div", { class: "result", "aria-live": "polite" });
  const element = h("div", { class: "halves wide best" }, h("div", { class: "stacked" }, section("User and filters", fields), section("The same call", lines)), section("Items", result));
  const state = kept.get(page.name) || { values: new Map(), filters: new Map(), k: "10", source: "model", like: "" };
  kept.set(page.name, state);
  let ranks = null, signature = null;

  async function look() {
    try { ({ signature } = await signatureOf(page.name)); } catch (error) { replace(fields, h("p", { class: "problem" }, error.message)); return; }
    ranks = signature.ranks;
    if (!ranks) { replace(fields, h("p", { class: "soft" }, "This version ranks no items. Send candidates, under Try it.")); replace(result); return; }
    for (const i of ranks.inputs) if (!state.values.has(i.name)) state.values.set(i.name, i.example);
    for (const c of ranks.columns) if (!state.filters.has(c.name)) state.filters.set(c.name, {});
    const find = button("Find", () => go(find), { class: "main" });
    const count = h("input", { type: "number", min: "1", max: String(MOST), value: state.k, class: "small", oninput: () => { state.k = count.value; draw(); } });
    if (!ranks.sources.includes(state.source)) state.source = "model";
    const like = h("input", { value: state.like, autocomplete: "off", spellcheck: false, oninput: () => { state.like = like.value; draw(); } });
    const ofItem = field("Like item", like), ofUser = h("div", {}, inputFields(ranks, state.values, draw));
    const show = () => { ofItem.hidden = state.source !== "like"; ofUser.hidden = state.source !== "model"; };
    const source = h("select", { onchange: () => { state.source = source.value; show(); draw(); } }, ranks.sources.map(value => h("option", { value, selected: value === state.source }, value)));
    show();
    replace(fields, field("Ranked by", source), ofItem, ofUser,
      ranks.columns.length ? h("div", { class: "filters", role: "group", "aria-label": "Filters" }, ranks.columns.map(c => filterRow(c, state.filters.get(c.name), draw))) : h("p", { class: "soft" }, "The items have no columns to filter on: give them an entity with filters."),
      h("div", { class: "row between" }, field("Number of items", count),
        h("div", { class: "row" }, button("Reset", () => { state.values.clear(); state.filters.clear(); Object.assign(state, { k: "10", source: "model", like: "" }); look(); }, { class: "quiet" }), find)));
    replace(result, h("p", { class: "soft" }, "The data port answers it like any other request."));
    draw();
  }

  const most = () => Math.min(MOST, Math.max(1, Math.floor(Number(state.k) || 10)));

  // What ranks the items, as inputs: of another source than the model, without the user's.
  function source() {
    if (state.source !== "like") return { source: JSON.stringify(state.source) };
    return { like: literalOf({ name: "like", dtype: ranks.dtype }, state.like.trim()) };
  }

  function body() {
    const filter = filterOf(ranks.columns, state.filters), own = state.source === "model";
    const more = [...(own ? [] : Object.entries(source()).map(([name, value]) => `${JSON.stringify(name)}: [${value}]`)), ...(filter ? [`"filter": [${JSON.stringify(filter)}]`] : [])].join(", ");
    if (!own) return `{"inputs": {${more}}}`;
    const text = bodyOf(ranks, state.values);
    return more ? `${text.slice(0, -2)}${ranks.inputs.length ? ", " : ""}${more}}}` : text;
  }

  function draw() {
    const base = `${location.protocol}//${location.hostname}:${signature.data_port || 8501}`, route = `/v1/models/${encodeURIComponent(page.name)}:predict`;
    let sent, filter;
    try { sent = body(); filter = filterOf(ranks.columns, state.filters); } catch (error) { replace(lines, h("p", { class: "problem" }, error.message)); return; }
    // recommend() takes one user's values: what is within the outer list.
    const own = state.source === "model", by = own ? "" : Object.entries(source()).map(([name, value]) => `, ${name}=${value}`).join("");
    const user = (own ? ranks.inputs : []).map(i => `${JSON.stringify(i.name)}: ${literal(state.values.get(i.name)).replace(/^\[([^]*)\]$/, "$1").trim() || "[]"}`).join(", ");
    replace(lines,
      code(`curl -s ${quote(base + route)} -H 'x-top-items: ${most()}' --json ${quote(sent)}`, "curl"),
      code(`from freshet_serving import Client\n\nuser = {${user}}\n${filter ? `filters = ${literal(filter)}\n` : ""}with Client(${JSON.stringify(base)}) as client:\n    best = client.recommend(${JSON.stringify(page.name)}, user=user, k=${most()}${filter ? ", filters=filters" : ""}${by})\nprint(best)`, "Python"));
  }

  async function go(find) {
    find.disabled = true;
    try {
      const reply = await call("POST", path(page.name, `/try?top_items=${most()}`), body()), items = reply.items;
      const columns = Object.keys(items.columns), asked = most();
      const facts = [["generation", reply.generation], ["answered in", milliseconds(reply.took_ms)], ["items", items.ids.length < asked ? `${items.ids.length} of ${asked}` : String(asked)], ["vectors of", reply.item_generation]];
      replace(result,
        h("dl", { class: "facts" }, facts.filter(([, v]) => v).map(([n, v]) => h("div", {}, h("dt", {}, n), h("dd", {}, v)))),
        items.ids.length ? table("Items", [{ title: "Place", number: true }, { title: "Item" }, { title: "Score", number: true }, ...columns.map(title => ({ title, number: !isText(ranks.columns.find(c => c.name === title) || {}) }))],
          items.ids.map((id, n) => [String(n + 1), h("b", {}, id), score(items.scores[n]), ...columns.map(c => shown(items.columns[c][n]))])) : h("p", { class: "soft" }, "No item passes."));
    } catch (error) {
      replace(result, h("p", { class: "problem", role: "alert" }, error instanceof Refusal && error.status ? `${error.status}: ${error.message}` : error.message));
    }
    find.disabled = false;
    find.focus();
  }

  look();
  return { element, look };
}
