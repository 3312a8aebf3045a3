/** Machines: memory, load, engines and models of each worker. */

import { lines, pill, setForeign, stack, textCell } from "../cells.js";
import { el, keyed, setAttribute, setHidden, setText, spans } from "../dom.js";
import { count, duration, plural, rate, shortModel } from "../format.js";
import { sparkline } from "../sparkline.js";
import { DataTable } from "../table.js";
import { memoryCell } from "./memory.js";

const queueLength = ({ queued }) => (queued ? queued.high + queued.medium + queued.low : 0);

export function machinesView(store) {
  const table = new DataTable({ noun: "machine", filterHint: "name, chip, state or model", order: (row) => row.id,
    columns: [{ id: "name", title: "Machine", value: (row) => row.id, cell: nameCell },
      { id: "state", title: "State", value: (row) => row.state, cell: stateCell },
      { id: "used", title: "Memory", value: (row) => row.memory?.available_bytes, cell: memoryCell },
      { id: "load", title: "Queue", value: queueLength, descending: true, cell: loadCell },
      { id: "speed", title: "Tokens/s", value: (row) => row.tokens_per_s, descending: true, cell: speedCell },
      { id: "warm", title: "Models", value: (row) => row.models?.warm, descending: true, cell: warmCell },
      { id: "engines", title: "Engines", value: restarts, descending: true, cell: enginesCell }],
    empty: ["No machine has joined yet", "Run this on each Mac that shall serve models:",
      "worker --nats nats://FIRST-MAC:4222 --token TOKEN",
      el("p", { class: "hint" }, "“cluster up --listen 0.0.0.0” on the first Mac prints this line with its address and token.")] });
  return { title: "Machines", node: table.node, render: () => table.show(store.tables.machines) };
}

const restarts = ({ engines }) => (engines ?? []).reduce((sum, engine) => sum + (engine.restarts ?? 0), 0);
const nameCell = stack(textCell((row) => row.id, { class: "strong", limit: 40 }),
  textCell((row) => [row.chip ?? row.accelerator, row.os].filter(Boolean).join(" · "), { class: "faint", limit: 48 }),
  textCell((row) => `up ${duration(row.uptime_s)} · ${row.version ?? "?"}`, { class: "faint", limit: 48 }));

function stateCell() {
  const state = pill();
  const breaker = pill();
  const problem = el("span", { class: "faint bad" });
  const node = el("div", { class: "lines" }, state.node, breaker.node, problem);
  return { node, update: (row) => {
    state.update(row.state);
    breaker.update(row.breaker, `breaker ${row.breaker}`);
    setForeign(problem, row.config_problem ?? "", 60);
    setHidden(problem, !row.config_problem);
  } };
}

function loadCell() {
  const amounts = ["high", "medium", "low"].map((name) => [name, el("span", { class: "number" })]);
  const queues = amounts.map(([name, amount]) => el("span", { class: "priority" }, amount, el("span", { class: "faint" }, name)));
  const slots = el("span", { class: "faint" });
  return lines((row) => {
    for (const [name, amount] of amounts) setText(amount, count(row.queued?.[name] ?? 0));
    setText(slots, `${count(row.rows)} of ${plural(row.slots, "slot")}`);
  }, el("span", { class: "queues" }, ...queues), slots);
}

function speedCell() {
  const now = el("span", { class: "number strong" });
  const graph = sparkline();
  const node = el("div", { class: "speed-cell" }, now, graph.node);
  return { node, update: (row) => {
    setText(now, rate(row.tokens_per_s));
    graph.update(row.history);
  } };
}

function warmCell() {
  const [names, others] = spans("chips", "faint");
  const node = el("div", { class: "lines" }, names, others);
  const chip = () => {
    const name = el("span", { class: "chip" });
    return { node: name, update: ([, model]) => setForeign(name, shortModel(model), 60) };
  };
  return { node, update: (row) => {
    const warm = (row.warm ?? []).slice(0, 3).map((name, index) => [String(index), name]);
    keyed(names, warm, ([index]) => index, chip);
    const { models = {} } = row;
    const rest = [(models.warm ?? 0) > warm.length && `${models.warm - warm.length} more warm`,
      models.loading && `${models.loading} loading`, models.failed && `${models.failed} failed`,
      !models.warm && !models.loading && "none warm"];
    setText(others, rest.filter(Boolean).join(" · "));
    setAttribute(others, "class", models.failed ? "faint bad" : "faint");
  } };
}

function enginesCell() {
  const [list, note] = spans("chips", "faint");
  const node = el("div", { class: "lines" }, list, note);
  const engine = () => {
    const state = pill();
    return { node: state.node, update: (each) => {
      state.update(each.state, `engine ${each.index}: ${each.state}`);
      setAttribute(state.node, "title", Number.isFinite(each.step_ms) ? `step ${each.step_ms.toFixed(1)} ms` : null);
    } };
  };
  return { node, update: (row) => {
    keyed(list, (row.engines ?? []).slice(0, 4), (each) => String(each.index), engine);
    const times = restarts(row);
    const more = (row.engines?.length ?? 0) - 4;
    setText(note, [more > 0 && `${more} more`, times > 0 && plural(times, "restart")].filter(Boolean).join(" · "));
  } };
}
