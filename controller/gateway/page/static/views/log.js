/** What happened: machines that joined and left, requests that migrated, models, roll-outs. */

import { pill, textCell } from "../cells.js";
import { el } from "../dom.js";
import { dateAndTime, timeOfDay } from "../format.js";
import { DataTable } from "../table.js";

export function logView(store) {
  const table = new DataTable({ noun: "event", filterHint: "text, machine, kind or level", order: (row) => -row.number,
    columns: [{ id: "time", title: "Time", value: (row) => row.time, descending: true, cell: timeCell },
      { id: "kind", title: "Kind", value: (row) => row.kind, cell: kindCell },
      { id: "text", title: "What happened", cell: textCell((row) => row.text, { limit: 300 }) }],
    empty: ["Nothing has happened yet", "Machines that join, models that load and requests that migrate are listed here."] });
  const render = () => table.show({ rows: store.log, more: {}, known: store.logKnown });
  return { title: "Log", node: table.node, render };
}

function timeCell() {
  const node = el("time", { class: "number faint" });
  return { node, update: (row) => {
    node.textContent = timeOfDay(row.time);
    node.title = dateAndTime(row.time);
  } };
}
function kindCell() {
  const kind = pill();
  return { node: kind.node, update: (row) => kind.update(row.level, row.kind) };
}
