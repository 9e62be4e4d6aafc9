// The tables of a version: rows, memory, and how many lookups found no row.

import { get, model as path } from "./api.js";
import { meter } from "./charts.js";
import { h, replace, section, table } from "./dom.js";
import { bytes, number, percent } from "./formats.js";

const PARTS = { rows: "mapped file rows", index: "index", arena: "delta rows", log: "log on disk", books: "bookkeeping" };
const sum = parts => Object.values(parts).reduce((a, b) => a + b, 0);

export function tablesView(page) {
  const box = h("div", {}), element = section("Tables", box);
  let asked = 0, before = new Map();

  async function look() {
    asked = Date.now();
    let found;
    try { found = await get(path(page.name, "/tables")); } catch (error) { replace(box, h("p", { class: "problem" }, error.message)); return; }
    const rows = found.tables.map(t => {
      // Lookups since the last refresh, if there were any: older ones say nothing about the current rate.
      const was = before.get(t.name) || [0, 0], lookups = t.lookups - was[0] > 0 ? t.lookups - was[0] : t.lookups, defaults = t.lookups - was[0] > 0 ? t.defaults - was[1] : t.defaults;
      const hit = lookups ? 1 - defaults / lookups : null;
      return [h("b", {}, t.name), number(t.rows), `${t.dim} × ${t.dtype}`, h("span", { class: "cell-lines", title: Object.entries(t.nbytes).map(([part, n]) => `${PARTS[part] || part} ${bytes(n)}`).join(", ") }, bytes(sum(t.nbytes)), h("small", {}, `${bytes(t.nbytes.arena)} for deltas`)),
        number(t.lookups), hit === null ? null : h("span", { class: "cell-lines share" }, percent(hit), meter(hit, `Lookups of ${t.name} that found a row`)), hit === null ? null : percent(1 - hit),
        t.tier ? h("span", { class: "cell-lines" }, `${number(t.tier.hot_rows)} rows in memory`, h("small", {}, `${percent(t.tier.hot_lookups / Math.max(1, t.tier.hot_lookups + t.tier.cold_lookups))} of lookups`)) : "all in memory"];
    });
    before = new Map(found.tables.map(t => [t.name, [t.lookups, t.defaults]]));
    const whole = found.tables.reduce((a, t) => a + sum(t.nbytes), 0);
    replace(box,
      h("p", { class: "soft" }, `Generation ${found.generation}: ${number(found.tables.length)} tables with ${number(found.tables.reduce((a, t) => a + t.rows, 0))} rows use ${bytes(whole)}, dense weights ${bytes(found.dense_nbytes)}.`),
      table("Tables", [{ title: "Table" }, { title: "Rows", number: true }, { title: "Shape" }, { title: "Memory", number: true }, { title: "Lookups", number: true }, { title: "Found a row", number: true }, { title: "Default row", number: true }, { title: "Location" }], rows),
      found.remote ? h("dl", { class: "facts" }, Object.entries(found.remote).map(([n, v]) => h("div", {}, h("dt", {}, n), h("dd", {}, number(v))))) : null);
  }

  return { element, look, update() { if (Date.now() - asked > 4000) look(); } };
}
