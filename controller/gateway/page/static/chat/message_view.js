/** One message of the conversation. */

import { setForeign } from "../cells.js";
import { copyButton } from "../clipboard.js";
import { el, keyed, setAttribute, setHidden, setText, spans } from "../dom.js";
import { clean, cleanProse, count, rate, shortModel } from "../format.js";
import { renderMarkdown } from "../markdown.js";

const FINISHES = { length: "The answer reached its limit of tokens.", content_filter: "The answer was filtered." };
/** @param {import("./conversation.js").Message} message @param {() => void} retry */
export function messageView(message, retry) {
  return message.role === "user" ? question(message) : answer(message, retry);
}
function question(message) {
  const text = el("p", { class: "plain", dir: "auto" }, cleanProse(message.content));
  return { node: el("li", { class: "message user" }, el("h3", { class: "visually-hidden" }, "You"), text), update: () => {} };
}

function answer(message, retry) {
  const [title, reasoning] = [el("summary"), el("div", { class: "plain" })];
  const details = el("details", { class: "reasoning", hidden: true }, title, reasoning);
  const [text, calls, error] = [el("div", { class: "prose" }), el("ul", { class: "calls" }), el("p", { class: "failure" })];
  const [facts, moves, caret, waitText] = spans("facts", "moved", "caret", null);
  const wait = el("p", { class: "wait" }, caret, waitText);
  const copy = copyButton(() => message.content, "Copy the answer");
  const again = el("button", { class: "button small ghost", type: "button", on: { click: retry } }, "Retry");
  const foot = el("div", { class: "message-foot" }, facts, moves, el("span", { class: "buttons" }, copy, again));
  const node = el("li", { class: "message assistant" }, el("h3", { class: "visually-hidden" }, "Answer"), details, text, calls, wait, error, foot);
  let folded = false;

  return { node, update: ({ isLast, note }) => {
    const streams = message.state === "streaming";
    setAttribute(node, "data-state", message.state);
    setHidden(details, !message.reasoning);
    if (message.reasoning) {
      const thinks = streams && !message.content;
      setText(title, thinks ? "Reasoning …" : `Reasoning (${count(message.reasoning.length)} characters)`);
      setText(reasoning, cleanProse(message.reasoning));
      if (!folded) details.open = thinks;
      folded ||= !thinks; // from now on it is the reader's
    }
    renderMarkdown(text, message.content);
    keyed(calls, (message.calls ?? []).map((call, index) => ({ ...call, index })), (call) => String(call.index), toolCall);
    setHidden(wait, !streams || Boolean(message.content || message.reasoning));
    setText(waitText, note || "Waiting for the first token");
    const ended = { failed: message.error, stopped: "Stopped." }[message.state] ?? FINISHES[message.finish] ?? "";
    setForeign(error, ended ?? "", 600);
    setHidden(error, !ended);
    setAttribute(error, "data-tone", message.state === "failed" ? "bad" : null);
    setText(facts, factsOf(message));
    setText(moves, (message.moves ?? []).map(({ from, to }) => `moved from ${clean(from, 40)} to ${clean(to, 40)}`).join(" · "));
    setHidden(again, streams || !isLast);
    setHidden(copy, !message.content);
    setAttribute(again, "class", message.state === "failed" ? "button small primary" : "button small ghost");
  } };
}

function factsOf(message) {
  return [message.worker && `on ${clean(message.worker, 40)}`, message.model && clean(shortModel(message.model), 60),
    message.tokens && `${count(message.tokens)} tokens`,
    Number.isFinite(message.speed) && `${rate(message.speed)} tokens/s`].filter(Boolean).join(" · ");
}

function toolCall() {
  const name = el("code", { class: "strong" });
  const values = el("pre", { tabindex: "0", role: "region", "aria-label": "arguments of the tool call" });
  const node = el("li", {}, el("span", { class: "faint" }, "Tool call "), name, values);
  return { node, update: (call) => {
    setForeign(name, call.name, 80);
    setText(values, cleanProse(call.arguments));
  } };
}
