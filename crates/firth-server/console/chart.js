// Small line charts of samples at equal steps; nothing moves unless the data moved.

import { age, bytes, clock, h, num, s, swap } from "./dom.js";

const WIDTH = 600, HEIGHT = 130, POINTS = 240;
/** The fewest steps that a chart spans. */
const SHORTEST = 60;

/** At most so many points: the mean of each run. */
function thin(values) {
  const run = Math.ceil(values.length / POINTS);
  if (run <= 1) return values;
  const thinned = [];
  for (let at = 0; at < values.length; at += run) {
    const some = values.slice(at, at + run).filter((value) => value !== null);
    thinned.push(some.length ? some.reduce((sum, value) => sum + value, 0) / some.length : null);
  }
  return thinned;
}

/** A number that a scale can end with; of bytes, a power of two. */
function ceiling(top, isBinary) {
  if (top <= 0) return 1;
  if (isBinary) return 2 ** Math.ceil(Math.log2(top));
  const power = 10 ** Math.floor(Math.log10(top));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= top);
}

/** Gaps of a few steps are drawn through: a late sample is no outage. */
function path(values, top, steps, close) {
  let text = "", since = Infinity, first = null, last = null;
  values.forEach((value, at) => {
    since += 1;
    if (value === null || value === undefined) return;
    const x = steps > 1 ? at / (steps - 1) * WIDTH : WIDTH, y = HEIGHT - 2 - value / top * (HEIGHT - 10);
    const starts = since > 10;
    if (starts && close && last !== null) text += `L${last} ${HEIGHT}L${first} ${HEIGHT}Z`;
    if (starts) first = x.toFixed(1);
    text += `${starts ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`;
    // A sample that stands alone is a dot.
    if (starts && !close) text += "h0";
    last = x.toFixed(1);
    since = 0;
  });
  if (close && last !== null) text += `L${last} ${HEIGHT}L${first} ${HEIGHT}Z`;
  return text;
}

/** A line of a few words' size. */
export function spark(values, label) {
  const top = Math.max(1, ...values);
  if (values.length === 1) values = [values[0], values[0]];
  const points = values.map((value, at) => `${(at / Math.max(1, values.length - 1) * 96).toFixed(1)},${(19 - value / top * 18).toFixed(1)}`);
  return s("svg", { class: "spark", viewBox: "0 0 96 20", preserveAspectRatio: "none", role: "img", "aria-label": `${label}: from ${num(values[0])} to ${num(values.at(-1))}, at most ${num(Math.max(...values))}` }, s("polyline", { class: "one line", points: points.join(" ") }));
}

/** A card with a chart. `draw({from, step, columns})` brings it up to date. */
export function chart(title, lines, { format = num, floor = 1 } = {}) {
  const legend = h("div", { class: "legend" });
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const axis = h("div", { class: "axis", "aria-hidden": "true" });
  const node = h("section", { class: "card" }, h("header", {}, h("h2", {}, title), legend), h("div", { class: "body" }, svg, axis));
  let state = null, cursor = null;

  function label(at) {
    swap(legend, lines.map(({ name, kind }, line) => {
      const values = state.columns[line];
      const value = at === null ? values.findLast((one) => one !== null && one !== undefined) : values[at];
      return h("span", {}, h("span", { class: `dot ${kind}` }), name, " ", h("b", {}, format(value)));
    }), at === null ? null : h("span", {}, clock(state.from + at * state.step)));
  }

  svg.addEventListener("pointermove", (event) => {
    if (!state || !state.steps) return;
    const box = svg.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    label(Math.round(share * (state.steps - 1)));
    if (!cursor) { cursor = s("line", { class: "cursor", y1: 0, y2: HEIGHT }); svg.append(cursor); }
    cursor.setAttribute("x1", share * WIDTH);
    cursor.setAttribute("x2", share * WIDTH);
  });
  svg.addEventListener("pointerleave", () => { if (cursor) cursor.remove(); cursor = null; if (state) label(null); });

  function draw({ from: start, step, columns: whole }) {
    const length = Math.max(0, ...whole.map((column) => column.length));
    // Before the server started there is nothing to see.
    const first = Math.min(...whole.map((column) => { const at = column.findIndex((value) => value !== null); return at < 0 ? length : at; }));
    const left = Math.max(0, Math.min(first, length - SHORTEST));
    const columns = whole.map((column) => column.slice(left)), from = start + left * step, steps = length - left;
    const span = age(steps * step).replace(/ 0 s$/, "");
    state = { from, step, columns, steps };
    const thinned = columns.map(thin);
    const top = ceiling(Math.max(floor, ...thinned.flat().filter((value) => value !== null && value !== undefined)), format === bytes);
    const shown = Math.max(0, ...thinned.map((column) => column.length));
    const drawn = lines.flatMap(({ kind }, line) => [
      s("path", { class: `area ${kind}`, d: path(thinned[line], top, shown, true) }),
      s("path", { class: `line ${kind}`, d: path(thinned[line], top, shown, false) }),
    ]);
    svg.replaceChildren(...[0.5, 0].map((share) => s("line", { class: "grid", x1: 0, x2: WIDTH, y1: 10 + share * (HEIGHT - 12), y2: 10 + share * (HEIGHT - 12) })), ...drawn);
    if (cursor) svg.append(cursor); else label(null);
    const highest = Math.max(0, ...columns.flat().filter((value) => value !== null && value !== undefined));
    swap(axis, h("span", {}, `${span} ago`), h("span", {}, `scale 0 – ${format(top)}`), h("span", {}, "now"));
    svg.setAttribute("aria-label", `${title}, last ${span}: ${lines.map(({ name }, line) => `${name} ${format(columns[line].findLast((one) => one !== null))}`).join(", ")}; highest ${format(highest)}`);
  }
  return { node, draw };
}
