/** Server-sent events, read with fetch: EventSource cannot send a key. */

/** @typedef {{name: string, data: string}} ServerEvent */
/** Parses text in whatever pieces it arrives (https://html.spec.whatwg.org/#parsing-an-event-stream). */
export class EventParser {
  #pieces = [];
  #name = "";
  #data = [];

  /** @param {string} text @returns {ServerEvent[]} the events that `text` completes */
  push(text) {
    const [first, ...others] = text.split("\n");
    this.#pieces.push(first);
    const events = [];
    for (const next of others) {
      const event = this.#line(this.#pieces.join("").replace(/\r$/, ""));
      this.#pieces = [next];
      if (event !== null) events.push(event);
    }
    return events;
  }

  /** @returns {ServerEvent | null} */
  #line(line) {
    const [, field, value] = line.match(/^([^:]*):? ?(.*)$/s);
    if (field === "event") this.#name = value;
    else if (field === "data") this.#data.push(value);
    if (line !== "") return null;
    const event = { name: this.#name || "message", data: this.#data.join("\n") };
    const complete = this.#data.length > 0;
    this.#name = "";
    this.#data = [];
    return complete ? event : null;
  }
}

/** The events of a response, until it ends; `onBytes` is called for comments, too. */
export async function* readEvents(response, onBytes = () => {}) {
  const parser = new EventParser();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      onBytes();
      yield* parser.push(value);
    }
  } finally {
    reader.cancel().catch(() => {}); // the response may have failed already
  }
}

/** The object that `event` holds, or null, with a warning. @param {ServerEvent} event */
export function parseEvent(event) {
  try {
    const parsed = JSON.parse(event.data);
    if (parsed !== null && typeof parsed === "object") return parsed;
  } catch {
    // reported below
  }
  console.warn(`an event is no JSON object: ${event.name}, ${event.data.length} characters`);
  return null;
}
