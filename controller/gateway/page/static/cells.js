/** Cells of tables: each touches the page only where its row has changed. */

import { el, setAttribute, setHidden, setText, setVariable } from "./dom.js";
import { clean, count } from "./format.js";

/** @typedef {{node: Element, update: (row: any) => void}} Part */
/** @param {(row: any) => string} read text that may be foreign @returns {() => Part} */
export const textCell = (read, { class: kind = null, limit = 80 } = {}) => () => {
  const node = el("span", { class: kind });
  return { node, update: (row) => setForeign(node, read(row), limit) };
};
/** Foreign text, with the whole of it, up to 300 characters, in the title. */
export function setForeign(node, text, limit = 80) {
  setText(node, clean(text, limit));
  setAttribute(node, "title", String(text ?? "").length > limit ? clean(text, 300) : null);
}
export const countCell = (read) => textCell((row) => count(read(row)), { class: "number" });
const WORDS = { good: "ready warm running active done leading live",
  busy: "starting warming loading measuring applying baking fetching offered delegated prefill connecting downloading",
  warn: "draining degraded queued waiting preempted backing_off paused warning soft half-open lost rolled_back",
  bad: "failed unhealthy unavailable error hard rolling_back open refused" };
const TONES = new Map(Object.entries(WORDS).flatMap(([tone, words]) => words.split(" ").map((word) => [word, tone])));

/** A state as a word with a mark; colour is never all that tells it. */
export function pill() {
  const word = el("span");
  const node = el("span", { class: "pill" }, el("span", { class: "dot", "aria-hidden": "true" }), word);
  return { node, update: (state, shown = state) => {
    setHidden(node, !state);
    setText(word, clean(shown ?? "", 40).replaceAll("_", " "));
    setAttribute(node, "data-tone", TONES.get(state));
  } };
}

/** @param {string} label what progresses */
export function progressBar(label) {
  const fill = el("span", { class: "fill" });
  const node = el("span",
    { class: "progress", role: "progressbar", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100" }, fill);
  return { node, update: (share) => {
    const known = Number.isFinite(share);
    const whole = known ? Math.round(Math.min(1, Math.max(0, share)) * 100) : null;
    setAttribute(node, "aria-valuenow", whole);
    setVariable(fill, "--share", known ? `${whole}%` : "35%");
    setAttribute(node, "data-unknown", !known);
  } };
}

/** Nodes below each other. @returns {Part} */
export const lines = (update, ...nodes) => ({ node: el("div", { class: "lines" }, ...nodes), update });
/** Parts below each other. @param {...(() => Part)} makers */
export const stack = (...makers) => () => {
  const parts = makers.map((make) => make());
  const node = el("div", { class: "lines" }, ...parts.map((part) => part.node));
  return { node, update: (row) => parts.forEach((part) => part.update(row)) };
};
