/** Models: where they are warm, load or failed; load, unload and pin them. */

import { pill, progressBar, setForeign, stack, textCell } from "../cells.js";
import { el, keyed, setAttribute, setHidden, setText, spans } from "../dom.js";
import { bytes, clean, count, duration, percent } from "../format.js";
import { orderButton } from "../orders.js";
import { DataTable } from "../table.js";

const FEW = 4;
const ORDER = ["failed", "loading", "warm", "available"];

export function modelsView(store) {
  const table = new DataTable({ noun: "model", filterHint: "name, skill, state or machine", order: (row) => row.id,
    columns: [{ id: "name", title: "Model", value: (row) => row.id, cell: nameCell },
      { id: "size", title: "Size", value: (row) => row.size_bytes, descending: true, cell: sizeCell },
      { id: "load", title: "Requests", value: (row) => row.active + row.queued, descending: true, cell: loadCell },
      { id: "where", title: "Machines", value: (row) => row.states?.warm, descending: true, cell: () => workersCell(store) }],
    empty: ["No machine knows a model yet", "Name models and skills in cluster.yaml, or start a worker with one:",
      "cluster up --model mlx-community/Qwen3-4B-4bit"] });
  return { title: "Models", node: table.node, render: () => table.show(store.tables.models) };
}

function nameCell() {
  const [name, skills, alone] = spans("strong", "faint", "faint warn");
  const warnings = el("ul", { class: "warnings" });
  const node = el("div", { class: "lines" }, name, skills, alone, warnings);
  const warning = () => {
    const line = el("li");
    return { node: line, update: ([, text]) => setForeign(line, text, 140) };
  };
  return { node, update: (row) => {
    setForeign(name, row.id, 60);
    setForeign(skills, [...(row.skills ?? []), ...(row.abilities ?? [])].join(" · "), 80);
    const reason = row.batching_reason ? `: ${row.batching_reason}` : "";
    setForeign(alone, row.batching === "alone" ? `one request at a time${reason}` : "", 120);
    keyed(warnings, (row.warnings ?? []).slice(0, 3).map((text, index) => [String(index), text]), ([index]) => index, warning);
  } };
}

const sizeCell = stack(textCell((row) => bytes(row.size_bytes || null), { class: "number" }),
  textCell((row) => (row.context_tokens ? `${count(row.context_tokens)} tokens` : ""), { class: "faint number" }));
const loadCell = stack(textCell((row) => `${count(row.active)} running`, { class: "number" }),
  textCell((row) => `${count(row.queued)} queued`, { class: "faint number" }));

function workersCell(store) {
  const summary = el("span", { class: "faint" });
  const list = el("ul", { class: "placements" });
  let all = false;
  let current = null;
  const toggle = () => {
    all = !all;
    update(current);
  };
  const more = el("button", { class: "link", type: "button", on: { click: toggle } });
  const node = el("div", { class: "lines wide" }, summary, list, more);
  function update(row) {
    current = row;
    const { states = {} } = row;
    setText(summary, ORDER.filter((state) => states[state]).map((state) => `${count(states[state])} ${state}`).join(" · ") || "on no machine");
    const workers = [...(row.workers ?? [])].sort((left, right) => ORDER.indexOf(left.state) - ORDER.indexOf(right.state));
    const shown = all ? workers : workers.slice(0, FEW);
    keyed(list, shown.map((each) => ({ ...each, model: row.id })), (each) => each.worker, () => placement(store));
    setHidden(more, workers.length <= FEW);
    setText(more, all ? "Show fewer" : `Show ${workers.length - FEW} more machines`);
    setAttribute(more, "aria-expanded", String(all));
  }
  return { node, update };
}

/** A model on one machine. */
function placement(store) {
  const worker = el("span", { class: "worker" });
  const state = pill();
  const progress = progressBar("loading");
  const [detail, error] = spans("faint", "bad reason");
  const about = (row) => `${row.model} on ${row.worker}`;
  const order = (name) => (row) => ({ order: name, model: row.model, worker: row.worker });
  const buttons = [
    orderButton(store, { label: (row) => (row.state === "failed" ? "Retry" : "Load"), about, order: (row) => (["available", "failed"].includes(row.state) ? order("load")(row) : null) }),
    orderButton(store, { label: (row) => (row.pinned ? "Unpin" : "Pin"), about, order: (row) => (row.state === "failed" ? null : { ...order("pin")(row), pinned: !row.pinned }) }),
    orderButton(store, { label: () => "Unload", about, order: (row) => (row.state === "warm" ? order("unload")(row) : null),
      question: (row) => ({ title: `Unload ${clean(row.model, 60)}?`,
        text: `The next request for it on ${clean(row.worker, 60)} waits until it is loaded again.`, action: "Unload" }) }),
  ];
  const node = el("li", {}, worker, state.node, el("span", { class: "grow" }, progress.node, detail, error),
    el("span", { class: "buttons" }, ...buttons.map((button) => button.node)));
  return { node, update: (row) => {
    setForeign(worker, row.worker, 32);
    const loading = row.state === "loading";
    state.update(row.state, loading ? (row.phase ?? "loading") : row.state);
    setHidden(progress.node, !loading);
    if (loading) progress.update(row.progress);
    setForeign(detail, detailOf(row, loading), 80);
    setForeign(error, row.state === "failed" ? (row.error ?? "no reason given") : "", 160);
    for (const button of buttons) button.update(row);
  } };
}

function detailOf(row, loading) {
  const parts = [];
  if (loading && Number.isFinite(row.progress)) parts.push(percent(row.progress));
  if (row.pinned) parts.push("pinned");
  if (row.active) parts.push(`${count(row.active)} running`);
  if (row.queued) parts.push(`${count(row.queued)} queued`);
  if (row.state === "warm" && !row.active && row.idle_s >= 10) parts.push(`idle ${duration(Math.floor(row.idle_s / 10) * 10)}`);
  return parts.join(" · ");
}
