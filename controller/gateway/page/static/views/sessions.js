/** Sessions: conversations whose turns come back to the machine that has them cached. */

import { countCell, stack, textCell } from "../cells.js";
import { bytes, clean, duration, shortModel } from "../format.js";
import { orderButton } from "../orders.js";
import { DataTable } from "../table.js";

export function sessionsView(store) {
  const of = (row) => ({ client: row.client, session_id: row.session_id, worker: row.worker });
  const about = (row) => `session ${row.session_id}`;
  const buttons = stack(
    () => orderButton(store, { label: (row) => (row.pinned ? "Unpin" : "Pin"), about,
      order: (row) => ({ order: "pin_session", ...of(row), pinned: !row.pinned }) }),
    () => orderButton(store, { label: () => "Forget", about, order: (row) => ({ order: "forget_session", ...of(row) }),
      question: ({ worker }) => ({ title: "Forget this session?", action: "Forget",
        text: `${clean(worker, 60)} drops its messages and cached tokens. The next turn must send the whole conversation.` }) }));
  const table = new DataTable({ noun: "session", filterHint: "id, client or machine", order: (row) => row.idle_s,
    columns: [{ id: "name", title: "Session", value: (row) => row.session_id, cell: nameCell },
      { id: "worker", title: "Machine", value: (row) => row.worker, cell: textCell((row) => row.worker, { limit: 36 }) },
      { id: "model", title: "Model", value: (row) => row.model, cell: textCell((row) => shortModel(row.model), { limit: 60 }) },
      { id: "tokens", title: "Turns", value: (row) => row.turns, descending: true, cell: countCell((row) => row.turns) },
      { id: "cached", title: "Cached", value: (row) => row.cached_tokens, descending: true, cell: countCell((row) => row.cached_tokens) },
      { id: "size", title: "KV memory", value: (row) => row.bytes, descending: true, cell: textCell((row) => bytes(row.bytes), { class: "number" }) },
      { id: "age", title: "Idle", value: (row) => row.idle_s, cell: textCell((row) => duration(row.idle_s), { class: "number" }) },
      { id: "act", title: "Orders", cell: buttons }],
    empty: ["No sessions",
      "A request with a session_id begins one; its turns then run in order, on the machine that has it cached.",
      "cluster run --session notes “Remember this: …”"] });
  return { title: "Sessions", node: table.node, render: () => table.show(store.tables.sessions) };
}

const nameCell = stack(textCell((row) => row.session_id, { class: "mono", limit: 40 }),
  textCell((row) => `${clean(row.client, 40)}${row.pinned ? " · pinned" : ""}`, { class: "faint", limit: 60 }));
