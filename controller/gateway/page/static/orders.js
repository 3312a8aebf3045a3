/** Orders to the cluster, and whether the caller may give any. */

import { postJson } from "./api.js";
import { confirmed } from "./dialog.js";
import { el, setAttribute, setText } from "./dom.js";
import { clean } from "./format.js";
import { askForKey } from "./key.js";

export const WHY_NO_ORDERS = "Orders are off, because this gateway requires no keys. To give orders, make a key with " +
  "“gateway keys add NAME --admin” and start the gateway with keys.";
let timer = 0;

/** Say what happened, where screen readers hear it. */
export function announce(text, isError = false) {
  const node = document.getElementById("announcement");
  setText(node, clean(text, 300));
  setAttribute(node, "class", isError ? "toast bad" : "toast");
  clearTimeout(timer);
  timer = setTimeout(() => setText(node, ""), isError ? 12_000 : 5000);
}

/** @param {{order: string}} order as POST /cluster/orders takes it */
export async function give(order) {
  try {
    const { message } = await (await postJson("/cluster/orders", order)).json();
    announce(message ?? "Done.");
  } catch (error) {
    if (error.status === 401 && (await askForKey(error.message))) return give(order);
    announce(error.message, true);
  }
}

/**
 * A button that gives an order about its row. `order` null: there is nothing to order now, and it is hidden.
 * @param {{label: (row) => string, about: (row) => string, order: (row) => object | null, class?: string, isCancel?: boolean,
 *   question?: (row) => {title: string, text: string, action: string}}} options
 */
export function orderButton(store, { label, about, order, question, isCancel, class: kind = "" }) {
  let current = null;
  const perform = async () => {
    const row = current;
    if (question && !(await confirmed(question(row)))) return;
    const wanted = order(row);
    if (wanted === null) return;
    node.disabled = true;
    await give(wanted);
    node.disabled = !store.mayOrder(isCancel);
  };
  const node = el("button", { class: `button small ${kind}`, type: "button", on: { click: perform } });
  node.disabled = !store.mayOrder(isCancel);
  if (node.disabled) node.title = WHY_NO_ORDERS;
  return { node, update: (row) => {
    current = row;
    setAttribute(node, "hidden", order(row) === null);
    setText(node, label(row));
    setAttribute(node, "aria-label", `${label(row)} ${clean(about(row))}`);
  } };
}
