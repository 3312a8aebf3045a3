/** The chat: asks, shows the answer while it streams, and which machine writes it. */

import { askForKey } from "../key.js";
import { confirmed } from "../dialog.js";
import { el, emptyState, inFrames, keyed, setHidden, setText } from "../dom.js";
import { clean, cleanProse, percent } from "../format.js";
import { announce } from "../orders.js";
import { complete } from "./completion.js";
import { Conversation } from "./conversation.js";
import { messageView } from "./message_view.js";
import { chatSettings } from "./settings.js";

const READ_ALOUD_LIMIT = 2000;

export class Chat {
  title = "Chat";
  /** Whether an answer streams; it needs the requests, to know where. */
  answers = false;
  #abort = null;
  #note = "";
  #follows = true;

  /** @param {import("../store.js").Store} store @param {() => void} onStreaming */
  constructor(store, onStreaming) {
    this.store = store;
    this.onStreaming = onStreaming;
    this.conversation = new Conversation();
    this.settings = chatSettings(this.conversation);
    this.render = inFrames(() => this.#render());
    this.node = this.#build();
  }

  /** The view has been opened. */
  open() {
    this.settings.load();
    this.#follows = true;
    this.render();
  }

  #build() {
    this.input = el("textarea", { id: "question", rows: "1", placeholder: "Ask something", "aria-label": "Your message",
      on: { keydown: (event) => this.#key(event), input: () => this.#grow() } });
    this.sendButton = el("button", { class: "button primary" }, "Send");
    this.stopButton = el("button", { class: "button", type: "button", hidden: true, on: { click: () => this.stop() } }, "Stop");
    const submit = (event) => (event.preventDefault(), this.#send());
    const hint = el("span", { class: "hint" }, "Enter sends, Shift+Enter begins a line, Escape stops");
    const form = el("form", { class: "composer", on: { submit } }, this.input,
      el("div", { class: "composer-foot" }, hint, this.stopButton, this.sendButton));
    this.empty = emptyState("Ask the cluster",
      "Any machine that has the model answers. The conversation stays in this browser.");
    this.list = el("ol", { class: "thread", "aria-label": "conversation" });
    this.scroller = el("div", { class: "thread-scroll", tabindex: "0", role: "region", "aria-label": "Conversation" }, this.empty, this.list);
    this.scroller.addEventListener("scroll", ({ target }) => {
      this.#follows = target.scrollHeight - target.scrollTop - target.clientHeight < 60;
    }, { passive: true });
    this.live = el("p", { class: "visually-hidden", role: "status" });
    const startOver = el("button", { class: "button", type: "button", on: { click: () => this.#startOver() } }, "New conversation");
    const side = el("aside", { class: "chat-side", "aria-label": "Settings of the chat" }, this.settings.node, startOver);
    const node = el("div", { class: "chat" }, el("div", { class: "chat-main" }, this.scroller, form), side, this.live);
    node.addEventListener("keydown", (event) => event.key === "Escape" && this.stop());
    return node;
  }

  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#send();
  }
  #grow() {
    this.input.style.setProperty("height", "auto");
    this.input.style.setProperty("height", `${Math.min(this.input.scrollHeight + 2, 240)}px`);
  }

  #send() {
    const content = this.input.value;
    if (content.trim() === "" || !this.#mayAsk()) return;
    this.conversation.ask(content);
    this.input.value = "";
    this.#grow();
    this.#answer();
  }

  #retry() {
    if (!this.#mayAsk()) return;
    this.conversation.dropAnswer();
    this.#answer();
    this.input.focus();
  }
  #mayAsk() {
    const problem = this.answers ? null : this.settings.problem();
    if (problem) announce(problem, true);
    return !this.answers && !problem;
  }
  stop() {
    this.#abort?.abort();
  }

  async #startOver() {
    const question = { title: "Begin a new conversation?", text: "This one is deleted from this browser.", action: "Begin" };
    if (this.conversation.messages.length && !(await confirmed(question))) return;
    this.stop();
    this.conversation.clear();
    this.render();
    this.input.focus();
  }

  async #answer() {
    const body = this.conversation.body();
    const answer = this.conversation.begin();
    this.#abort = new AbortController();
    this.#setAnswers(true);
    try {
      await this.#stream(body, answer, this.#abort.signal);
      answer.state = "done";
    } catch (error) {
      answer.state = error.name === "AbortError" ? "stopped" : "failed";
      answer.error = answer.state === "failed" ? error.message : null;
      if (error.status === 401 && (await askForKey(error.message))) {
        this.conversation.dropAnswer();
        return this.#answer();
      }
    }
    this.conversation.save();
    this.#setAnswers(false);
    const ended = { done: "Answer: ", stopped: "Stopped: ", failed: `Failed, ${answer.error} ` }[answer.state];
    setText(this.live, cleanProse(ended + answer.content.slice(0, READ_ALOUD_LIMIT)));
  }

  async #stream(body, answer, signal) {
    let begun = 0;
    for await (const piece of complete(body, signal)) {
      if (piece.requestId) answer.requestId = piece.requestId;
      if (piece.model) answer.model = piece.model;
      if (piece.content) answer.content += piece.content;
      if (piece.reasoning) answer.reasoning += piece.reasoning;
      for (const call of piece.calls ?? []) addCall(answer.calls, call);
      if (piece.finish) answer.finish = piece.finish;
      if (piece.content || piece.reasoning || piece.calls) {
        begun ||= performance.now();
        answer.tokens = (answer.tokens ?? 0) + 1; // until the usage tells how many
      }
      if (piece.usage) answer.tokens = piece.usage.completion_tokens;
      const elapsed_s = (performance.now() - begun) / 1000;
      if (begun && (elapsed_s > 0.2 || (piece.usage && elapsed_s > 0))) answer.speed = answer.tokens / elapsed_s;
      this.conversation.saveSoon();
      this.render();
    }
  }

  /** The requests have changed: where is this one? */
  follow() {
    const answer = this.conversation.messages.at(-1);
    if (!this.answers || !answer?.requestId) return;
    const row = [...this.store.tables.requests.rows.values()].find(({ id }) => id === answer.requestId);
    if (!row) return;
    const from = answer.worker ?? row.moved_from?.split(", ").at(-1);
    if (row.worker && from && from !== row.worker && answer.moves.at(-1)?.to !== row.worker) {
      answer.moves.push({ from, to: row.worker });
      setText(this.live, clean(`The answer moved from ${from} to ${row.worker}.`, 200));
    }
    if (row.worker) answer.worker = row.worker;
    const at = row.state === "running" ? (row.status ?? "running") : row.state;
    const progress = Number.isFinite(row.progress) ? ` ${percent(row.progress)}` : "";
    this.#note = `${at.replaceAll("_", " ")}${progress}${row.reason ? `: ${row.reason}` : ""}`.slice(0, 200);
    this.render();
  }

  #setAnswers(answers) {
    this.answers = answers;
    this.#note = "";
    if (answers) this.#follows = true;
    setHidden(this.stopButton, !answers);
    setHidden(this.sendButton, answers);
    this.onStreaming();
    this.render();
  }

  #render() {
    const { messages } = this.conversation;
    setHidden(this.empty, messages.length > 0);
    keyed(this.list, messages, (message) => message.id, (message) => this.#part(message));
    if (this.#follows) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  #part(message) {
    const { node, update } = messageView(message, () => this.#retry());
    let shown = null; // an answer that has ended changes only when it is no longer the last one
    return { node, update: () => {
      const isLast = message === this.conversation.messages.at(-1);
      if (shown === isLast) return;
      update({ isLast, note: this.#note });
      shown = message.state === "streaming" ? null : isLast;
    } };
  }
}

/** A call comes in pieces: its name first, then its arguments. */
function addCall(calls, { index = 0, function: called }) {
  if (!Number.isInteger(index) || index < 0 || index > 100) return;
  while (calls.length <= index) calls.push({ name: "", arguments: "" });
  calls[index].name += called?.name ?? "";
  calls[index].arguments += called?.arguments ?? "";
}
