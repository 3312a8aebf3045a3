/** Server-sent events, read with fetch: EventSource cannot send a key. */

/** @typedef {{name: string, data: string}} ServerEvent */

/** Parses text in whatever pieces it arrives (https://html.spec.whatwg.org/#parsing-an-event-stream). */
export class EventParser {
  #pieces = [];
  #name = "";
  #lines = [];
  #afterReturn = false;

  /** @param {string} text @returns {ServerEvent[]} the events that `text` completes */
  push(text) {
    const events = [];
    if (this.#afterReturn && text.startsWith("\n")) text = text.slice(1);
    if (text !== "") this.#afterReturn = text.endsWith("\r");
    let start = 0;
    for (const end of text.matchAll(/\r\n|\r|\n/g)) {
      this.#pieces.push(text.slice(start, end.index));
      start = end.index + end[0].length;
      const event = this.#line(this.#pieces.join(""));
      this.#pieces = [];
      if (event !== null) events.push(event);
    }
    if (start < text.length) this.#pieces.push(text.slice(start));
    return events;
  }

  /** @returns {ServerEvent | null} */
  #line(line) {
    if (line === "") {
      const event = this.#lines.length ? { name: this.#name || "message", data: this.#lines.join("\n") } : null;
      this.#name = "";
      this.#lines = [];
      return event;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#name = value;
    else if (field === "data") this.#lines.push(value);
    return null;
  }
}

/**
 * The events of a response, until it ends.
 * @param {Response} response
 * @param {() => void} [onBytes] called for comments, too
 * @returns {AsyncGenerator<ServerEvent>}
 */
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
