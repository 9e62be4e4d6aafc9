// The overview: current load, models, sessions, workers and recent changes.

import { get } from "./api.js";
import { ask } from "./actions.js";
import { lineChart, sparkline } from "./charts.js";
import { badge, button, h, keyed, replace, section, table } from "./dom.js";
import { bytes, clock, kindOf, milliseconds, number, percent, seconds, short, trainerKind, trainerLine, troubles } from "./formats.js";

const MOST_LINES = 5;
const errorsOf = sample => Object.entries(sample.codes).reduce((sum, [code, rate]) => Number(code) >= 400 ? sum + rate : sum, 0);

export function overview({ refresh }) {
  const figures = h("dl", { class: "figures" });
  const rates = lineChart("Requests per second", short), latency = lineChart("Latency", milliseconds), errors = lineChart("Refused and failed per second", short);
  const models = h("div", { class: "cards" }), sessions = h("div", {}), trail = h("div", {});
  const wrong = h("div", { class: "wrong", role: "status" });
  const element = h("div", { class: "page" },
    h("h1", { class: "hidden" }, "Overview"),
    wrong,
    figures,
    h("div", { class: "charts" }, rates, latency, errors),
    section("Models", models),
    h("div", { class: "halves" }, section("Sessions and workers", sessions), section("Recent changes", trail)));
  let asked = 0, entries = [];

  async function audit() {
    asked = Date.now();
    try { entries = (await get("/admin/audit")).entries; } catch { return; }
    replace(trail, entries.length ? h("ol", { class: "trail" }, entries.slice(0, 12).map(e => h("li", {},
      h("time", {}, clock(e.at)), h("span", { class: "said" }, e.what), badge(e.outcome === "done" ? "done" : e.outcome.split(":")[0], e.outcome === "done" ? "good" : "bad"),
      e.outcome.startsWith("refused") ? h("small", {}, e.outcome) : null))) : h("p", { class: "soft" }, "No changes through this port since it was opened."));
  }

  function draw(state) {
    const { info, samples } = state, last = samples[samples.length - 1];
    if (Date.now() - asked > 5000) audit();
    const now = last ? last.at : Date.now() / 1000, names = Object.keys(info.models);
    // The newest sample with latencies: a second without requests has no percentiles.
    const timed = [...samples].reverse().find(x => x.latency_ms && now - x.at < 10);
    // Ages as of now, not as of the newest delta's arrival: they grow while deltas are held or late.
    const ages = Object.values(info.models).map(m => m.generation ? m.served[String(m.generation).split(".")[0]] : null).filter(s => s && s.delta_count).map(s => Math.max(0, now - s.published_at));
    drawWrong(info);
    const failing = last ? errorsOf(last) : null;
    const shown = [
      ["Requests", last ? short(last.requests) : "–", "per second"],
      ["Rows scored", last ? short(Object.values(last.models).reduce((sum, m) => sum + m.rows, 0)) : "–", "per second"],
      ["p50", timed ? milliseconds(timed.latency_ms.p50) : "–", "of all predictions"],
      ["p99", timed ? milliseconds(timed.latency_ms.p99) : "–", "of all predictions"],
      ["Errors", last ? (last.requests ? percent(failing / last.requests, 2) : short(failing)) : "–", last && last.requests ? "of requests" : "per second"],
      ["Freshness", ages.length ? seconds(Math.floor(Math.max(...ages))) : "–", "since the newest delta, oldest model"],
    ];
    keyed(figures, shown, x => x[0], ([name, value, what]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, value), h("small", {}, what))));
    const points = of => samples.map(x => [x.at, of(x)]);
    const busiest = last ? Object.entries(last.models).sort((a, b) => b[1].requests - a[1].requests).slice(0, MOST_LINES).map(([name]) => name).sort() : [];
    rates.draw(busiest.map(name => ({ name, points: points(x => x.models[name] ? x.models[name].requests : null) })), now);
    latency.draw(["p50", "p99"].map(name => ({ name, points: points(x => x.latency_ms ? x.latency_ms[name] : null) })), now);
    errors.draw([{ name: "4xx", test: c => c < 500 }, { name: "5xx", test: c => c >= 500 }].map(({ name, test }) => ({
      name, points: points(x => Object.entries(x.codes).reduce((sum, [c, r]) => Number(c) >= 400 && test(Number(c)) ? sum + r : sum, 0)),
    })), now);
    const bad = troubles(info.models).map(t => t.name);
    names.sort((a, b) => bad.includes(b) - bad.includes(a));
    keyed(models, names.map(name => ({ name, model: info.models[name], live: last ? last.models[name] : null, second: Math.floor(now) })), x => x.name,
      ({ name, model, live }) => modelCard(name, model, live, samples, now));
    drawSessions(info);
  }

  function drawWrong(info) {
    keyed(wrong, troubles(info.models), t => `${t.name} ${t.state} ${t.why}`, t => h("div", { class: `notice ${t.kind}` },
      h("p", {}, h("b", {}, h("a", { href: `#/models/${encodeURIComponent(t.name)}` }, t.name), ` ${t.state}`), `: ${t.why}`, t.published ? `. The served generation was published at ${clock(t.published)}.` : "")));
  }

  function drawSessions(info) {
    if (sessions.contains(document.activeElement) && document.activeElement.tagName === "INPUT") return;
    const groups = Object.entries(info.groups || {});
    const workers = info.workers || [];
    const planned = groups.some(([, g]) => g.planned);
    replace(sessions,
      groups.length ? table("Session groups", [{ title: "Group" }, { title: "Sessions", number: true }, { title: "Waiting rows", number: true }, { title: planned ? "Planned cores" : "Resize" }],
        groups.map(([name, g]) => [name, number(g.sessions), number(g.queue_rows), planned ? cores(g.planned) : resizer(name, g.sessions, refresh)])) : h("p", { class: "soft" }, "No sessions yet."),
      workers.length ? table("Worker processes", [{ title: "Worker" }, { title: "State" }, { title: "Connections", number: true }, { title: "Restarts", number: true }, { title: "Heartbeat age", number: true }],
        workers.map(w => [`worker ${w.worker}`, badge(w.up ? "up" : "down", w.up ? "good" : "bad"), number(w.connections), number(w.restarts), w.silent_s === null ? null : seconds(w.silent_s)]))
        : h("p", { class: "soft" }, "A single process serves requests: there are no workers."));
  }

  return { element, title: "Overview", update: draw };
}

