/** The conversation and how it is asked, which outlive a reload. */

import { read, write } from "../storage.js";

const CONVERSATION = "mlx-cluster-conversation";
const SETTINGS = "mlx-cluster-chat-settings";
const SAVE_EVERY_MS = 1000;
const newId = () => String(Math.random());

/**
 * @typedef {{id: string, role: "user" | "assistant", content: string, reasoning?: string, model?: string,
 *   calls?: {name: string, arguments: string}[], state?: "streaming" | "done" | "stopped" | "failed",
 *   error?: string | null, worker?: string | null, moves?: {from: string, to: string}[], tokens?: number,
 *   speed?: number, finish?: string}} Message with `speed` in tokens/s; all but the first three of answers only
 */

export class Conversation {
  /** @type {Message[]} */
  messages = (read("localStorage", CONVERSATION) ?? []).filter((message) => typeof message?.content === "string");
  settings = { model: "", system: "", temperature: "", effort: "", schema: "", ...read("localStorage", SETTINGS) };
  #timer = 0;

  constructor() {
    for (const message of this.messages) {
      if (message.state !== "streaming") continue;
      message.state = "failed";
      message.error = "The page was closed before the answer was complete.";
    }
    window.addEventListener("pagehide", () => this.save());
  }

  /** @param {string} content */
  ask(content) {
    this.messages.push({ id: newId(), role: "user", content });
  }
  /** @returns {Message} an empty answer, which grows */
  begin() {
    const answer = { id: newId(), role: "assistant", content: "", reasoning: "", calls: [], moves: [], state: "streaming", error: null };
    this.messages.push(answer);
    return answer;
  }

  /** Take the last answer back, to ask again. */
  dropAnswer() {
    if (this.messages.at(-1)?.role === "assistant") this.messages.pop();
  }
  clear() {
    this.messages = [];
    this.save();
  }

  /** @returns {object} the body of the request for the next answer @throws {SyntaxError} for a schema that is none */
  body() {
    const { model, system, temperature, effort, schema } = this.settings;
    const messages = this.messages.map(sent).filter(({ content }) => content !== "");
    if (system.trim()) messages.unshift({ role: "system", content: system });
    const body = { model, messages };
    if (temperature !== "") body.temperature = Number(temperature);
    if (effort) body.reasoning_effort = effort;
    const parsed = parseSchema(schema);
    if (parsed) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: parsed } };
    return body;
  }

  /** Delete what is stored, for whoever uses this computer next; nothing is stored any more. */
  forget() {
    this.save = () => {};
    for (const name of [CONVERSATION, SETTINGS]) write("localStorage", name, null);
  }
  saveSoon() {
    this.#timer ||= setTimeout(() => this.save(), SAVE_EVERY_MS);
  }
  save() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    write("localStorage", CONVERSATION, this.messages);
    write("localStorage", SETTINGS, this.settings);
  }
}
/** A message as the API takes it. Calls are told as text: nobody has run them. */
function sent({ role, content, calls = [] }) {
  const told = calls.map((call) => `${call.name}(${call.arguments})`).join("\n");
  return { role, content: content || told };
}
/** @param {string} text @returns {object | null} null without one @throws {SyntaxError} */
export function parseSchema(text) {
  if (text.trim() === "") return null;
  const schema = JSON.parse(text);
  if (schema === null || typeof schema !== "object" || Array.isArray(schema)) throw new SyntaxError("A schema is a JSON object.");
  return schema;
}
