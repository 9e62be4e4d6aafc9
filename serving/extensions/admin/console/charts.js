// Small charts, as SVG. A chart is drawn for its current width, and redrawn with every sample.

import { h, s } from "./dom.js";

export const SPAN_S = 300;

function nice(top) {
  if (!(top > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(top));
  return [1, 2, 2.5, 5, 10].map(n => n * unit).find(n => n >= top);
}

// series: [{ name, points: [[unix, value]] }]. format: of values. Returns an element with draw(series, now).
export function lineChart(title, format) {
  const legend = h("div", { class: "legend" });
  const svg = s("svg", { class: "chart", role: "img" });
  const figure = h("figure", { class: "figure" }, h("figcaption", {}, h("span", { class: "figure-title" }, title), legend), svg);
  figure.draw = (series, now) => {
    const width = Math.max(220, Math.floor(svg.clientWidth || 560)), height = 132, left = 50, bottom = 18, top = 8;
    const values = series.flatMap(one => one.points.map(p => p[1])).filter(v => v !== null);
    const most = nice(Math.max(0, ...values)), x = at => left + (width - left - 2) * (1 - (now - at) / SPAN_S);
    const y = value => top + (height - top - bottom) * (1 - value / most);
    const grid = [0, 0.5, 1].map(part => [
      s("line", { class: "grid", x1: left, x2: width, y1: y(part * most), y2: y(part * most) }),
      s("text", { class: "tick", x: left - 6, y: y(part * most) + 4, "text-anchor": "end" }, part || most === 0 ? format(part * most) : "0"),
    ]);
    const ticks = [[300, "5 min ago", "start"], [150, "2½", "middle"], [0, "now", "end"]].map(([age, text, anchor]) =>
      s("text", { class: "tick", x: x(now - age), y: height - 3, "text-anchor": anchor }, text));
    const lines = series.map((one, n) => s("polyline", { class: `line line${n}`, points: one.points
      .filter(p => p[1] !== null && now - p[0] <= SPAN_S).map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    const last = one => { const seen = one.points.filter(p => p[1] !== null); return seen.length ? format(seen[seen.length - 1][1]) : "none"; };
    svg.setAttribute("aria-label", `${title}: ${series.map(one => `${one.name} ${last(one)} now`).join(", ") || "nothing yet"}; highest ${values.length ? format(Math.max(...values)) : "none"} in five minutes`);
    svg.replaceChildren(...grid.flat(), ...ticks, ...lines);
    legend.replaceChildren(...series.map((one, n) => h("span", {}, h("i", { class: `key key${n}`, "aria-hidden": "true" }), one.name, " ", h("b", {}, last(one)))));
  };
  return figure;
}

export function sparkline(points, now, text) {
  const width = 120, height = 26, seen = points.filter(p => now - p[0] <= SPAN_S), top = Math.max(1e-9, ...seen.map(p => p[1] || 0));
  const line = seen.map(([at, v]) => `${(width * (1 - (now - at) / SPAN_S)).toFixed(1)},${(height - 2 - (height - 4) * (v || 0) / top).toFixed(1)}`).join(" ");
  return s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": text }, s("polyline", { class: "line line0", points: line }));
}

// One tick for each delta, its height the logarithm of its rows. entries: oldest first. pick: called with an entry.
export function deltaStrip(entries, pick) {
  const width = 1000, height = 64, room = width / Math.max(entries.length, 24);
  const most = Math.log1p(Math.max(1, ...entries.map(e => e.here ? e.here.rows + e.here.removed : 0)));
  const ticks = entries.map((entry, n) => {
    const rows = entry.here ? entry.here.rows + entry.here.removed : 0, tall = 8 + 40 * Math.log1p(rows) / most;
    const x = width - (entries.length - n) * room;
    const bar = s("rect", { class: `delta ${entry.state}${entry.here && entry.here.verdict === "out of line" ? " held" : ""}`, x: x.toFixed(1), y: (height - 8 - tall).toFixed(1), width: Math.max(1.5, Math.min(14, room * 0.7)).toFixed(1), height: tall.toFixed(1), rx: 1.5 });
    const hit = s("rect", { class: "hit", x: x.toFixed(1), y: 0, width: room.toFixed(1), height, onclick: () => pick(entry) }, s("title", {}, `${entry.generation}: ${rows} rows, ${entry.state}`));
    return [bar, hit];
  });
  return s("svg", { class: "strip", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    s("line", { class: "grid", x1: 0, x2: width, y1: height - 6, y2: height - 6 }), ticks);
}

// A share as a bar, beside its number.
export function meter(share, label, kind = "") {
  const wide = Math.round(100 * Math.min(1, Math.max(0, share || 0)));
  return s("svg", { class: `meter ${kind}`, viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("rect", { class: "rail", width: 100, height: 6, rx: 1 }), s("rect", { class: "part", width: wide, height: 6, rx: 1 }));
}
