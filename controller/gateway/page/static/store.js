/** What the gateway said last of each view. */

/** Rows by key. Events hold all rows, or those that are new or changed and the keys of those gone. */
export class Table {
  /** @type {Map<string, {key: string}>} */
  rows = new Map();
  /** Counts of all rows, also of those that were not sent. */
  more = {};
  /** Whether anything has arrived. */
  known = false;

  accept({ whole, rows, removed, ...more }) {
    if (!Array.isArray(rows)) throw new TypeError("a table without rows");
    if (whole) this.rows = new Map();
    for (const key of removed ?? []) this.rows.delete(key);
    for (const row of rows) if (typeof row?.key === "string") this.rows.set(row.key, row);
    this.more = more;
    this.known = true;
  }
}

const LOG_LIMIT = 2000;

export class Store {
  /** @type {{rights: "admin" | "own" | "read", client: string, version: string, views: string[]} | null} */
  session = null;
  overview = null;
  rollout = null;
  /** Records by key, the oldest first. */
  log = new Map();
  logKnown = false;
  tables = { machines: new Table(), models: new Table(), requests: new Table(), sessions: new Table() };
  #records = 0;

  /** A connection has begun: its first log event holds what the one before had sent. */
  begin() {
    this.logKnown = false;
  }
  /** @param {string} view @throws {TypeError} if `data` has not the form of the view */
  accept(view, data) {
    if (view in this.tables) this.tables[view].accept(data);
    else if (view === "log") this.#append(data.records);
    else if (view === "session" || view === "overview" || view === "rollout") this[view] = data;
  }

  #append(records) {
    if (!Array.isArray(records)) throw new TypeError("a log without records");
    if (!this.logKnown) this.log.clear();
    for (const record of records) {
      const number = (this.#records += 1);
      this.log.set(String(number), { ...record, number, key: String(number) });
      this.log.delete(String(number - LOG_LIMIT));
    }
    this.logKnown = true;
  }

  /** Orders are the administrators', but whoever has a key may cancel own requests. Without keys nobody gives any. */
  mayOrder(isCancel = false) {
    return this.session?.rights === "admin" || (isCancel && this.session?.rights === "own");
  }
  /** @param {string} view */
  maySee(view) {
    return this.session === null || this.session.views.includes(view);
  }
}
