/** A table of live rows: sorted, filtered, a hundred rows at a time. */

import { el, emptyState, inFrames, keyed, setAttribute, setHidden, setText } from "./dom.js";
import { count, natural, plural } from "./format.js";

const PAGE = 100;
const NEW_ROWS_PER_FRAME = 12;
const SEARCHED = 8000; // characters of a row

/**
 * @typedef {{id: string, title: string, value?: (row: any) => string | number | null, descending?: boolean,
 *   cell: () => import("./cells.js").Part}} Column
 *   `id`: also a class of its cells; `value`: what it sorts by, at first `descending` or not
 */

export class DataTable {
  #limit = PAGE;
  #sort = { column: null, descending: false };
  #entries = new Map();
  #texts = new WeakMap();
  #rows = [];
  #filters = "";
  #table = { rows: new Map(), more: {}, known: false };

  /** @param {{noun: string, columns: Column[], filterHint: string,
   *   empty: (string | Node)[], order?: (row) => string | number}} options `order`: until a heading is pressed */
  constructor(options) {
    this.options = options;
    this.schedule = inFrames(() => this.#render());
    this.node = this.#build();
  }
  /** @param {import("./store.js").Table} table */
  show(table) {
    this.#table = table;
    this.#rows = [...table.rows.values()];
    this.schedule();
  }

  #build() {
    const { noun, columns, filterHint, empty } = this.options;
    this.filter = el("input", { type: "search", class: "filter", placeholder: `Filter by ${filterHint}`,
      "aria-label": `Filter ${noun}s by ${filterHint}`, on: { input: () => this.#show(PAGE) } });
    const sortable = columns.filter((column) => column.value);
    this.sortSelect = el("select",
      { class: "sort-select", "aria-label": "Sort by", on: { change: () => this.#sortBy(this.sortSelect.value) } },
      el("option", { value: "" }, "Sort by …"),
      ...sortable.map((column) => el("option", { value: column.id }, column.title)));
    this.shown = el("span", { class: "shown", role: "status" });
    this.headings = new Map(columns.map((column) => [column.id, this.#heading(column)]));
    this.body = el("tbody", { role: "rowgroup" });
    const head = el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...this.headings.values()));
    this.table = el("table", { role: "table", class: `rows ${noun}`, "aria-label": `${noun}s` }, head, this.body);
    this.empty = emptyState(...empty);
    this.more = el("button", { class: "button", type: "button", on: { click: () => this.#show(this.#limit + PAGE) } });
    const bar = el("div", { class: "bar" }, this.filter, this.sortSelect, this.shown);
    return el("div", { class: "data" }, bar, this.table, this.empty, el("div", { class: "more" }, this.more));
  }

  #show(limit) {
    this.#limit = limit;
    this.#filters = this.filter.value.trim().toLowerCase();
    this.schedule();
  }
  #heading(column) {
    const sort = el("button", { type: "button", class: "sort", on: { click: () => this.#sortBy(column.id) } }, column.title);
    return el("th", { role: "columnheader", scope: "col", class: column.id }, column.value ? sort : column.title);
  }

  #sortBy(id) {
    const column = this.options.columns.find((each) => each.id === id) ?? null;
    const again = this.#sort.column === column && column !== null;
    this.#sort = { column, descending: again ? !this.#sort.descending : Boolean(column?.descending) };
    const direction = this.#sort.descending ? "descending" : "ascending";
    for (const [each, heading] of this.headings) setAttribute(heading, "aria-sort", each === id ? direction : null);
    this.sortSelect.value = id;
    this.schedule();
  }

  /** The rows that match, in their order. */
  #ordered() {
    const words = this.#filters.split(/\s+/).filter(Boolean);
    const matching = this.#rows.filter((row) => words.every((word) => this.#textOf(row).includes(word)));
    const { column, descending } = this.#sort;
    const read = column?.value ?? this.options.order;
    if (!read) return matching;
    const sign = descending ? -1 : 1;
    const valued = matching.map((row) => [sortable(read(row)), row]);
    valued.sort(([left], [right]) => (left < right ? -sign : left > right ? sign : 0));
    return valued.map(([, row]) => row);
  }

  #textOf(row) {
    let text = this.#texts.get(row);
    if (text === undefined) this.#texts.set(row, (text = stringsOf(row).join(" ").slice(0, SEARCHED).toLowerCase()));
    return text;
  }

  #render() {
    const matching = this.#ordered();
    const wanted = matching.slice(0, this.#limit);
    let unseen = 0;
    const visible = wanted.filter((row) => this.#entries.has(row.key) || (unseen += 1) <= NEW_ROWS_PER_FRAME);
    keyed(this.body, visible, (row) => row.key, () => this.#entry());
    this.#entries = this.body.parts;
    this.#summarize(matching.length, wanted.length);
    if (unseen > NEW_ROWS_PER_FRAME) this.schedule();
  }

  #summarize(matching, shown) {
    const { known, more } = this.#table;
    const all = plural(this.#filters ? matching : Math.max(more.total ?? 0, this.#rows.length), this.options.noun);
    const whole = all.startsWith(`${count(shown)} `) ? all : `${count(shown)} of ${all}`;
    setText(this.shown, known ? `${whole}${this.#filters ? " that match" : ""}` : "Loading …");
    setHidden(this.table, !this.#rows.length);
    setHidden(this.empty, !known || this.#rows.length > 0);
    const hidden = Math.min(PAGE, matching - shown);
    setHidden(this.more, hidden <= 0);
    setText(this.more, `Show ${hidden} more`);
  }

  #entry() {
    const cells = this.options.columns.map((column) => [column, column.cell()]);
    const cell = ([{ id, title }, part]) => el("td", { role: "cell", class: id, "data-label": title }, part.node);
    const node = el("tr", { role: "row" }, ...cells.map(cell));
    let last = null;
    return { node, update: (row) => {
      if (row === last) return;
      last = row;
      try {
        for (const [, part] of cells) part.update(row);
      } catch (error) {
        console.warn(`a row of ${this.options.noun}s is malformed: ${error}`);
      }
    } };
  }
}

/** Numbers among numbers, names as people count; what is absent comes first. */
function sortable(value) {
  if (typeof value === "string") return natural(value);
  return Number.isFinite(value) ? value : Number.NEGATIVE_INFINITY;
}
/** The strings in a row, at any depth. */
function stringsOf(value) {
  if (typeof value === "string") return [value];
  return value !== null && typeof value === "object" ? Object.values(value).flatMap(stringsOf) : [];
}
