/** The roll-out of cluster.yaml: its stages and gates; pause it, resume it, roll it back. */

import { pill, setForeign } from "../cells.js";
import { el, emptyState, inFrames, keyed, setAttribute, setHidden, setText } from "../dom.js";
import { clean, count, dateAndTime, plural } from "../format.js";
import { orderButton } from "../orders.js";

const PHASES = { measuring: "The baseline is measured; no machine has the new version yet.",
  applying: "The machines of this step apply the new version, one after another.",
  baking: "The machines of this step are watched and compared with the baseline.",
  rolling_back: "All machines return to the previous version.", done: "All machines have this version.",
  rolled_back: "All machines have the previous version again." };
const ENDED = ["done", "rolled_back"];

export function rolloutView(store) {
  const stable = el("p", { class: "lead" });
  const current = currentRollout(store);
  const history = el("ol", { class: "history" });
  const past = el("section", { "aria-labelledby": "past" }, el("h2", { id: "past" }, "Earlier roll-outs"), history);
  const empty = emptyState("No roll-out yet",
    "Every machine uses its own cluster.yaml. Bring one version to all of them, step by step:",
    "cluster rollout apply config/cluster.yaml");
  const node = el("div", { class: "data" }, stable, current.node, empty, past);
  const render = inFrames(() => {
    const { rollout: state } = store;
    setText(stable, !state ? "Loading …" : `Stable version ${state.stable || "0 (each machine’s own file)"} · last version ${state.last_version ?? 0}`);
    setHidden(empty, !state || Boolean(state.rollout));
    setHidden(current.node, !state?.rollout);
    if (state?.rollout) current.update(state);
    setHidden(past, !state?.history?.length);
    keyed(history, state?.history ?? [], (each) => `${each.version}-${each.began_at}`, pastRollout);
  });
  return { title: "Roll-out", node, render };
}

function currentRollout(store) {
  const phase = pill();
  const [title, meaning, steps] = [el("h2"), el("p"), el("ol", { class: "steps" })];
  const [about, gate] = [el("p", { class: "faint" }), el("p", { class: "bad", role: "status" })];
  const order = (name, possible) => (state) => (possible(state) ? { order: name } : null);
  const runs = ({ rollout }) => !ENDED.includes(rollout.phase) && rollout.phase !== "rolling_back";
  const subject = ({ rollout }) => `roll-out of version ${rollout.version}`;
  const buttons = [
    orderButton(store, { label: () => "Pause", about: subject, order: order("pause", (state) => runs(state) && !state.rollout.paused) }),
    orderButton(store, { label: () => "Resume", about: subject, order: order("resume", (state) => runs(state) && state.rollout.paused) }),
    orderButton(store, { label: () => "Roll back", class: "danger", about: subject,
      order: order("roll_back", ({ rollout }) => !["rolling_back", "rolled_back"].includes(rollout.phase)),
      question: ({ rollout }) => ({ title: `Roll back version ${rollout.version}?`,
        text: `All machines return to version ${rollout.before}. Machines that must restart drain for 3 seconds at most.`,
        action: "Roll back" }) })];
  const heading = el("div", { class: "bar" }, title, phase.node, el("span", { class: "buttons" }, ...buttons.map((each) => each.node)));
  const node = el("section", { class: "panel" }, heading, meaning, gate, steps, about);
  return { node, update: (state) => {
    const { rollout } = state;
    setText(title, `Version ${count(rollout.before)} → ${count(rollout.version)}`);
    const paused = rollout.paused && runs(state);
    phase.update(paused ? "paused" : rollout.phase, paused ? `paused (${rollout.phase})` : rollout.phase);
    setText(meaning, PHASES[rollout.phase] ?? "");
    setForeign(gate, rollout.reason ? `Rolled back, because a gate failed or somebody asked: ${rollout.reason}` : "", 400);
    setHidden(gate, !rollout.reason);
    setForeign(about, aboutOf(rollout), 300);
    keyed(steps, stepsOf(rollout), (step) => String(step.number), stepPart);
    for (const button of buttons) button.update(state);
  } };
}

function stepsOf(rollout) {
  const { phase, step, steps = [] } = rollout;
  const back = phase === "rolling_back" || phase === "rolled_back";
  return steps.map((workers, number) => {
    let state = number < step || phase === "done" ? "done" : number > step || phase === "measuring" ? "to come" : phase;
    if (back) state = number <= step ? phase : "not reached";
    return { number, workers, state };
  });
}

function stepPart() {
  const [title, state, workers] = [el("strong"), pill(), el("span", { class: "faint" })];
  const node = el("li", {}, title, state.node, workers);
  return { node, update: (step) => {
    setText(title, `Step ${step.number + 1}`);
    state.update(step.state);
    const names = step.workers.slice(0, 6).map((name) => clean(name, 32));
    const more = step.workers.length - names.length;
    setText(workers, `${plural(step.workers.length, "machine")}: ${names.join(", ")}${more > 0 ? ` and ${more} more` : ""}`);
    setAttribute(node, "data-state", step.state);
  } };
}

function aboutOf(rollout) {
  const by = rollout.by ? ` by ${rollout.by}` : "";
  const note = rollout.note ? ` · “${rollout.note}”` : "";
  return `Began ${dateAndTime(rollout.began_at)}${by}${note} · in this phase since ${dateAndTime(rollout.since)}`;
}

function pastRollout() {
  const [title, phase, about] = [el("strong"), pill(), el("span", { class: "faint" })];
  const node = el("li", {}, title, phase.node, about);
  return { node, update: (rollout) => {
    setText(title, `Version ${count(rollout.before)} → ${count(rollout.version)}`);
    phase.update(rollout.phase);
    setForeign(about, [aboutOf(rollout), rollout.reason].filter(Boolean).join(" · "), 300);
  } };
}
