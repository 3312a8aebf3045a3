/** A machine's memory as it is: what uses it, and where the limits are. */

import { el, setAttribute, setHidden, setText, setVariable } from "../dom.js";
import { bytes } from "../format.js";

const USES = [["models", "models_bytes"], ["KV", "kv_bytes"], ["other", "other_bytes"], ["free", "available_bytes"]];

/** @returns {import("../cells.js").Part} of a row with `memory` */
export function memoryCell() {
  const segments = USES.slice(0, 3).map(([name]) => el("span", { class: `segment ${name}` }));
  const limits = ["soft", "hard"].map((name) => el("span", { class: `limit ${name}` }));
  const bar = el("div", { class: "memory", "aria-hidden": "true" }, ...segments, ...limits);
  const amounts = USES.map(([name]) => el("span", { class: `amount ${name}` }));
  const pressure = el("strong", { class: "pressure" });
  const node = el("div", { class: "memory-cell" }, bar, el("div", { class: "amounts" }, ...amounts, pressure));

  return { node, update: ({ memory }) => {
    setHidden(node, !memory);
    if (!memory) return;
    const share = (size) => `${Math.min(100, Math.max(0, (100 * (size ?? 0)) / (memory.machine_bytes || 1))).toFixed(1)}%`;
    USES.forEach(([name, field], index) => {
      if (index < 3) setVariable(segments[index], "--share", share(memory[field]));
      setText(amounts[index], `${name} ${bytes(memory[field])}`);
    });
    ["soft", "hard"].forEach((name, index) => {
      const limit = memory[`${name}_bytes`];
      setHidden(limits[index], !limit);
      setVariable(limits[index], "--at", share(limit));
    });
    const soft = `soft limit ${bytes(memory.soft_bytes)}, hard limit ${bytes(memory.hard_bytes)}`;
    setAttribute(node, "title", `${bytes(memory.machine_bytes)} in all; ${soft}`);
    const pressed = memory.pressure && memory.pressure !== "none";
    setText(pressure, pressed ? `above the ${memory.pressure} limit` : "");
    setAttribute(node, "data-pressure", pressed ? memory.pressure : null);
  } };
}
