/** The API key: asked for when the gateway wants one, never part of a URL. */

import { cancelButton, showDialog } from "./dialog.js";
import { el } from "./dom.js";
import { clean } from "./format.js";
import { read, write } from "./storage.js";

const NAME = "mlx-cluster-key";
/** @returns {string | null} */
export const storedKey = () => read("sessionStorage", NAME) ?? read("localStorage", NAME);
/** @param {string | null} key @param {boolean} remember on this computer */
export function storeKey(key, remember = false) {
  write("sessionStorage", NAME, remember ? null : key);
  write("localStorage", NAME, remember ? key : null);
}
let open = null;
/** Ask for a key, once however often this is called. @returns {Promise<boolean>} whether one was given */
export function askForKey(reason) {
  open ??= ask(reason).finally(() => (open = null));
  return open;
}

function ask(reason) {
  const input = el("input", { id: "key", type: "password", pattern: "[!-~]+", autocomplete: "off", spellcheck: "false", required: true });
  const remember = el("input", { id: "remember", type: "checkbox" });
  const form = el("form", { class: "stack" },
    el("h2", { id: "key-title" }, "This gateway needs a key"),
    el("p", { id: "key-reason" }, clean(reason, 300)), el("label", { class: "field" }, "API key", input),
    el("label", { class: "check" }, remember, "Remember on this computer"),
    el("p", { class: "hint" }, "Whoever runs the gateway makes keys with ", el("code", {}, "gateway keys add NAME"), "."),
    el("div", { class: "actions" }, cancelButton(), el("button", { class: "button primary" }, "Connect")));
  const dialog = el("dialog", { "aria-labelledby": "key-title", "aria-describedby": "key-reason" }, form);
  return new Promise((resolve) => {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (key === "") return;
      storeKey(key, remember.checked);
      dialog.close("given");
    });
    showDialog(dialog, () => resolve(dialog.returnValue === "given"));
  });
}
