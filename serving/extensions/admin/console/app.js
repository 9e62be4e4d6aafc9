// The page: its data, the current view, and what draws it. All data comes from this port.

import { follow, get, onRefused, signIn, signedIn } from "./api.js";
import { byId, field, h, replace } from "./dom.js";
import { SPAN_S } from "./charts.js";
import { troubles } from "./formats.js";
import { overview } from "./overview.js";
import { modelPage } from "./model.js";

const LOOK_MS = 5000;
// info: last reply of /admin/models. samples: the last five minutes, oldest first. problem: why info is out of date.
const state = { info: null, samples: [], problem: "", live: "" };
let view = null, route = "", asking = false, again = false, lastAsked = 0;

export async function refresh() {
  if (asking) { again = true; return; }
  asking = true;
  try {
    state.info = await get("/admin/models");
    state.problem = "";
  } catch (error) {
    state.problem = error.message;
  }
  asking = false;
  lastAsked = Date.now();
  update();
  if (again) { again = false; refresh(); }
}

// A server that answers may still serve old models: show that first.
function standing(info) {
  const wrong = troubles(info.models);
  if (!info.ready) return ["not ready", "bad"];
  if (!wrong.length) return ["ready", "good"];
  const models = new Set(wrong.map(t => t.name));
  return [models.size === 1 ? `${wrong[0].name}: ${wrong[0].state}` : `${models.size} models: ${wrong[0].state}`, wrong[0].kind];
}

function update() {
  const pill = byId("state"), info = state.info;
  const [text, kind] = state.problem ? [state.problem, "bad"] : !info ? ["connecting", ""] : state.live ? [state.live, "warn"] : standing(info);
  if (pill.textContent !== text) pill.textContent = text;
  pill.className = `pill ${kind}`;
  byId("leave").hidden = !signedIn();
  if (view && view.update && info) view.update(state);
}

function take(samples) {
  state.samples.push(...samples);
  const now = state.samples[state.samples.length - 1].at;
  while (now - state.samples[0].at > SPAN_S) state.samples.shift();
  const models = state.samples[state.samples.length - 1].models, known = state.info ? state.info.models : {};
  const changed = Object.entries(models).some(([name, m]) => !known[name] || known[name].generation !== m.generation);
  if (changed || Date.now() - lastAsked > LOOK_MS) refresh(); else update();
}

function go() {
  if (location.hash === route && view) return;
  route = location.hash;
  const [, where, name, tab] = route.split("/").map(part => decodeURIComponent(part));
  if (view && view.close) view.close();
  view = where === "models" && name ? modelPage(name, tab || "timeline", { state, refresh }) : overview({ refresh });
  replace(byId("main"), view.element);
  replace(byId("crumbs"), where === "models" && name ? [h("span", { "aria-hidden": "true" }, "/"), h("a", { href: `#/models/${encodeURIComponent(name)}` }, name)] : []);
  document.title = where === "models" && name ? `${name} · ${view.title} · Freshet` : "Freshet";
  update();
}

function askToken() {
  const input = h("input", { type: "password", autocomplete: "current-password", required: true });
  const problem = h("p", { class: "problem", role: "alert" }, signedIn() ? "The server does not accept this token." : "");
  signIn("");
  const form = h("form", { class: "panel login", onsubmit: event => { event.preventDefault(); signIn(input.value.trim()); start(); } },
    h("h1", {}, "Sign in"), h("p", {}, "This admin port requires a token. The page keeps it until this tab is closed."),
    field("Admin token", input), problem, h("div", { class: "row end" }, h("button", { class: "main" }, "Sign in")));
  if (view && view.close) view.close();
  view = { element: form };
  replace(byId("main"), form);
  replace(byId("crumbs"));
  input.focus();
}

async function start() {
  view = null;
  go();
  await refresh();
}

onRefused(() => { if (!document.querySelector(".login")) askToken(); });
byId("leave").addEventListener("click", () => { signIn(""); location.hash = "#/"; location.reload(); });
addEventListener("hashchange", () => { if (document.querySelector(".login")) return; go(); byId("main").focus({ preventScroll: true }); scrollTo(0, 0); });
addEventListener("resize", update);
setInterval(() => { if (!document.hidden && Date.now() - lastAsked > LOOK_MS && !document.querySelector(".login")) refresh(); }, LOOK_MS);
start();
follow(samples => take(samples), text => { state.live = text; update(); });
