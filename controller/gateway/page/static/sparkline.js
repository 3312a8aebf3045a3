/** A small graph of the last ten minutes. */

import { setAttribute, svg } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 28;

/** @returns {{node: SVGElement, update: (values: (number | null)[]) => void}} */
export function sparkline() {
  const area = svg("path", { class: "spark-area" });
  const line = svg("path", { class: "spark-line" });
  const node = svg(
    "svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    area, line,
  );
  return { node, update: (values) => {
    const [outline, filled] = paths(values ?? []);
    setAttribute(line, "d", outline);
    setAttribute(area, "d", filled);
  } };
}

/** Two paths; null is a gap. */
function paths(values) {
  const highest = Math.max(1, ...values.map((value) => value ?? 0));
  const x = (index) => (values.length > 1 ? (index / (values.length - 1)) * WIDTH : WIDTH).toFixed(1);
  const y = (value) => (HEIGHT - 1.5 - (value / highest) * (HEIGHT - 4)).toFixed(1);
  let outline = "";
  let filled = "";
  for (const run of runsOf(values)) {
    const points = run.map((index) => `${x(index)} ${y(values[index])}`).join("L");
    outline += `M${points}`;
    filled += `M${x(run[0])} ${HEIGHT}L${points}L${x(run.at(-1))} ${HEIGHT}Z`;
  }
  return [outline, filled];
}

/** The indices of values without a gap between them. */
function runsOf(values) {
  const runs = [];
  values.forEach((value, index) => {
    if (!Number.isFinite(value)) return;
    if (index > 0 && runs.at(-1)?.at(-1) === index - 1) runs.at(-1).push(index);
    else runs.push([index]);
  });
  return runs;
}
