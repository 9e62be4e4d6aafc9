// Versions, labels, the traffic split and its canaries: what they are, and controls to change them.

import { get, model as path } from "./api.js";
import { ask } from "./actions.js";
import { badge, button, field, h, replace, section, table } from "./dom.js";
import { meter } from "./charts.js";
import { ago, kindOf, number, percent, score } from "./formats.js";

export function trafficView(page) {
  const versions = h("div", {}), split = h("div", {}), labels = h("div", {}), trials = h("div", {});
  const element = h("div", { class: "stacked" }, section("Versions", versions),
    h("div", { class: "halves" }, section("Split of traffic", split), section("Labels", labels)), section("Canaries", trials));
  let seen = "", asked = 0, model = null;

  const act = async action => { if (await ask(action)) await page.context.refresh(); };
  const version = (number, what) => path(page.name, `/versions/${number}/${what}`);

  function drawVersions() {
    const names = number => Object.entries(model.labels).filter(([, v]) => v === number).map(([label]) => badge(label));
    replace(versions, table("Versions", [{ title: "Version" }, { title: "State" }, { title: "Serves" }, { title: "Share", number: true }, { title: "Labels" }, { title: "Change" }],
      model.versions.map(v => {
        const served = model.served[String(v.version)], out = model.out[String(v.version)], share = model.shares[String(v.version)];
        const why = v.error || (out ? `taken out ${ago(out.at)}: ${out.reason}` : served && served.chain && served.chain.reason) || "";
        const state = out ? badge("taken out", "bad") : served && served.chain && served.chain.state !== "CURRENT" ? badge(served.chain.state, kindOf(served.chain.state)) : badge(v.state, kindOf(v.state));
        const labelled = names(v.version);
        return [h("b", { class: "generation" }, String(v.version)), h("span", { class: "cell-lines" }, state, why ? h("small", { class: "why" }, why) : null), served ? h("span", { class: "generation" }, served.generation) : null,
          served ? h("span", { class: "cell-lines share" }, percent(share || 0), meter(share || 0, `Share of version ${v.version}`)) : null,
          labelled.length ? h("span", { class: "labels" }, labelled) : null, h("span", { class: "row" }, changes(v, served, out))];
      })));
  }

  function changes(v, served, out) {
    return [
      out ? button("Readmit…", () => act({ title: `Readmit version ${v.version}`, what: `Version ${v.version} gets its share of traffic again. It was taken out: ${out.reason}`, method: "POST", path: version(v.version, "readmit"), verb: "Readmit", done: () => `Version ${v.version} has its share again` }), { class: "quiet", "aria-label": `Readmit version ${v.version}` }) : null,
      served ? button("Unload…", () => act({ title: `Unload version ${v.version}`, danger: true, what: `Version ${v.version} is no longer served. Requests that are already queued for it are still answered.`, method: "POST", path: version(v.version, "unload"), verb: "Unload", done: () => `Version ${v.version} is unloaded` }), { class: "quiet", "aria-label": `Unload version ${v.version}` })
        : v.state === "END" ? button("Load…", () => act({ title: `Load version ${v.version}`, what: `Version ${v.version} is loaded, brought up to date with its deltas and warmed up while other versions are served.`, method: "POST", path: version(v.version, "load"), verb: "Load", done: () => `Version ${v.version} is loaded` }), { class: "quiet", "aria-label": `Load version ${v.version}` }) : null,
    ];
  }

  function drawSplit() {
    const weights = Object.entries(model.policy.split || {}), rows = weights.length ? weights : Object.keys(model.labels).map(label => [label, 0]);
    if (!rows.length) {
      replace(split, h("p", { class: "soft" }, "Requests without a version go to the newest one. To split traffic, set a label first."));
      return;
    }
    const inputs = [...new Map([...rows, ...Object.keys(model.labels).filter(l => !weights.some(([label]) => label === l)).map(l => [l, 0])])].map(([label, weight], n) => ({
      label, input: h("input", { type: "number", min: "0", step: "any", value: String(weight), class: "small", "aria-label": `Weight of ${label}`, oninput: () => bar() }), baseline: n === 0,
    }));
    const preview = h("div", { class: "split-bar" });
    const bar = () => {
      const all = inputs.reduce((sum, i) => sum + Math.max(0, Number(i.input.value) || 0), 0);
      for (const i of inputs) i.share.textContent = all ? percent(Math.max(0, Number(i.input.value) || 0) / all) : "–";
      replace(preview, inputs.map((i, n) => { const part = h("i", { class: `part${n % 5}` }); part.style.flexGrow = String(Math.max(0, Number(i.input.value) || 0)); return part; }));
    };
    for (const i of inputs) i.share = h("b", { class: "number" });
    const body = () => ({ split: Object.fromEntries(inputs.map(i => [i.label, Number(i.input.value) || 0])) });
    const shares = () => inputs.map(i => `${i.label} ${i.share.textContent}`).join(", ");
    replace(split,
      h("ul", { class: "weights" }, inputs.map(i => h("li", {}, h("span", {}, i.label, i.baseline ? h("small", {}, " baseline") : null), h("small", {}, model.labels[i.label] ? `version ${model.labels[i.label]}` : "no version"), i.input, i.share))),
      preview, h("p", { class: "soft" }, "A change moves as little traffic as possible: sticky keys keep their version where weights stay the same."),
      h("div", { class: "row end" },
        weights.length ? button("Remove the split…", () => act({ title: "Remove the split", danger: true, what: "Requests without a version go to the newest one, or as the configuration says.", method: "PUT", path: path(page.name, "/policy"), body: { split: null }, verb: "Remove", done: () => "The split is removed" }), { class: "quiet" }) : null,
        button("Change the split…", () => act({ title: "Change the split", what: `Requests without a version go to: ${shares()}.`, method: "PUT", path: path(page.name, "/policy"), body: body(), verb: "Change", done: () => `The split is ${shares()}` }), { class: "main" })));
    bar();
  }

  function removal(label, v) {
    return button("Remove…", () => act({ title: `Remove ${label}`, danger: true, what: `Requests to the label are refused. Version ${v} is unloaded unless something else keeps it.`, method: "DELETE", path: path(page.name, `/labels/${encodeURIComponent(label)}`), verb: "Remove", done: () => `${label} is removed` }), { class: "quiet", "aria-label": `Remove label ${label}` });
  }

  function drawLabels() {
    const entries = Object.entries(model.labels), loaded = model.versions.map(v => String(v.version));
    const name = h("input", { maxlength: "128", pattern: "[A-Za-z0-9_][A-Za-z0-9_.\\-]*", required: true, autocomplete: "off", placeholder: "canary" });
    const which = h("select", {}, loaded.map(v => h("option", { value: v }, v)));
    replace(labels,
      entries.length ? table("Labels", [{ title: "Label" }, { title: "Version", number: true }, { title: "Change" }], entries.map(([label, v]) => [label, String(v), removal(label, v)])) : h("p", { class: "soft" }, "No label is set."),
      h("form", { class: "row form", onsubmit: event => {
        event.preventDefault();
        act({ title: `Point ${name.value} at version ${which.value}`, what: `Requests to the label, and its share of the split, go to version ${which.value}, which is loaded first if necessary.`, method: "PUT", path: path(page.name, `/labels/${encodeURIComponent(name.value)}`), body: { version: Number(which.value) }, verb: "Point", done: () => `${name.value} is version ${which.value}` });
      } }, field("Label", name), field("Version", which), h("button", { class: "main" }, "Set…")));
  }

  async function look() {
    asked = Date.now();
    let found;
    try { found = await get(path(page.name, "/canaries")); } catch { return; }
    const bounds = found.bounds;
    replace(trials, found.trials.length ? found.trials.map(t => h("div", {}, table(`Version ${t.canary.version} against version ${t.baseline.version}`,
      [{ title: "Since the trial began" }, { title: `Canary ${t.canary.generation}`, number: true }, { title: `Baseline ${t.baseline.generation}`, number: true }, { title: "Bound", number: true }], [
        ["requests", number(t.canary.requests), number(t.baseline.requests), `at least ${number(bounds.min_requests)}`],
        ["failed", share(t.canary.failed, t.canary.requests), share(t.baseline.failed, t.baseline.requests), `at most ${percent(bounds.max_error_share)} more`],
        ["NaN or infinite scores", share(t.canary.nonfinite, t.canary.scores), share(t.baseline.nonfinite, t.baseline.scores), `at most ${percent(bounds.max_nonfinite_share)} more`],
        ["scores compared", number(t.canary.scores), number(t.baseline.scores), `at least ${number(bounds.min_scores)}`],
        ...Object.entries(t.shift).map(([output, shift]) => [`mean ${output}`, score(t.canary.mean[output]), score(t.baseline.mean[output]), null, shift]).flatMap(([n, a, b, c, shift]) => [[n, a, b, c], [`shift of ${n.slice(5)}`, score(shift), null, score(bounds.max_score_shift)]]),
      ], { caption: true }))) : h("p", { class: "soft" }, "No canary is on trial. A trial begins when the split sends a version a share of traffic beside the baseline."));
  }

  return {
    element, look,
    update(now) {
      model = now;
      const text = JSON.stringify([now.versions, now.labels, now.policy, now.shares, now.out, Object.values(now.served).map(v => [v.generation, v.chain])]);
      if (Date.now() - asked > 5000) look();
      if (text === seen) return;
      const before = seen ? JSON.parse(seen) : null, after = JSON.parse(text);
      seen = text;
      drawVersions();
      // Keep the user's unsaved input unless its subject has changed.
      if (!before || JSON.stringify([before[1], before[2]]) !== JSON.stringify([after[1], after[2]])) { drawSplit(); drawLabels(); }
    },
  };
}

const share = (part, whole) => whole ? `${number(part)} (${percent(part / whole)})` : number(part);
