// Command lines of actions.

const base = () => location.origin;

export const quote = text => /^[A-Za-z0-9_.\/:@%+=,-]+$/.test(text) ? text : `'${String(text).replace(/'/g, `'\\''`)}'`;

// body: JSON, or { file } for an upload.
export function curl(method, path, body, signed) {
  const words = ["curl", "-s", quote(base() + path)];
  if (signed) words.push("-H", '"Authorization: Bearer $FRESHET_ADMIN_TOKEN"');
  if (body && body.file) words.push("-H", "'content-type: application/octet-stream'", "--data-binary", quote(`@${body.file}`));
  else if (body !== undefined) words.push("--json", quote(JSON.stringify(body)));
  const implied = body !== undefined ? "POST" : "GET";
  if (method !== implied) words.push("-X", method);
  return words.join(" ");
}

export function freshet(...words) {
  return ["freshet", ...words.filter(w => w !== null && w !== undefined).map(w => quote(String(w))), "--admin", quote(base())].join(" ");
}

export const reasonOf = reason => reason ? ["--reason", reason] : [];
