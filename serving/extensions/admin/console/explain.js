// Explain: the parts of a score under one generation, or under two side by side with the differences.

import { call, get, model as path, Refusal } from "./api.js";
import { freshet } from "./commands.js";
import { badge, button, code, field, h, replace, section, table } from "./dom.js";
import { milliseconds, number, score, signed } from "./formats.js";
import { bodyOf, inputFields, signatureOf, typed } from "./tryit.js";

const MOST_IDS = 12, MOST_EVENTS = 16;

export function explainView(page) {
  const fields = h("div", { class: "fields" }), result = h("div", { class: "stacked", "aria-live": "polite" });
  const element = h("div", { class: "stacked" }, section("Score to explain", fields), result);
  const row = h("input", { type: "number", min: "0", value: "0", class: "small" });
  const request = h("input", { maxlength: "128", autocomplete: "off", placeholder: "instead of the inputs" });
  const generation = h("select", {}), against = h("select", {});
  let signature = null, values = null, seen = "";

  async function look() {
    try { ({ signature, values } = await signatureOf(page.name)); } catch (error) { replace(fields, h("p", { class: "problem" }, error.message)); return; }
    const go = button("Explain", () => explain(go), { class: "main" });
    replace(fields,
      h("div", { class: "row form" }, field("Row", row), field("Generation", generation), field("Against", against), field("Recorded request id", request)),
      h("details", {}, h("summary", {}, "Request inputs"), h("div", { class: "fields inset" }, inputFields(signature, values, () => {}))),
      h("div", { class: "row end" }, button("Reset", () => { typed.delete(page.name); look(); }, { class: "quiet" }), go));
  }

  async function generations() {
    let entries = [];
    try { entries = (await get(path(page.name, "/timeline?most=100"))).entries; } catch { /* the served generation can still be explained */ }
    const line = entries.filter(e => e.kind === "delta" && (e.state === "served" || e.state === "current") && e.in_memory);
    const names = line.map(e => e.generation), last = line[line.length - 1];
    if (last) names.push(last.parent);
    const [a, b] = [generation.value, against.value];
    replace(generation, h("option", { value: "" }, "served generation"), names.slice(1).map(n => h("option", { value: n, selected: n === a }, n)));
    replace(against, h("option", { value: "" }, "none"), names.slice(1).map((n, at) => h("option", { value: n, selected: b ? n === b : at === 0 }, n)));
  }

  async function explain(go) {
    go.disabled = true;
    const more = [`"row": ${Math.max(0, Math.floor(Number(row.value) || 0))}`];
    if (generation.value) more.push(`"generation": ${JSON.stringify(generation.value)}`);
    if (against.value) more.push(`"against": ${JSON.stringify(against.value)}`);
    const asked = request.value.trim() ? `"request_id": ${JSON.stringify(request.value.trim())}` : bodyOf(signature, values).slice(1, -1);
    try {
      const reply = await call("POST", path(page.name, "/explain"), `{${asked}, ${more.join(", ")}}`);
      replace(result, shownOf(reply), section("Command line", code(freshet("explain", page.name, ...(request.value.trim() ? ["--request-id", request.value.trim()] : ["--request", "request.json"]), "--row", row.value || "0",
        ...(generation.value ? ["--generation", generation.value] : []), ...(against.value ? ["--against", against.value] : [])), "freshet")));
      result.querySelector("h2").scrollIntoView({ block: "nearest" });
    } catch (error) {
      replace(result, h("p", { class: "problem panel", role: "alert" }, error instanceof Refusal && error.status ? `${error.status}: ${error.message}` : error.message));
    }
    go.disabled = false;
    go.focus();
  }

  look();
  generations();
  return {
    element, look,
    update(model) { if (model.generation !== seen) { seen = model.generation; generations(); } },
  };
}

const flat = outputs => Object.entries(outputs).map(([name, values]) => `${name} ${values.map(score).join(", ")}`).join("; ");

// Draws a reply of POST .../explain.
export function shownOf(reply) {
  const [one, other] = reply.sides;
  const sides = h("div", { class: other ? "halves" : "" }, reply.sides.map((side, n) => section(n ? `Against ${side.generation}` : `As of ${side.generation}`, sideOf(side))));
  const moved = (reply.moved || []).length ? section("What moved the score", movedOf(reply)) : null;
  const names = [...new Set(reply.sides.flatMap(side => Object.keys(side.inputs)))];
  const features = section("Features", table("Features", [{ title: "Feature" }, { title: one.generation }, ...(other ? [{ title: other.generation }] : [])],
    names.map(name => [h("span", { class: "cell-lines" }, h("b", {}, name), aboutOf(one.inputs[name] || other.inputs[name])), idsOf(one.inputs[name]), ...(other ? [idsOf(other.inputs[name])] : [])]), { class: "features" }));
  const histories = [...new Set(reply.sides.flatMap(side => Object.keys(side.histories || {})))].map(name =>
    section(`Events of ${name}`, h("div", { class: other ? "halves" : "" }, reply.sides.map(side => eventsOf((side.histories || {})[name], other ? side.generation : null)))));
  return [reply.recorded ? h("p", { class: "notice" }, `Recorded request ${reply.recorded.request_id}: generation ${reply.recorded.generation} answered ${flat(reply.recorded.outputs)}.`) : null, sides, moved, histories, features];
}

