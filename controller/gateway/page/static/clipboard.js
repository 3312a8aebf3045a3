/** Copies text, also where the page has no secure context (http to another machine). */

import { el } from "./dom.js";
import { announce } from "./orders.js";

/** @param {() => string} read @param {string} label */
export function copyButton(read, label) {
  const perform = async () => {
    const copied = await copy(read());
    announce(copied ? "Copied." : "The browser did not allow copying.", !copied);
  };
  return el("button", { class: "button small ghost", type: "button", "aria-label": label, on: { click: perform } }, "Copy");
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelection(text);
  }
}

function copySelection(text) {
  const focused = document.activeElement;
  const area = el("textarea", { class: "visually-hidden", "aria-hidden": "true", tabindex: "-1" });
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return copied;
}
