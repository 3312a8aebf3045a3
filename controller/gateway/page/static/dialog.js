/** Modal dialogs: the browser keeps the focus inside, and Escape closes them. */

import { el } from "./dom.js";

/** @param {{title: string, text: string, action: string}} question @returns {Promise<boolean>} */
export function confirmed({ title, text, action }) {
  const dialog = el("dialog", { "aria-labelledby": "confirm-title", "aria-describedby": "confirm-text" });
  const perform = el("button", { class: "button danger", type: "button", on: { click: () => dialog.close("yes") } }, action);
  dialog.append(el("div", { class: "stack" }, el("h2", { id: "confirm-title" }, title),
    el("p", { id: "confirm-text" }, text), el("div", { class: "actions" }, cancelButton(), perform)));
  return new Promise((resolve) => showDialog(dialog, () => resolve(dialog.returnValue === "yes")));
}

export function cancelButton() {
  const close = (event) => event.target.closest("dialog").close("");
  return el("button", { class: "button", type: "button", on: { click: close } }, "Cancel");
}

/** @param {() => void} onClose called however it closes; Escape closes it without a value */
export function showDialog(dialog, onClose) {
  dialog.addEventListener("close", () => {
    dialog.remove();
    onClose();
  });
  document.body.append(dialog);
  dialog.showModal();
}
