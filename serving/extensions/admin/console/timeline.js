// The timeline of a model's version: every record of its change log, each delta with its state on this server.

import { get, model as path } from "./api.js";
import { ask } from "./actions.js";
import { deltaStrip } from "./charts.js";
import { freshet, reasonOf } from "./commands.js";
import { badge, button, h, keyed, replace, section } from "./dom.js";
import { bytes, date, number, parts, percent, score, seconds, when } from "./formats.js";

const PAGE = 40;
const STATES = { current: "good", served: "", undone: "bad", waits: "warn" };
const WORDS = { rollback: "Rolled back to", hold: "Held after", release: "Released up to", snapshot: "Snapshot of" };
const FIGURES = { bias: "change of the mean score", spread: "change of the scores' spread", disorder: "change of the scores' order", nonfinite: "non-finite scores", moved: "change of rows", size: "shrinking of rows", longest: "longest row", new: "new rows", shift: "change of the mean score, logarithm", stretch: "change of the scores' width, logarithm", width: "scores' width, logarithm", level: "mean score, logarithm", removed: "rows removed", dense: "change of dense weights", evidence: "distinct rows scored" };

export function timelineView(page) {
  const strip = h("div", { class: "strip-box" }), list = h("ol", { class: "timeline" }), more = h("div", { class: "row" }), note = h("p", { class: "soft" });
  const choice = h("select", { "aria-label": "Version", class: "small", onchange: () => { page.version = Number(choice.value); look(); } });
  const element = section("Generations", h("div", { class: "row between" }, note, h("label", { class: "row" }, "Version", choice)), strip, list, more);
  let found = null, most = PAGE, seen = "", asking = false, again = false, known = "";

  async function look() {
    if (asking) { again = true; return; }
    asking = true;
    try {
      found = await get(path(page.name, `/timeline?most=200${page.version ? `&version=${page.version}` : ""}`));
      draw();
    } catch (error) { replace(list, h("li", { class: "problem" }, error.message)); list._kept = null; }
    asking = false;
    if (again) { again = false; look(); }
  }

  function draw() {
    const deltas = found.entries.filter(e => e.kind === "delta");
    note.textContent = deltas.length ? "Newest first. Each bar is a delta; its height shows its number of rows." : "No delta yet: this version serves the rows and weights that it was published with.";
    replace(strip, deltas.length ? deltaStrip([...deltas].reverse(), pick) : []);
    const shown = found.entries.slice(0, most), first = { number: 0, kind: "first", generation: found.first, at: found.published_at, served: found.generation === found.first };
    keyed(list, found.entries.length <= most ? [...shown, first] : shown, e => e.number, (e, before) => entry(e, before && before.querySelector("details") && before.querySelector("details").open));
    replace(more, found.entries.length > most ? button(`Show ${Math.min(PAGE, found.entries.length - most)} more`, () => { most += PAGE; draw(); }, { class: "quiet" }) : null);
    ages();
  }

  function pick(delta) {
    most = Math.max(most, found.entries.indexOf(delta) + 1);
    draw();
    const element = list.querySelector(`[data-number="${delta.number}"]`);
    element.querySelector("details").open = true;
    element.scrollIntoView({ block: "center" });
    element.querySelector("summary").focus();
  }

  async function back(e) {
    const behind = found.entries.filter(x => x.kind === "delta" && (x.state === "served" || x.state === "current") && parts(x.generation)[1] > parts(e.generation)[1]);
    const reply = await ask({
      title: `Roll back to ${e.generation}`, reason: true, danger: true, verb: "Roll back",
      what: `${page.name} serves ${e.generation} again, on every server of the repository. ${behind.length === 1 ? `${behind[0].generation} is undone` : `${behind.length} deltas are undone`}. ${e.in_memory === false ? "It is rebuilt from files while the current generation is served." : "It is still in memory, so the switch is immediate."}`,
      method: "POST", path: path(page.name, "/rollback"), body: { generation: e.generation, reason: "" },
      cli: reason => freshet("delta", "rollback", page.name, e.generation, ...reasonOf(reason)), done: r => `${page.name} serves ${r.generation}. ${r.note || ""}`,
    });
    if (reply) { await page.context.refresh(); look(); }
  }

  function entry(e, open) {
    if (e.kind === "first") {
      return h("li", { class: "first", "data-number": "0" }, h("span", { class: "dot", "aria-hidden": "true" }), h("div", { class: "line-head" }, h("b", { class: "generation" }, e.generation),
        h("span", { class: "grow" }, "the version as it was published"), stamp(e.at), e.served ? badge("current", "good") : button("Roll back to here…", () => back({ ...e, in_memory: false }), { class: "quiet", "aria-label": `Roll back to here: ${e.generation}` })));
    }
    if (e.kind !== "delta") {
      return h("li", { class: `event ${e.kind}`, "data-number": String(e.number) }, h("span", { class: "dot", "aria-hidden": "true" }),
        h("div", { class: "line-head" }, h("span", { class: "grow" }, `${WORDS[e.kind] || e.kind} `, h("b", { class: "generation" }, e.generation)), stamp(e.at)), e.reason ? h("p", { class: "why" }, e.reason) : null);
    }
    const here = e.here, back_ = e.state === "served";
    const facts = here ? [["rows", number(here.rows)], here.removed ? ["removed", number(here.removed)] : null, ["size", bytes(e.nbytes)],
      here.apply_ms ? ["applied in", seconds(here.apply_ms / 1000)] : null, here.apply_ms && here.verdict !== "replayed" ? ["age", seconds(here.age_s)] : null,
      here.score_shift !== null ? ["score shift", percent(here.score_shift, 2)] : null].filter(Boolean) : [e.rows === null ? null : ["rows", number(e.rows)], ["size", bytes(e.nbytes)]].filter(Boolean);
    // "In line" is the normal case and gets no badge.
    const verdict = here && here.verdict !== "replayed" && here.verdict !== "in line" ? badge(here.verdict === "out of line" ? "guard: held" : "guard: off", here.verdict === "out of line" ? "bad" : "") : null;
    return h("li", { class: `delta ${e.state}`, "data-number": String(e.number) }, h("span", { class: "dot", "aria-hidden": "true" }),
      h("details", { open: open || false },
        h("summary", {}, h("span", { class: "line-head" }, h("b", { class: "generation" }, e.generation), e.state === "served" ? null : badge(e.state, STATES[e.state]), verdict,
          h("span", { class: "facts inline" }, facts.map(([n, v]) => h("span", {}, h("small", {}, n), " ", h("b", {}, v)))), stamp(e.at))),
        h("div", { class: "detail" },
          here && here.reason ? h("p", { class: "why" }, here.reason) : null,
          h("dl", { class: "facts" }, [["published", date(e.at)], ["parent", e.parent], ["record", String(e.number)], ["digest", e.digest.slice(0, 16)], here && here.events ? ["events learned", number(here.events)] : null, here ? ["dense tensors", number(here.dense)] : null, ["rollback", e.in_memory ? "from memory" : "from files"]].filter(Boolean).map(([n, v]) => h("div", {}, h("dt", {}, n), h("dd", {}, v)))),
          here && here.figures.length ? h("ul", { class: "figure-list" }, here.figures.map(f => h("li", {}, h("span", {}, FIGURES[f.kind] || f.kind, f.what ? h("small", {}, ` ${f.what}`) : null), h("b", {}, score(f.value))))) : null,
          !here ? h("p", { class: "soft" }, "This delta was applied before the server started to record the results of deltas.") : here.verdict === "replayed" ? h("p", { class: "soft" }, "This delta was replayed at startup; other servers had served it before.") : null)),
      back_ ? button("Roll back to here…", () => back(e), { class: "quiet back", "aria-label": `Roll back to here: ${e.generation}` }) : null);
  }

  const stamp = at => h("time", { "data-at": String(at), title: date(at) }, when(at));
  function ages() { for (const time of list.querySelectorAll("time")) time.textContent = when(Number(time.dataset.at)); }

  return {
    element, look,
    update(model) {
      const versions = Object.keys(model.served).map(Number).sort((a, b) => b - a), newest = model.generation ? parts(model.generation)[0] : versions[0];
      const options = JSON.stringify([versions, newest]);
      if (options !== known) {
        known = options;
        replace(choice, versions.map(v => h("option", { value: String(v), selected: v === (page.version || newest) }, String(v))));
        choice.parentElement.hidden = versions.length < 2;
      }
      const served = model.served[String(page.version || newest)], text = served ? JSON.stringify([served.generation, served.chain]) : "";
      if (text !== seen) { seen = text; look(); } else ages();
    },
  };
}
