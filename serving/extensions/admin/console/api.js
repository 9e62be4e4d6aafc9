// Calls of this port, with the token if there is one. A 401 opens the sign-in.

let token = sessionStorage.getItem("token") || "";
let refused = () => {};

export const signedIn = () => token !== "";
export const onRefused = act => { refused = act; };
export function signIn(value) {
  token = value;
  if (value) sessionStorage.setItem("token", value); else sessionStorage.removeItem("token");
}

export class Refusal extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

// A 401 to a token that has been replaced since says nothing of the one that is in use.
function refuse(asked) {
  if (asked === token) refused();
}

function headers(more) {
  return token ? { ...more, authorization: `Bearer ${token}` } : more;
}

// The reply's JSON; throws Refusal with the server's own message.
export async function call(method, path, body, type = "application/json") {
  const asked = token, sent = body === undefined ? undefined : type === "application/json" && typeof body !== "string" ? JSON.stringify(body) : body;
  let reply;
  try {
    reply = await fetch(path, { method, body: sent, headers: headers(body === undefined ? {} : { "content-type": type }) });
  } catch {
    throw new Refusal(0, "The server does not answer.");
  }
  if (reply.status === 401) refuse(asked);
  let found = null;
  try { found = await reply.json(); } catch { /* reported by its status */ }
  if (!reply.ok) throw new Refusal(reply.status, found && found.error ? String(found.error) : `the server replied ${reply.status}`);
  return found;
}

export const get = path => call("GET", path);
export const model = (name, rest = "") => `/admin/models/${encodeURIComponent(name)}${rest}`;

// Follows /admin/live while the page is open; a stream that ends is opened again, with growing delays.
export async function follow(onSample, onState) {
  for (let wait = 500; ; wait = Math.min(wait * 2, 8000)) {
    const asked = token;
    try {
      const reply = await fetch("/admin/live", { headers: headers({ accept: "text/event-stream" }) });
      if (reply.status === 401) { refuse(asked); onState("signed out"); }
      else if (reply.status === 429) onState("too many live streams");
      else if (reply.ok) { onState(""); wait = 500; await events(reply.body.getReader(), onSample); onState("reconnecting"); }
      else onState("not ready");
    } catch { onState("no answer"); }
    await new Promise(done => setTimeout(done, wait));
  }
}

async function events(reader, onSample) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = blocks.pop();
    const samples = [];
    for (const block of blocks) {
      const line = block.split("\n").find(l => l.startsWith("data: "));
      if (line) samples.push(JSON.parse(line.slice(6)));
    }
    if (samples.length) onSample(samples);
  }
}
