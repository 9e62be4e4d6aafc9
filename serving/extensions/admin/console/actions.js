// Actions: each shows its effect and its command line, and asks for confirmation before it changes what is served.

import { call, Refusal, signedIn } from "./api.js";
import { byId, button, code, field, h, replace, toast } from "./dom.js";
import { curl } from "./commands.js";

// action: { title, what, method, path, body, file, reason, danger, verb, cli(reason), done(reply) }. Resolves with the
// reply, or null without confirmation.
export function ask(action) {
  const dialog = byId("ask");
  return new Promise(resolve => {
    const body = () => action.body === undefined ? undefined : reason ? { ...action.body, reason: reason.value.trim() } : action.body;
    const reason = action.reason ? h("input", { maxlength: "500", autocomplete: "off", placeholder: "recorded in the chain" }) : null;
    const lines = h("div", { class: "lines" });
    const problem = h("p", { class: "problem", role: "alert" });
    const show = () => replace(lines,
      action.cli ? code(action.cli(reason ? reason.value.trim() : ""), "freshet") : null,
      code(curl(action.method, action.path, action.file ? { file: action.file.name } : body(), signedIn()), "curl"));
    const go = button(action.verb || "Confirm", async () => {
      go.disabled = true;
      go.setAttribute("aria-busy", "true");
      problem.textContent = "";
      try {
        const reply = action.file
          ? await call(action.method, action.path, action.file, "application/octet-stream")
          : await call(action.method, action.path, body());
        answer = reply || {};
        dialog.close();
        toast(action.done ? action.done(answer) : `${action.title}: done`);
      } catch (error) {
        problem.textContent = error instanceof Refusal ? error.message : String(error);
      }
      go.disabled = false;
      go.removeAttribute("aria-busy");
    }, { class: action.danger ? "danger" : "main" });
    let answer = null;
    replace(dialog,
      h("h2", { id: "ask-title" }, action.title),
      h("p", { class: "what" }, action.what),
      action.detail || null,
      reason ? field("Reason", reason) : null,
      h("details", { class: "same", open: matchMedia("(min-width: 48rem)").matches }, h("summary", {}, "Command line"), lines),
      problem,
      h("div", { class: "row end" }, button("Cancel", () => dialog.close(), { class: "quiet" }), go));
    if (reason) reason.addEventListener("input", show);
    show();
    dialog.addEventListener("close", () => { replace(dialog); resolve(answer); }, { once: true });
    dialog.showModal();
    (reason || go).focus();
  });
}
