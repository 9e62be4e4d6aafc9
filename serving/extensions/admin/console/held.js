// What is held of a model, with the ways out: deltas of the served version, versions that the gate did not let pass, and versions that were rolled back.

import { model as path } from "./api.js";
import { ask } from "./actions.js";
import { freshet } from "./commands.js";
import { button, h } from "./dom.js";
import { kindOf, number } from "./formats.js";

const TIMES = ["mean", "spread"], SHARES = ["moved", "unknown", "unreadable", "nonfinite"];

export function heldDeltas(name, chain, version, done) {
  const decide = (what, danger) => async () => {
    const reply = await ask({
      title: what === "release" ? "Release held deltas" : "Reject held deltas",
      what: what === "release" ? `Every server of the repository serves the held deltas of ${name}. They are not checked again.` : `The held deltas of ${name} are undone on every server of the repository. The served generation stays.`,
      method: "POST", path: path(name, `/${what}`), body: { version: Number(version), reason: "" }, reason: true, danger, verb: what === "release" ? "Release" : "Reject",
      cli: reason => freshet("delta", what, name, "--version", version, ...(reason ? ["--reason", reason] : [])), done: r => `${name} serves ${r.generation}`,
    });
    if (reply) await done();
  };
  return h("div", { class: `notice ${kindOf(chain.state)}`, role: "status" },
    h("p", {}, h("b", {}, chain.state), `: ${chain.reason}`, chain.behind ? ` (${number(chain.behind)} behind)` : ""),
    chain.state === "HELD" ? h("div", { class: "row" }, button("Release…", decide("release", false)), button("Reject…", decide("reject", true), { class: "danger" })) : null);
}

export function barredVersion(name, version, why, verdict, served, done) {
  const decide = (what, danger) => async () => {
    const reply = await ask({
      title: what === "release" ? `Release version ${version}` : `Reject version ${version}`,
      what: what === "release" ? `Every server of the repository may serve version ${version} of ${name}. No gate judges it again.` : `No server of the repository serves version ${version} of ${name}. What is served stays.`,
      method: "POST", path: path(name, `/versions/${version}/${what}`), body: { reason: "" }, reason: true, danger, verb: what === "release" ? "Release" : "Reject",
      cli: reason => freshet("version", what, name, version, ...(reason ? ["--reason", reason] : [])), done: () => `version ${version} of ${name} is ${what === "release" ? "released" : "rejected"}`,
    });
    if (reply) await done();
  };
  const withdrawn = isWithdrawn(why);
  const figures = verdict ? verdict.figures.filter(one => one.kind !== "evidence") : [];
  return h("div", { class: `notice ${withdrawn ? "" : "warn"}`, role: "status" },
    h("p", {}, h("b", {}, `Version ${version}`), ` is ${why}. `, served ? `${served} ${withdrawn ? "is served" : "goes on"}.` : ""),
    figures.length ? h("dl", { class: "facts" }, [["rows scored by both", number(verdict.rows)], ...figures.map(one => [one.what ? `${one.kind} of ${one.what}` : one.kind, shown(one)])]
      .map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value)))) : null,
    h("div", { class: "row" }, button("Release…", decide("release", false)), withdrawn ? null : button("Reject…", decide("reject", true), { class: "danger" })));
}

// A rolled back version has nothing left to reject: the record of it stands until it is released.
export const isWithdrawn = why => why.startsWith("withdrawn");

function shown({ kind, value }) {
  if (TIMES.includes(kind)) return `${Number(Math.exp(value).toPrecision(3))} times`;
  if (SHARES.includes(kind)) return `${(100 * value).toFixed(1)} %`;
  return Number(value).toPrecision(2);
}
