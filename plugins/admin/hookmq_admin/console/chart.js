// Line charts of series over time, drawn as SVG. The exact values are in the legend and in the label.
import { node, shape } from "./dom.js";
import { clock, number } from "./format.js";

const WIDTH = 600, HEIGHT = 140, POINTS = 240;

// `lines` are { title, values }; `times` are in epoch seconds; `show` formats a value. Null leaves a gap.
export function chart(title, times, lines, show = number) {
  const slots = buckets(times), last = times.length - 1;
  const drawn = lines.map((line) => slots.map(([from, to]) => highest(line.values.slice(from, to))));
  const most = ceiling(Math.max(0, ...drawn.map((values) => highest(values) ?? 0)));
  const x = (index) => (slots.length > 1 ? (index / (slots.length - 1)) * WIDTH : 0);
  const y = (value) => HEIGHT - (value / most) * HEIGHT;
  const text = (value) => (value === null || value === undefined ? "–" : show(value));
  const now = (line) => text(line.values[last]);
  const label = `${title}. ${lines.map((line) => `${line.title}: now ${now(line)}, highest ${text(highest(line.values))}`).join("; ")}`;
  const plot = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  for (const part of [0, 0.5, 1]) plot.append(shape("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part }));
  drawn.forEach((values, index) => {
    for (const [from, to] of parts(values)) {
      const points = values.slice(from, to).map((value, slot) => `${x(from + slot).toFixed(1)},${y(value).toFixed(1)}`);
      const ground = `${x(from).toFixed(1)},${HEIGHT} ${points.join(" ")} ${x(to - 1).toFixed(1)},${HEIGHT}`;
      if (lines.length === 1) plot.append(shape("polygon", { class: "fill", points: ground }));
      if (points.length === 1) points.push(points[0]); // a dot
      plot.append(shape("polyline", { class: `line line-${index}`, points: points.join(" ") }));
    }
  });
  const mark = shape("line", { class: "mark", x1: 0, x2: 0, y1: 0, y2: HEIGHT, visibility: "hidden" });
  plot.append(mark);
  const figures = lines.map((line) => node("b", {}, now(line)));
  const moment = node("span", { class: "moment" });
  const legend = node("span", { class: "legend" }, moment, lines.map((line, index) =>
    node("span", { class: `key line-${index}` }, lines.length > 1 ? `${line.title} ` : "", figures[index])));
  plot.addEventListener("pointermove", (event) => {
    if (!slots.length) return;
    const box = plot.getBoundingClientRect();
    const slot = Math.round(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * (slots.length - 1));
    mark.setAttribute("x1", x(slot));
    mark.setAttribute("x2", x(slot));
    mark.setAttribute("visibility", "visible");
    moment.textContent = clock(times[slots[slot][1] - 1], true);
    figures.forEach((figure, index) => { figure.textContent = text(drawn[index][slot]); });
  });
  plot.addEventListener("pointerleave", () => {
    mark.setAttribute("visibility", "hidden");
    moment.textContent = "";
    figures.forEach((figure, index) => { figure.textContent = now(lines[index]); });
  });
  return node("figure", { class: "chart" },
    node("figcaption", {}, node("span", {}, title), legend),
    node("div", { class: "plot" },
      node("div", { class: "axis y", "aria-hidden": "true" }, [most, most / 2, 0].map((value) => node("span", {}, show(value)))),
      plot,
      node("div", { class: "axis x", "aria-hidden": "true" }, [0, last].map((index) => node("span", {}, times.length ? clock(times[index], times[last] - times[0] < 600) : "")))));
}

// The changes per second of a counter. A counter begins at zero again after a restart.
export function rates(times, values) {
  return values.slice(1).map((value, index) => Math.max(0, (value - values[index]) / Math.max(times[index + 1] - times[index], 0.001)));
}

function buckets(times) {
  const count = Math.min(POINTS, times.length);
  return Array.from({ length: count }, (_, index) => [
    Math.floor((index * times.length) / count), Math.floor(((index + 1) * times.length) / count),
  ]);
}

// The highest value, or null if there is none.
function highest(values) {
  return values.reduce((most, value) => (value !== null && (most === null || value > most) ? value : most), null);
}

// The parts of a line between gaps, as pairs [first, end).
function parts(values) {
  const found = [];
  values.forEach((value, index) => {
    if (value === null) return;
    if (index && values[index - 1] !== null) found.at(-1)[1] = index + 1;
    else found.push([index, index + 1]);
  });
  return found;
}

// The smallest 1, 2 or 5 times a power of ten that is not below `value`.
function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value) ?? 10 * power;
}
