// Try it: a form made from the signature and filled with a request, and the same call for curl and Python.

import { call, get, model as path, Refusal } from "./api.js";
import { quote } from "./commands.js";
import { button, code, field, h, replace, section, table } from "./dom.js";
import { milliseconds, score } from "./formats.js";

// Typed values by model, kept for a later visit and for the explain view.
export const typed = new Map();

const SOURCES = { recorded: "Filled with a recorded request.", "asked lately": "Filled with a recent request.", "warm-up": "Filled with a warm-up request of this version.", "made up": "There is no recorded or recent request yet, so the values are made up. Ids that are keys of a table have rows." };
const shape = i => `${i.dtype}${i.ragged ? ", ragged: one list per row" : i.columns ? ` [n, ${i.columns}]` : " [n]"}`;

// The body of a predict request, as text: an int64 would lose digits as a JavaScript number.
export function bodyOf(signature, values) {
  return `{"inputs": {${signature.inputs.map(i => `${JSON.stringify(i.name)}: ${(values.get(i.name) || "").trim() || "[]"}`).join(", ")}}}`;
}

// JSON as Python writes it; texts stay as they are.
const PYTHON = { null: "None", true: "True", false: "False" };
export const literal = text => (text || "[]").trim().replace(/"(?:[^"\\]|\\.)*"|\b(?:null|true|false)\b/g, word => PYTHON[word] || word);

// A text field for each input. values: name -> text.
export function inputFields(signature, values, changed) {
  return signature.inputs.map(i => {
    const area = h("textarea", { rows: "2", spellcheck: false, autocomplete: "off", oninput: () => { values.set(i.name, area.value); check(); changed(); } });
    const problem = h("small", { class: "problem" });
    const check = () => {
      let text = "";
      try { if (!Array.isArray(JSON.parse(area.value || "[]"))) text = "expected a list"; } catch { text = "expected JSON"; }
      problem.textContent = text;
      area.setAttribute("aria-invalid", text ? "true" : "false");
    };
    area.value = values.get(i.name);
    area.rows = Math.min(4, 1 + Math.ceil(area.value.length / 60));
    check();
    const features = i.features.map(f => f.name === i.name ? null : f.name).filter(Boolean);
    return h("div", {}, field(i.name, area, h("span", {}, shape(i), features.length ? `; ${features.slice(0, 4).join(", ")}${features.length > 4 ? ` and ${features.length - 4} more` : ""}` : "", " ", problem)));
  });
}

// The signature and its values: those typed last, or the example's.
export async function signatureOf(name) {
  const signature = await get(path(name, "/signature"));
  const values = typed.get(name) || new Map();
  for (const i of signature.inputs) if (!values.has(i.name)) values.set(i.name, i.example);
  typed.set(name, values);
  return { signature, values };
}

export function tryView(page) {
  const fields = h("div", { class: "fields" }), lines = h("div", { class: "lines" }), result = h("div", { class: "result", "aria-live": "polite" });
  const element = h("div", { class: "halves wide" }, section("Request", fields), h("div", { class: "stacked" }, section("Reply", result), section("The same call", lines)));
  let signature = null, values = null, versions = "";
  const which = h("select", { onchange: () => draw() }, h("option", { value: "" }, "default routing"));

  async function look() {
    try { ({ signature, values } = await signatureOf(page.name)); } catch (error) { replace(fields, h("p", { class: "problem" }, error.message)); return; }
    const send = button("Send", () => go(send), { class: "main" });
    replace(fields,
      h("p", { class: "soft" }, SOURCES[signature.source] || ""), field("Version", which), inputFields(signature, values, draw),
      h("div", { class: "row end" },
        button("Reset", () => { typed.delete(page.name); look(); }, { class: "quiet" }),
        h("a", { class: "button quiet", href: `#/models/${encodeURIComponent(page.name)}/explain` }, "Explain it"), send));
    replace(result, h("p", { class: "soft" }, "The data port answers it like any other request."));
    draw();
  }

  function draw() {
    const base = `${location.protocol}//${location.hostname}:${signature.data_port || 8501}`, version = which.value;
    const body = bodyOf(signature, values), route = `/v1/models/${encodeURIComponent(page.name)}${version ? `/versions/${version}` : ""}:predict`;
    const ragged = signature.inputs.some(i => i.ragged);
    const inputs = signature.inputs.map(i => `    ${JSON.stringify(i.name)}: ${i.ragged ? `Ragged.of(${literal(values.get(i.name))})` : literal(values.get(i.name))},`).join("\n");
    replace(lines,
      code(`curl -s ${quote(base + route)} --json ${quote(body)}`, "curl"),
      code(`from freshet_serving import Client${ragged ? ", Ragged" : ""}\n\ninputs = {\n${inputs}\n}\nwith Client(${JSON.stringify(base)}) as client:\n    prediction = client.predict(${JSON.stringify(page.name)}, inputs${version ? `, version=${version}` : ""})\nprint(prediction.outputs, prediction.generation)`, "Python"));
  }

  async function go(send) {
    send.disabled = true;
    try {
      const reply = await call("POST", path(page.name, `/try${which.value ? `?version=${which.value}` : ""}`), bodyOf(signature, values));
      const outputs = reply.reply.outputs, named = signature.outputs.length === 1 ? { [signature.outputs[0].name]: outputs } : outputs;
      const columns = Object.keys(named), rows = named[columns[0]].length;
      replace(result,
        h("dl", { class: "facts" }, [["generation", reply.generation], ["answered in", milliseconds(reply.took_ms)], ["rows", String(rows)]].map(([n, v]) => h("div", {}, h("dt", {}, n), h("dd", {}, v)))),
        table("Scores", [{ title: "Row" }, ...columns.map(title => ({ title, number: true }))], Array.from({ length: Math.min(rows, 50) }, (_, n) => [String(n), ...columns.map(c => [named[c][n]].flat().map(score).join(", "))])),
        rows > 50 ? h("p", { class: "soft" }, `and ${rows - 50} more rows`) : null);
    } catch (error) {
      replace(result, h("p", { class: "problem", role: "alert" }, error instanceof Refusal && error.status ? `${error.status}: ${error.message}` : error.message));
    }
    send.disabled = false;
    send.focus();
  }

  look();
  return {
    element, look,
    update(model) {
      const now = Object.keys(model.served).sort((a, b) => b - a), text = now.join();
      if (text === versions) return;
      versions = text;
      const chosen = which.value;
      replace(which, h("option", { value: "" }, "default routing"), now.map(v => h("option", { value: v, selected: v === chosen }, `version ${v}`)));
    },
  };
}
