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

const TONES = {
  ready: "good", warm: "good", running: "good", active: "good", done: "good", leading: "good", live: "good",
  starting: "busy", warming: "busy", loading: "busy", measuring: "busy", applying: "busy", baking: "busy",
  fetching: "busy", offered: "busy", delegated: "busy", prefill: "busy", connecting: "busy", downloading: "busy",
  draining: "warn", degraded: "warn", queued: "warn", waiting: "warn", preempted: "warn", backing_off: "warn",
  paused: "warn", warning: "warn", soft: "warn", "half-open": "warn", lost: "warn", rolled_back: "warn",
  failed: "bad", unhealthy: "bad", unavailable: "bad", error: "bad", hard: "bad", rolling_back: "bad", open: "bad",
  refused: "bad", info: "none",
};

/** A state as a word with a mark; colour is never all that tells it. */
export function pill() {
  const word = el("span");
  const node = el("span", { class: "pill" }, el("span", { class: "dot", "aria-hidden": "true" }), word);
  const update = (state, shown = state) => {
    setHidden(node, !state);
    setText(word, clean(shown ?? "", 40).replaceAll("_", " "));
    setAttribute(node, "data-tone", TONES[state] ?? null);
  };
  return { node, update };
}

/** @param {string} label what progresses */
export function progressBar(label) {
  const fill = el("span", { class: "fill" });
  const node = el(
    "span",
    { class: "progress", role: "progressbar", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100" },
    fill,
  );
  const update = (share) => {
    const known = Number.isFinite(share);
    const whole = known ? Math.round(Math.min(1, Math.max(0, share)) * 100) : null;
    setAttribute(node, "aria-valuenow", whole);
    setVariable(fill, "--share", known ? `${whole}%` : "35%");
    setAttribute(node, "data-unknown", !known);
  };
  return { node, update };
}

/** Parts below each other. @param {...(() => Part)} makers */
export const stack = (...makers) => () => {
  const parts = makers.map((make) => make());
  const node = el("div", { class: "lines" }, ...parts.map((part) => part.node));
  return { node, update: (row) => parts.forEach((part) => part.update(row)) };
};
