// User state: the users whose inputs are kept, how often a user's part was found again, why not, how old it was, and
// the work that this saved.

import { get, model as path } from "./api.js";
import { meter } from "./charts.js";
import { h, replace, section, table } from "./dom.js";
import { bytes, number, percent, seconds, short } from "./formats.js";

const CAUSES = { absent: "not asked for lately, or not kept", evicted: "given up for others", expired: "too old", dense: "other dense weights", rows: "a row has changed", torn: "half written" };
const COLUMNS = [{ title: "Version" }, { title: "Looks", number: true }, { title: "Found", number: true }, { title: "Age when used", number: true }, { title: "A look takes", number: true }, { title: "Memory", number: true }, { title: "Work saved", number: true }];
const GONE = { expired: "too old", evicted: "given up for others", absent: "never kept, released, erased, or lost" };
// Counters that have a column, or a line of their own.
const SHOWN = /^(hits|hit_age_s|look_s|nbytes|saved_flops|misses\..*)$/;

// A table of one row with the counters of a group: "changes.append" is of the group "changes".
function group(title, counters, name, titles = {}) {
  const found = Object.entries(counters).filter(([key]) => key.startsWith(`${name}.`)).map(([key, count]) => [key.slice(name.length + 1), count]);
  return table(title, found.map(([key]) => ({ title: titles[key] || key, number: true })), [found.map(([, count]) => number(count))]);
}

function usersView(users) {
  return [h("h3", {}, "Kept users"),
    table("Kept users", ["Users", "Memory", "Other versions than expected"].map(title => ({ title, number: true })), [[number(users.users), bytes(users.nbytes), number(users.conflicts)]]),
    h("h3", {}, "Changes"), group("Changes of kept users", users, "changes"),
    h("h3", {}, "Requests about users that are gone"), group("Requests about users that are gone", users, "gone", GONE)];
}

export function stateView(page) {
  const box = h("div", {}), element = section("User state", box);
  let asked = 0;

  async function look() {
    asked = Date.now();
    let found;
    try { found = await get(path(page.name, "/user_state")); } catch (error) { replace(box, h("p", { class: "problem" }, error.message)); return; }
    const kept = found.users ? usersView(found.users) : [];
    if (!found.versions.length && !found.users) {
      replace(box, h("p", { class: "soft" }, "Nothing of users is kept: the server has no memory for it (--user-state-mb), or no version has a part that depends on the user alone."));
      return;
    }
    if (!found.versions.length) {
      replace(box, kept, h("p", { class: "soft" }, "No version has a part that depends on the user alone."));
      return;
    }
    const rows = found.versions.map(v => [h("b", {}, v.generation), number(v.looks),
      v.hit_rate === null ? null : h("span", { class: "cell-lines share" }, percent(v.hit_rate), meter(v.hit_rate, `Looks of version ${v.version} that found the user's part`)),
      v.mean_age_s === null ? null : seconds(v.mean_age_s), v.mean_look_s === null ? null : seconds(v.mean_look_s), bytes(v.counters.nbytes),
      v.user_flops ? `${short(v.saved_flops)} FLOPs` : null]);
    const causes = [...new Set(found.versions.flatMap(v => Object.keys(v.misses)))];
    const misses = found.versions.map(v => [h("b", {}, v.generation), ...causes.map(cause => number(v.misses[cause] || 0))]);
    const others = found.versions.map(v => h("p", { class: "soft" }, `${v.generation}: kept as ${v.dtype}, ${Object.entries(v.counters).filter(([name]) => !SHOWN.test(name)).map(([name, count]) => `${name.replaceAll("_", " ")} ${number(count)}`).join(", ")}; users are told by ${v.user_inputs.join(", ") || "nothing that requests send"}`));
    replace(box, table("User state", COLUMNS, rows),
      h("h3", {}, "Not found, by cause"), table("Misses by cause", [{ title: "Version" }, ...causes.map(cause => ({ title: CAUSES[cause] || cause, number: true }))], misses), others, kept);
  }

  return { element, look, update() { if (Date.now() - asked > 4000) look(); } };
}
