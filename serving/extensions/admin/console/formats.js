// Number formats for people.

const missing = value => value === null || value === undefined || Number.isNaN(value);

export function number(value, digits = 0) {
  return missing(value) ? "–" : Number(value).toLocaleString("en-US", { maximumFractionDigits: digits, minimumFractionDigits: digits });
}

export function short(value) {
  if (missing(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toFixed(1)}G`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  return number(value, size && size < 10 && !Number.isInteger(value) ? 1 : 0);
}

export function bytes(value) {
  if (missing(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let n = 0;
  while (value >= 1000 && n < units.length - 1) { value /= 1000; n += 1; }
  return `${n && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[n]}`;
}

// Without trailing zeros.
const plain = (value, digits) => String(Number(value.toFixed(digits)));

export function seconds(value) {
  if (missing(value)) return "–";
  if (value === 0) return "0 s";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${plain(value * 1e3, value < 0.1 ? 1 : 0)} ms`;
  if (value < 60) return `${plain(value, value < 10 ? 1 : 0)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor(value % 3600 / 60)} min`;
  return `${Math.floor(value / 86400)} d`;
}

export const milliseconds = value => missing(value) ? "–" : seconds(value / 1000);
export const percent = (value, digits = 1) => missing(value) ? "–" : `${(value * 100).toFixed(digits)} %`;
export const score = value => missing(value) ? "–" : Number(value).toPrecision(5).replace(/\.?0+$/, "");
export const signed = value => missing(value) ? "–" : `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value).toPrecision(3)}`;
export const clock = unix => missing(unix) || !unix ? "–" : new Date(unix * 1000).toLocaleTimeString("en-GB");
export const date = unix => missing(unix) || !unix ? "–" : new Date(unix * 1000).toLocaleString("en-GB");
export const ago = (unix, now = Date.now() / 1000) => missing(unix) || !unix ? "–" : `${seconds(Math.max(0, Math.floor(now - unix)))} ago`;
// Includes the time of day, to search a log for it.
export const when = unix => missing(unix) || !unix ? "–" : `${Date.now() / 1000 - unix < 86400 ? clock(unix) : date(unix)}, ${ago(unix)}`;
export const parts = generation => String(generation).split(".").map(Number);

const STATES = { CURRENT: "good", WAITING: "warn", HELD: "bad", DIVERGED: "bad", AVAILABLE: "good", LOADING: "warn", END: "bad" };
export const kindOf = state => STATES[state] || "";

const FIGURES = { auc: "AUC", log_loss: "log-loss", hit_rate: "hit rate", ndcg: "NDCG" };

// What a trainer reported, in a few words, and its kind.
export function trainerLine(trainer) {
  const figures = Object.entries(trainer.held_out).map(([name, value]) => `${FIGURES[name] || name} ${score(value)}`);
  return [trainer.silent ? `silent for ${seconds(trainer.age_s)}` : trainer.state, trainer.state === "running" && !trainer.silent ? `${short(trainer.rows_per_s)} rows/s` : "", ...figures].filter(Boolean).join(" · ");
}
export const trainerKind = trainer => trainer.problem ? "bad" : trainer.state === "stopped" ? "" : "good";

// Problems of models, the worst first: { name, state, kind, why, published } each.
export function troubles(models) {
  const found = [];
  for (const [name, model] of Object.entries(models)) {
    if (!Object.keys(model.served).length) found.push({ name, state: "not served", why: (model.versions.find(v => v.error) || {}).error || "no version is loaded" });
    for (const [version, why] of Object.entries(model.gate.held)) found.push({ name, state: "HELD", why: `version ${version} is ${why}` });
    for (const [version, served] of Object.entries(model.served)) {
      const chain = served.chain;
      if (chain && chain.state !== "CURRENT") found.push({ name, state: chain.state, why: `${Object.keys(model.served).length > 1 ? `version ${version}: ` : ""}${chain.reason}${chain.behind ? ` (${number(chain.behind)} ${chain.behind === 1 ? "delta waits" : "deltas wait"})` : ""}`, published: served.published_at });
    }
  }
  for (const [name, model] of Object.entries(models)) {
    const trainer = model.trainer;
    // What its guard holds is HELD above already.
    if (!trainer || !trainer.problem || (trainer.held && !trainer.silent)) continue;
    const [state, ...why] = trainer.problem.split(": ");
    found.push({ name, state, trainer: true, why: why.join(": ") || `its last report was of version ${trainer.version}, step ${trainer.step}` });
  }
  // A trainer's problem is not among these, and so comes first: all else looks well while models grow old.
  const worst = ["DIVERGED", "not served", "HELD", "WAITING"];
  return found.map(t => ({ ...t, kind: t.state === "not served" || t.trainer ? "bad" : kindOf(t.state) })).sort((a, b) => worst.indexOf(a.state) - worst.indexOf(b.state));
}
