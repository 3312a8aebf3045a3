/** The stream of the cluster's events: which views, and again when it ends. */

import { ApiError, send } from "./api.js";
import { parseEvent, readEvents } from "./event_stream.js";
import { askForKey } from "./key.js";

const LONGEST_WAIT_S = 15;
const SILENCE_LIMIT_MS = 35_000; // a live stream says something every 10 s
/** @typedef {{state: "connecting" | "live" | "lost" | "refused", text: string, retryAt: number | null}} Status */

export class ClusterConnection {
  #views = "";
  #abort = new AbortController();
  #failures = 0;
  #connected = "";
  #probe = "overview";
  #wake = () => {};
  /** @param {{begin, accept, forget, showStatus, known, seen: Function}} listeners as main.js has them */
  constructor(listeners) {
    this.listeners = listeners;
  }

  /** @param {string[]} views */
  watch(views) {
    const joined = [...new Set(views)].sort().join(",");
    if (joined === this.#views) return;
    const first = this.#views === "";
    this.#views = joined;
    if (first) this.#run();
    else this.retry();
  }

  /** Connect now, whatever goes on. */
  retry() {
    this.#abort.abort();
    this.#wake();
  }

  async #run() {
    for (;;) {
      this.#abort = new AbortController();
      let problem = "Connection lost";
      try {
        await this.#read(this.#abort.signal);
      } catch (error) {
        if (this.#abort.signal.aborted && !this.silent) continue;
        if (await this.#handled(error)) continue;
        if (error instanceof ApiError && error.status > 0) problem = error.message;
        else if (!(error instanceof ApiError)) console.warn(`the stream of events ended: ${error}`);
      }
      if (this.#abort.signal.aborted && !this.silent) continue;
      const wait_s = Math.min(LONGEST_WAIT_S, 2 ** this.#failures);
      this.#failures += 1;
      this.listeners.showStatus({ state: "lost", text: problem, retryAt: Date.now() + wait_s * 1000 });
      await this.#pause(wait_s * 1000);
    }
  }

  async #read(signal) {
    if (this.#failures === 0) this.listeners.showStatus({ state: "connecting", text: "Connecting", retryAt: null });
    this.silent = false;
    const abort = this.#abort;
    let heard = Date.now();
    const watchdog = setInterval(() => {
      if (Date.now() - heard < SILENCE_LIMIT_MS) return;
      this.silent = true;
      abort.abort();
    }, 5000);
    try {
      this.#connected = this.#asked();
      const response = await send(`/cluster/events?views=${this.#connected}`, { signal });
      this.#failures = 0;
      this.listeners.begin();
      this.listeners.showStatus({ state: "live", text: "Live", retryAt: null });
      for await (const event of readEvents(response, () => (heard = Date.now()))) {
        const data = parseEvent(event);
        if (data !== null) this.#deliver(event.name, data);
      }
    } finally {
      clearInterval(watchdog);
    }
  }

  #deliver(name, data) {
    try {
      this.listeners.accept(name, data);
    } catch (error) {
      console.warn(`an event of ${name} was left out: ${error}`);
    }
    if (name === "session" && this.#asked() !== this.#connected) this.retry();
  }

  /** The views to ask for: until a session says which there are, the one that everybody may see. */
  #asked() {
    if (!this.listeners.known()) return this.#probe;
    return this.#views.split(",").filter(this.listeners.seen).join(",") || this.#probe;
  }

  /** Whether to connect again at once. */
  async #handled(error) {
    if (!(error instanceof ApiError)) return false;
    if (error.status === 403 && !this.listeners.known() && this.#probe === "overview") {
      this.#probe = "requests"; // a key that sees only its own
      return true;
    }
    if (error.status === 403) {
      this.#refuse(error.message);
      await this.#pause(2 ** 31 - 1);
      this.#probe = "overview";
      return true;
    }
    if (error.status !== 401) return false;
    this.#refuse("A key is needed");
    if (await askForKey(error.message)) {
      this.#probe = "overview";
      this.listeners.forget();
      return true;
    }
    this.#refuse("Without a key nothing is shown");
    await this.#pause(2 ** 31 - 1);
    return true;
  }

  #refuse(text) {
    this.listeners.showStatus({ state: "refused", text, retryAt: null });
  }

  #pause(duration_ms) {
    return new Promise((resolve) => {
      setTimeout(resolve, duration_ms);
      this.#wake = resolve;
    });
  }
}
