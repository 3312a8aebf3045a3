/** A small graph of the last ten minutes. */

import { setAttribute, svg } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 28;

/** @returns {{node: SVGElement, update: (values: (number | null)[]) => void}} */
export function sparkline() {
  const area = svg("path", { class: "spark-area" });
  const line = svg("path", { class: "spark-line" });
  const node = svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    area,
    line,
  );
  const update = (values) => {
    const [outline, filled] = paths(values ?? []);
    setAttribute(line, "d", outline);
    setAttribute(area, "d", filled);
  };
  return { node, update };
}

/** Two paths; null is a gap. */
function paths(values) {
  const highest = Math.max(1, ...values.map((value) => value ?? 0));
  const place = (value, index) => {
    const x = values.length > 1 ? (index / (values.length - 1)) * WIDTH : WIDTH;
    return `${x.toFixed(1)} ${(HEIGHT - 1.5 - (value / highest) * (HEIGHT - 4)).toFixed(1)}`;
  };
  let outline = "";
  let filled = "";
  let first = -1;
  for (let index = 0; index <= values.length; index += 1) {
    const value = values[index];
    if (Number.isFinite(value)) {
      if (first < 0) first = index;
      continue;
    }
    if (first < 0) continue;
    const points = values.slice(first, index).map((each, offset) => place(each, first + offset));
    outline += `M${points.join("L")}`;
    const [left] = points[0].split(" ");
    const [right] = points.at(-1).split(" ");
    filled += `M${left} ${HEIGHT}L${points.join("L")}L${right} ${HEIGHT}Z`;
    first = -1;
  }
  return [outline, filled];
}
