/** Controllers: who leads, who stands by. */

import { countCell, lines, pill, setForeign, stack, textCell } from "../cells.js";
import { el, setHidden } from "../dom.js";
import { count, duration } from "../format.js";
import { DataTable } from "../table.js";

export function controllersView(store) {
  const leader = el("p", { class: "lead" });
  const table = new DataTable({ noun: "controller", filterHint: "name or state",
    columns: [{ id: "name", title: "Controller", value: (row) => row.id, cell: nameCell },
      { id: "state", title: "Role", value: (row) => row.state, cell: roleCell },
      { id: "tokens", title: "Running", value: (row) => row.active, cell: countCell((row) => row.active) },
      { id: "cached", title: "Waiting", value: (row) => row.waiting, cell: countCell((row) => row.waiting) },
      { id: "age", title: "Up", value: (row) => row.uptime_s, cell: textCell((row) => duration(row.uptime_s), { class: "number" }) }],
    empty: ["No controller answers", "Requests wait until one leads. Start one:",
      "controller --nats nats://FIRST-MAC:4222 --token TOKEN"] });
  const render = () => {
    const { overview } = store;
    const { id, term } = overview?.leader ?? {};
    const leads = `${id} leads in term ${count(term)}. The others stand by, and take over when it is gone.`;
    setForeign(leader, overview ? (id ? leads : "No controller leads at the moment.") : "", 200);
    const rows = (overview?.controllers ?? []).map((row) => [row.id, { ...row, key: row.id }]);
    table.show({ rows: new Map(rows), more: {}, known: overview !== null });
  };
  return { title: "Controllers", node: el("div", {}, leader, table.node), render };
}

const nameCell = stack(textCell((row) => row.id, { class: "strong", limit: 40 }),
  textCell((row) => `version ${row.version ?? "?"}`, { class: "faint", limit: 40 }));

function roleCell() {
  const role = pill();
  const problem = el("span", { class: "faint bad" });
  return lines((row) => {
    role.update(row.leader ? "leading" : row.state, row.leader ? "leader" : row.state);
    setForeign(problem, row.problem ?? "", 160);
    setHidden(problem, !row.problem);
  }, role.node, problem);
}