function cores(planned) {
  if (!planned) return "–";
  const own = planned.cores ? `${planned.cores}: ` : "", lent = planned.lent.length ? `; ${planned.lent.length} lent to trainers` : "";
  return `${own}${planned.why}${lent}`;
}

function resizer(group, sessions, refresh) {
  const input = h("input", { type: "number", min: "1", max: "1024", value: String(sessions), "aria-label": `Sessions of ${group}`, class: "small" });
  return h("span", { class: "row" }, input, button("Set", async () => {
    const wanted = Number(input.value);
    const reply = await ask({
      title: `Resize ${group}`, what: `The group gets ${wanted} sessions instead of ${sessions}, in each serving process. Requests are not interrupted.`,
      method: "PUT", path: `/admin/groups/${encodeURIComponent(group)}`, body: { sessions: wanted }, verb: "Resize", done: () => `${group}: ${wanted} sessions`,
    });
    input.blur();
    if (reply) refresh();
  }, { class: "quiet" }));
}

function modelCard(name, model, live, samples, now) {
  const version = model.generation ? String(model.generation).split(".")[0] : null, served = version ? model.served[version] : null;
  const state = served && served.chain ? served.chain.state : "END", labels = Object.entries(model.labels || {});
  const memory = served ? Object.values(served.memory).reduce((a, b) => a + b, 0) : null;
  const rates = samples.map(x => [x.at, x.models[name] ? x.models[name].requests : 0]);
  const broken = model.versions.find(v => v.error);
  return h("article", { class: "card" },
    h("span", { class: "card-head" }, h("h3", {}, h("a", { class: "name", href: `#/models/${encodeURIComponent(name)}` }, name)), h("span", { class: "generation" }, model.generation || "none"), badge(served ? state : "not served", served ? kindOf(state) : "bad")),
    h("span", { class: "card-rate" }, h("b", {}, live ? short(live.requests) : "–"), h("small", {}, "requests/s"), sparkline(rates, now, `Requests to ${name} in five minutes`)),
    h("span", { class: "card-facts" },
      fact("age", served ? seconds(Math.floor(served.age_s)) : "–"),
      fact("last delta took", served && served.delta_count ? seconds(served.last_freshness_s) : "–"),
      fact("memory", bytes(memory)),
      fact("deltas", served ? number(served.delta_count) : "–")),
    labels.length ? h("span", { class: "labels" }, labels.map(([label, v]) => badge(`${label} → ${v}`))) : null,
    model.trainer ? h("span", { class: "labels" }, badge(`trainer ${trainerLine(model.trainer)}`, trainerKind(model.trainer))) : null,
    served && state !== "CURRENT" ? h("span", { class: "why" }, served.chain.reason) : broken ? h("span", { class: "why" }, `version ${broken.version}: ${broken.error}`) : null);
}

const fact = (name, value) => h("span", {}, h("small", {}, name), " ", h("b", {}, value));