function sideOf(side) {
  const e = side.executable, facts = [["executable", `${e.backend}, ${e.precision}, bucket ${e.bucket}`], ["computed by", side.computed_by], ...Object.entries(side.timings_ms).map(([stage, ms]) => [stage.replace("_", " "), milliseconds(ms)])];
  return [h("p", { class: "big" }, Object.entries(side.outputs).map(([name, values]) => h("span", {}, h("small", {}, name), " ", h("b", {}, values.map(score).join(", ")))), side.served ? badge("served", "good") : badge("not served")),
    h("dl", { class: "facts" }, facts.map(([n, v]) => h("div", {}, h("dt", {}, n), h("dd", {}, v))))];
}

function movedOf(reply) {
  const most = Math.max(1e-12, ...reply.moved.map(m => Math.abs(m.score_change)));
  return [h("p", { class: "soft" }, `${reply.change ? `The score differs by ${Object.entries(reply.change).map(([o, v]) => `${v.map(signed).join(", ")} (${o})`).join("; ")}. ` : ""}Each line replaces one part of ${reply.sides[0].generation} with that of ${reply.sides[1].generation}. Features interact, so the lines need not add up.`),
    h("ol", { class: "moved" }, reply.moved.map(m => {
      const bar = h("i", { class: m.score_change < 0 ? "less" : "more", "aria-hidden": "true" });
      bar.style.width = `${(100 * Math.abs(m.score_change) / most).toFixed(1)}%`;
      return h("li", {}, h("span", {}, m.what), h("span", { class: "bar" }, bar), h("b", { class: "number" }, signed(m.score_change)));
    })), reply.moved_left_out ? h("p", { class: "soft" }, `${number(reply.moved_left_out)} smaller changes are not shown.`) : null];
}

// The events that change the score most, in the order of the history: how far it falls without each.
function eventsOf(history, generation) {
  if (!history) return null;
  const ranked = [...history.newest].sort((a, b) => Math.abs(b.score_change) - Math.abs(a.score_change)).slice(0, MOST_EVENTS);
  const most = Math.max(1e-12, ...ranked.map(e => Math.abs(e.score_change))), left = history.events - ranked.length;
  return h("div", {}, generation ? h("p", { class: "soft" }, `As of ${generation}`) : null,
    h("p", { class: "soft" }, `${number(history.events)} events, the newest last. Each line is how far the score falls without the event.`),
    h("ol", { class: "moved" }, ranked.sort((a, b) => a.place - b.place).map(e => {
      const bar = h("i", { class: e.score_change < 0 ? "less" : "more", "aria-hidden": "true" });
      bar.style.width = `${(100 * Math.abs(e.score_change) / most).toFixed(1)}%`;
      const ids = [...Object.values(e.ids).map(each => each.length ? each[0].id : ""), ...Object.values(e.floats || {})].join(", ");
      return h("li", {}, h("span", {}, `${e.place}: ${ids}`), h("span", { class: "bar" }, bar), h("b", { class: "number" }, signed(e.score_change)));
    })), left > 0 ? h("p", { class: "soft" }, `${number(left)} more are not shown.`) : null);
}

const aboutOf = f => h("small", {}, f.table ? `${f.kind}, table ${f.table}, ${f.dim} wide${f.combiner && f.kind.endsWith("s") ? `, ${f.combiner}` : ""}` : f.kind);

function idsOf(f) {
  if (!f) return null;
  if (!f.ids) return h("span", { class: "cell-lines" }, score(f.value), f.fed === undefined ? null : h("small", {}, `fed as ${score(f.fed)}`));
  const left = Math.max(f.ids.length, f.length || 0) - MOST_IDS;
  return h("span", { class: "cell-lines ids" }, f.ids.length ? f.ids.slice(0, MOST_IDS).map(one => h("span", { class: "id" }, h("code", { title: one.key !== one.id ? `key ${one.key}` : null }, one.id), " ", whence(one), one.found === "row" ? h("small", {}, ` norm ${score(one.norm)}`) : null)) : h("small", {}, "no ids"),
    left > 0 ? h("small", {}, `and ${number(left)} more`) : null, f.pooled_norm === undefined ? null : h("small", {}, `pooled norm ${score(f.pooled_norm)}`));
}

function whence(one) {
  if (one.found !== "row") return badge(`default: ${one.why || "no row"}${one.step ? ` at ${one.step}` : ""}`, "warn");
  if (one.from === "version") return badge("version");
  return badge(`${one.from} ${one.step === null || one.step === undefined ? `before ${one.before}` : one.step}`, "accent");
}
