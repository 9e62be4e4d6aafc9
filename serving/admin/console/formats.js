// Numbers as people read them.

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

// Without the zeros at the end.
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
export const parts = generation => String(generation).split(".").map(Number);

const STATES = { CURRENT: "good", WAITING: "warn", HELD: "warn", DIVERGED: "bad", AVAILABLE: "good", LOADING: "warn", END: "bad" };
export const kindOf = state => STATES[state] || "";
