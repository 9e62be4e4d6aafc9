// The page of one model: its head, its tabs, and the upload of a delta file that is dropped on it.

import { get, model as path } from "./api.js";
import { ask } from "./actions.js";
import { freshet } from "./commands.js";
import { bestView } from "./best.js";
import { badge, button, h, replace } from "./dom.js";
import { barredVersion, heldDeltas, isWithdrawn } from "./held.js";
import { bytes, clock, kindOf, number, seconds, trainerKind, trainerLine } from "./formats.js";
import { explainView } from "./explain.js";
import { stateView } from "./state.js";
import { tablesView } from "./tables.js";
import { timelineView } from "./timeline.js";
import { trafficView } from "./traffic.js";
import { tryView } from "./tryit.js";

const TABS = { timeline: ["Timeline", timelineView], traffic: ["Versions and traffic", trafficView], tables: ["Tables", tablesView], try: ["Try it", tryView], best: ["Best items", bestView], state: ["User state", stateView], explain: ["Explain", explainView] };

// Views that only some models have.
const SOME = ["best", "state"];

export function modelPage(name, tab, context) {
  const [title, make] = TABS[tab] || TABS.timeline, known = TABS[tab] ? tab : "timeline";
  const head = h("div", { class: "model-head" }), tabs = h("nav", { class: "tabs", "aria-label": `Views of ${name}` },
    Object.entries(TABS).map(([key, [text]]) => h("a", { href: `#/models/${encodeURIComponent(name)}/${key}`, "aria-current": key === known ? "page" : null, hidden: SOME.includes(key) && known !== key }, text)));
  const reveal = (key, route, has) => get(path(name, route)).then(found => { if (has(found)) tabs.querySelector(`[href$="/${key}"]`).removeAttribute("hidden"); }).catch(() => { /* the views say so */ });
  // Not all models rank items, and few servers keep users' parts.
  reveal("best", "/signature", found => found.ranks);
  reveal("state", "/user_state", found => found.versions.length || found.users);
  const file = h("input", { type: "file", hidden: true, onchange: () => { if (file.files.length) upload(file.files[0]); file.value = ""; } });
  const picker = button("Apply a delta…", () => file.click(), { class: "main" });
  const veil = h("div", { class: "veil", hidden: true }, h("p", {}, `Drop a delta to apply it to ${name}`));
  const page = { name, context, version: null, upload };
  const view = make(page);
  const element = h("div", { class: "page" }, head, tabs, view.element, veil);
  let shown = "";

  async function upload(chosen) {
    const reply = await ask({
      title: `Apply ${chosen.name} to ${name}`, what: `${bytes(chosen.size)}. The server verifies it and the guard checks it. If it passes, it becomes part of the chain and every server of the repository serves it.`,
      method: "POST", path: path(name, "/deltas"), file: chosen, verb: "Apply", cli: () => freshet("delta", "apply", name, chosen.name),
      done: r => `${r.generation} is served: ${number(r.rows)} rows in ${Number(r.apply_ms).toFixed(1)} ms`,
    });
    if (reply) await decided();
  }

  async function decided() {
    await context.refresh();
    if (view.look) view.look();
  }

  const over = event => { if ([...event.dataTransfer.types].includes("Files")) { event.preventDefault(); veil.hidden = false; } };
  const leave = event => { if (!event.relatedTarget) veil.hidden = true; };
  const drop = event => { event.preventDefault(); veil.hidden = true; if (event.dataTransfer.files.length) upload(event.dataTransfer.files[0]); };
  addEventListener("dragover", over);
  addEventListener("dragleave", leave);
  addEventListener("drop", drop);

  function update(state) {
    const model = state.info.models[name];
    if (!model) {
      replace(head, h("h1", {}, name), h("p", { class: "problem" }, "This model does not exist in the repository."));
      return;
    }
    const version = model.generation ? model.generation.split(".")[0] : null, served = version ? model.served[version] : null;
    const chain = served ? served.chain : null, live = state.samples.length ? state.samples[state.samples.length - 1].models[name] : null;
    const facts = [
      ["generation", model.generation || "none"], ["age", served ? seconds(Math.floor(served.age_s)) : "–"],
      ["last delta took", served && served.delta_count ? seconds(served.last_freshness_s) : "–"],
      ["applied in", served && served.delta_count ? seconds(served.last_apply_ms / 1000) : "–"],
      ["requests/s", live ? number(live.requests, live.requests < 10 ? 1 : 0) : "–"], ["digest", served ? served.digest.slice(0, 8) : "–"],
    ];
    const gate = model.gate, withdrawn = model.versions.filter(one => isWithdrawn(one.error)), text = JSON.stringify([facts, chain, gate, withdrawn, model.trainer]);
    if (text !== shown) {
      shown = text;
      replace(head,
        h("div", { class: "row between" },
          h("h1", {}, name, " ", chain ? badge(chain.state, kindOf(chain.state)) : badge("not served", "bad")), h("div", { class: "row" }, picker, file)),
        h("dl", { class: "facts" }, facts.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value)))),
        model.trainer ? training(model.trainer) : null,
        chain && chain.state !== "CURRENT" ? heldDeltas(name, chain, version, decided) : null,
        Object.entries(gate.held).map(([held, why]) => barredVersion(name, held, why, gate.verdicts[held], model.generation, decided)),
        withdrawn.map(({ version: number, error }) => barredVersion(name, number, error, null, model.generation, decided)));
    }
    if (view.update) view.update(model, state);
  }

  function training(trainer) {
    const said = [
      ["trainer", badge(trainerLine(trainer), trainerKind(trainer))], ["reported", trainer.age_s < 1 ? "just now" : `${seconds(Math.floor(trainer.age_s))} ago`],
      ["rows of this run", number(trainer.rows)], ["waiting rows", trainer.follow ? number(trainer.waiting_rows) : ""],
      ["publishes to", trainer.version ? `version ${trainer.version}, step ${trainer.step}` : ""], ["published", trainer.published_at ? clock(trainer.published_at) : ""],
      ["gate", trainer.gate], ["problem", trainer.silent ? "" : trainer.problem],
    ];
    return h("dl", { class: "facts", "aria-label": "Trainer" }, said.filter(([, value]) => value).map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
  }

  return {
    element, title, update,
    close() {
      removeEventListener("dragover", over);
      removeEventListener("dragleave", leave);
      removeEventListener("drop", drop);
      if (view.close) view.close();
    },
  };
}
