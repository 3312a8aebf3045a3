/** Requests: where each one is and how far; cancel them. */

import { countCell, lines, pill, progressBar, setForeign, stack, textCell } from "../cells.js";
import { el, setHidden, setText, spans } from "../dom.js";
import { clean, count, duration, percent, rate, shortModel } from "../format.js";
import { orderButton } from "../orders.js";
import { DataTable } from "../table.js";

export function requestsView(store) {
  const table = new DataTable({ noun: "request", filterHint: "id, client, model, machine or state",
    columns: [{ id: "name", title: "Request", value: (row) => row.id, cell: nameCell },
      { id: "model", title: "Model", value: (row) => row.model ?? row.skill, cell: modelCell },
      { id: "state", title: "State", value: (row) => row.state, cell: stateCell },
      { id: "worker", title: "Machine", value: (row) => row.worker ?? "", cell: workerCell },
      { id: "tokens", title: "Tokens", value: (row) => row.tokens, descending: true, cell: countCell((row) => row.tokens) },
      { id: "rate", title: "Tokens/s", value: (row) => row.tokens_per_s, descending: true, cell: textCell((row) => rate(row.tokens_per_s), { class: "number" }) },
      { id: "age", title: "Time", value: (row) => row.elapsed_ms, descending: true, cell: textCell((row) => duration(row.elapsed_ms / 1000), { class: "number" }) },
      { id: "act", title: "Orders", cell: () => cancelButton(store) }],
    empty: ["No request at the moment", "Requests appear here while they wait and run. Ask something:", null,
      el("p", {}, el("a", { class: "button", href: "#chat" }, "Open the chat"))] });
  const states = el("p", { class: "faint states" });
  const node = el("div", {}, states, table.node);
  const render = () => {
    const { more } = store.tables.requests;
    const counts = Object.entries(more.states ?? {}).filter(([, number]) => number);
    setText(states, counts.map(([state, number]) => `${count(number)} ${clean(state, 20).replaceAll("_", " ")}`).join(" · "));
    setHidden(states, counts.length === 0);
    table.show(store.tables.requests);
  };
  return { title: "Requests", node, render };
}

const clientOf = (row) => [row.client, row.session_id && `session ${row.session_id}`].filter(Boolean).join(" · ");
const nameCell = stack(textCell((row) => row.id, { class: "mono", limit: 36 }), textCell(clientOf, { class: "faint", limit: 48 }));
const modelCell = stack(textCell((row) => shortModel(row.model), { limit: 60 }),
  textCell((row) => [row.skill, row.priority].filter(Boolean).join(" · "), { class: "faint", limit: 40 }));

function stateCell() {
  const state = pill();
  const progress = progressBar("prefill or loading");
  const note = el("span", { class: "faint" });
  const node = el("div", { class: "lines" }, state.node, progress.node, note);
  return { node, update: (row) => {
    const at = row.state === "running" ? (row.status ?? row.state) : row.state;
    state.update(at);
    const progresses = Number.isFinite(row.progress) && at !== "running";
    setHidden(progress.node, !progresses);
    if (progresses) progress.update(row.progress);
    setForeign(note, [progresses && percent(row.progress), row.reason].filter(Boolean).join(" · "), 90);
  } };
}

function workerCell() {
  const [worker, moved] = spans(null, "faint moved");
  return lines((row) => {
    setForeign(worker, row.worker ?? "–", 36);
    const times = row.migrations > 1 ? ` (${count(row.migrations)} moves)` : "";
    setForeign(moved, row.moved_from ? `moved from ${clean(row.moved_from, 36)}${times}` : "", 60);
    setHidden(moved, !row.moved_from);
  }, worker, moved);
}

function cancelButton(store) {
  return orderButton(store, { label: () => "Cancel", isCancel: true, about: (row) => row.id,
    order: (row) => ({ order: "cancel", client: row.client, request_id: row.id }) });
}
