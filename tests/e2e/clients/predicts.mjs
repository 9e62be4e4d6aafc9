// node predicts.mjs URL BODY REPLY COUNT: so many POSTs of a file by fetch() with its defaults.
import { readFileSync } from "node:fs";

const [url, file, reply, count] = process.argv.slice(2);
const body = readFileSync(file);
const wanted = readFileSync(reply, "utf8");
for (let n = 0; n < Number(count); n++) {
  const answer = await fetch(url, { method: "POST", body });
  const got = await answer.text();
  if (answer.status !== 200 || got !== wanted) throw new Error(`${n}: ${answer.status} ${got}`);
}
console.log("done");
