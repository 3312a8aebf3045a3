/** The band above every view: how the cluster is, at a glance. */

import { pill, setForeign } from "./cells.js";
import { el, inFrames, setAttribute, setHidden, setText, setVariable, spans } from "./dom.js";
import { bytes, clean, count, percent, rate } from "./format.js";
import { sparkline } from "./sparkline.js";

const TITLES = { ready: "Ready", degraded: "Degraded", unavailable: "Unavailable" };

/** @param {import("./store.js").Store} store */
export function overviewBand(store) {
  const status = pill();
  const [problem, workers, workersNote, speed] = spans("faint problem", "figure", "faint", "figure");
  const graph = sparkline();
  const [running, waiting, memory, fill, memoryNote, leader, term] = spans("figure", "faint", "figure", "fill", "faint", "figure name", "faint");
  const node = el("dl", { class: "tiles" }, tile("Cluster", "cluster", status.node, problem),
    tile("Machines ready", "ready", workers, workersNote), tile("Tokens/s", "speed", speed, graph.node),
    tile("Requests running", "running", running, waiting),
    tile("Memory", "memory-tile", memory, el("span", { class: "progress plain", "aria-hidden": "true" }, fill), memoryNote),
    tile("Leader", "leader", leader, term));
  const render = inFrames(() => {
    const { overview } = store;
    setAttribute(node, "data-loading", !overview);
    setAttribute(node, "data-problem", Boolean(overview?.problem));
    if (!overview) return;
    status.update(overview.status, TITLES[overview.status] ?? overview.status);
    setForeign(problem, overview.problem ?? "No problem known", 160);
    setText(workers, `${count(overview.ready)} / ${count(overview.workers)}`);
    const away = overview.workers - overview.ready;
    setText(workersNote, overview.workers === 0 ? "none has joined" : away > 0 ? `${count(away)} not ready` : "all ready");
    setText(speed, rate(overview.tokens_per_s));
    graph.update(overview.history?.tokens_per_s);
    setText(running, count(overview.running));
    setText(waiting, `${count(overview.queued + overview.waiting)} waiting`);
    const share = overview.memory_bytes ? overview.memory_used_bytes / overview.memory_bytes : null;
    setText(memory, share === null ? "–" : percent(share));
    setVariable(fill, "--share", `${(100 * (share ?? 0)).toFixed(1)}%`);
    setText(memoryNote, `${bytes(overview.memory_used_bytes)} of ${bytes(overview.memory_bytes)}`);
    setForeign(leader, overview.leader?.id ?? "none", 40);
    setText(term, overview.leader ? `term ${count(overview.leader.term)}` : "requests wait for one");
  });
  return { node, render };
}

function tile(title, kind, ...parts) {
  return el("div", { class: `tile ${kind}` }, el("dt", {}, title), el("dd", {}, ...parts));
}

/** That the stream of events is gone, since when it is tried again, and a button. */
export function connectionNotice(connection) {
  const text = el("span");
  const button = el("button", { class: "button small", type: "button", on: { click: () => connection.retry() } }, "Try now");
  const seconds = el("span", { "aria-hidden": "true" });
  const node = el("div", { class: "notice", hidden: true }, text, seconds, button);
  let status = null;
  const tick = () => {
    const left = Math.max(0, Math.ceil((status.retryAt - Date.now()) / 1000));
    setText(seconds, status.retryAt === null ? "" : left > 0 ? `trying again in ${left} s` : "trying again …");
  };
  setInterval(() => status && tick(), 1000);
  /** @param {import("./connection.js").Status} next */
  const show = (next) => {
    const gone = next.state === "lost" || next.state === "refused";
    setHidden(node, !gone);
    status = gone ? next : null;
    setText(text, gone ? clean(next.text, 300).replace(/[.;]$/, "") + (next.retryAt === null ? "" : ";") : "");
    setText(button, next.state === "refused" ? "Try again" : "Try now");
    if (gone) tick();
  };
  return { node, show };
}
