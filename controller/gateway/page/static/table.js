/** A table of live rows: sorted, filtered, a hundred rows at a time. */

import { el, inFrames, keyed, setAttribute, setHidden, setText } from "./dom.js";
import { count, natural } from "./format.js";

const PAGE = 100;
const NEW_ROWS_PER_FRAME = 12;

/**
 * @typedef {object} Column
 * @property {string} id also a class of its cells
 * @property {string} title
 * @property {(row: any) => string | number | null} [value] what it sorts by
 * @property {boolean} [descending] whether it sorts so at first
 * @property {() => import("./cells.js").Part} cell
 */

export class DataTable {
  #limit = PAGE;
  #sort = { column: null, descending: false };
  #entries = new Map();
  #texts = new WeakMap();
  #rows = [];
  #total = 0;
  #known = false;
  #filters = "";

  /**
   * @param {{noun: string, columns: Column[], searched: (row: any) => string, filterHint: string,
   *   empty: (string | Node)[], order?: (row: any) => string | number}} options
   *   `order`: of the rows until a heading is pressed
   */
  constructor(options) {
    this.options = options;
    this.schedule = inFrames(() => this.#render());
    this.node = this.#build();
  }

  /** @param {import("./store.js").Table} table */
  show(table) {
    this.#rows = [...table.rows.values()];
    this.#total = Math.max(table.more.total ?? 0, this.#rows.length);
    this.#known = table.known;
    this.schedule();
  }

  #build() {
    const { noun, columns, filterHint, empty } = this.options;
    this.filter = el("input", {
      type: "search",
      class: "filter",
      placeholder: `Filter by ${filterHint}`,
      "aria-label": `Filter ${noun}s by ${filterHint}`,
      on: { input: () => this.#filterBy(this.filter.value) },
    });
    const sortable = columns.filter((column) => column.value);
    this.sortSelect = el(
      "select",
      { class: "sort-select", "aria-label": "Sort by", on: { change: () => this.#sortBy(this.sortSelect.value) } },
      el("option", { value: "" }, "Sort by …"),
      ...sortable.map((column) => el("option", { value: column.id }, column.title)),
    );
    this.shown = el("span", { class: "shown", role: "status" });
    this.headings = new Map(columns.map((column) => [column.id, this.#heading(column)]));
    this.body = el("tbody", { role: "rowgroup" });
    const head = el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...this.headings.values()));
    this.table = el("table", { role: "table", class: `rows ${noun}`, "aria-label": `${noun}s` }, head, this.body);
    this.empty = el("div", { class: "empty", hidden: true }, ...empty);
    this.more = el("button", { class: "button", type: "button", on: { click: () => this.#showMore() } });
    const bar = el("div", { class: "bar" }, this.filter, this.sortSelect, this.shown);
    return el("div", { class: "data" }, bar, this.table, this.empty, el("div", { class: "more" }, this.more));
  }

  #heading(column) {
    const title = column.value
      ? el("button", { type: "button", class: "sort", on: { click: () => this.#sortBy(column.id) } }, column.title)
      : column.title;
    return el("th", { role: "columnheader", scope: "col", class: column.id }, title);
  }

  #filterBy(text) {
    this.#filters = text.trim().toLowerCase();
    this.#limit = PAGE;
    this.schedule();
  }

  #sortBy(id) {
    const column = this.options.columns.find((each) => each.id === id) ?? null;
    const again = this.#sort.column === column && column !== null;
    this.#sort = { column, descending: again ? !this.#sort.descending : Boolean(column?.descending) };
    for (const [each, heading] of this.headings) {
      const direction = this.#sort.descending ? "descending" : "ascending";
      setAttribute(heading, "aria-sort", each === id ? direction : null);
    }
    this.sortSelect.value = id;
    this.schedule();
  }

  #showMore() {
    this.#limit += PAGE;
    this.schedule();
  }

  /** The rows that match, in their order. */
  #ordered() {
    const words = this.#filters.split(/\s+/).filter(Boolean);
    const matching = words.length
      ? this.#rows.filter((row) => words.every((word) => this.#textOf(row).includes(word)))
      : this.#rows;
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
    if (text === undefined) this.#texts.set(row, (text = this.options.searched(row).toLowerCase()));
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
    const { noun } = this.options;
    const all = this.#total === 1 ? `1 ${noun}` : `${count(this.#total)} ${noun}s`;
    const some = `${count(shown)} of ${count(this.#filters ? matching : this.#total)}`;
    const whole = shown === this.#total ? all : `${some} ${noun}s${this.#filters ? " that match" : ""}`;
    setText(this.shown, this.#known ? whole : "Loading …");
    setHidden(this.table, !this.#rows.length);
    setHidden(this.empty, !this.#known || this.#rows.length > 0);
    const hidden = Math.min(PAGE, matching - shown);
    setHidden(this.more, hidden <= 0);
    setText(this.more, `Show ${hidden} more`);
  }

  #entry() {
    const cells = this.options.columns.map((column) => [column, column.cell()]);
    const node = el("tr", { role: "row" }, ...cells.map(([column, part]) => {
      return el("td", { role: "cell", class: column.id, "data-label": column.title }, part.node);
    }));
    let last = null;
    const update = (row) => {
      if (row === last) return;
      last = row;
      for (const [, part] of cells) part.update(row);
    };
    return { node, update };
  }
}

/** Numbers among numbers, names as people count; what is absent comes first. */
function sortable(value) {
  if (typeof value === "string") return natural(value);
  return Number.isFinite(value) ? value : Number.NEGATIVE_INFINITY;
}
