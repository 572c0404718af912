// The page of the demo. It asks for the state every second, and shows it.
import { LineChart } from "./charts.js";

const EVERY = 1000, PATIENCE = 5;
const at = (id) => document.getElementById(id);
const count = (value) => Math.round(value).toLocaleString("en");
const seconds = (value) => (value === null || value === undefined ? "–" : value === 0 ? "0 s" : value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(value < 10 ? 1 : 0)} s`);
const degrees = (value) => `${value.toFixed(1)}\u00a0°C`;
const clock = (time) => new Date(time * 1000).toLocaleTimeString("en-GB");

function node(kind, className, ...content) {
  const made = document.createElement(kind);
  if (className) made.className = className;
  made.append(...content.map((one) => (one instanceof Node ? one : String(one))));
  return made;
}

const charts = {
  rates: new LineChart(at("charts"), "Messages per second", [
    { name: "acknowledged by the broker", tone: "--first" }, { name: "rows in silver", tone: "--second" }], count),
  waiting: new LineChart(at("charts"), "Lag: acknowledged, not in a table yet", [{ name: "messages", tone: "--third" }], count),
  latency: new LineChart(at("charts"), "Latency: from the broker to silver", [
    { name: "median", tone: "--first" }, { name: "slowest of 100", tone: "--second" }], seconds),
  celsius: new LineChart(at("charts"), "Temperature by window", [
    { name: "highest", tone: "--second", band: true }, { name: "average", tone: "--first" }, { name: "lowest", tone: "--fourth" }], degrees),
};

function steps(state) {
  at("start").hidden = state.steps.every((step) => step.state === "done") || ["stopping", "stopped"].includes(state.phase);
  const marks = { waiting: "·", running: "▸", done: "✓" };
  at("steps").replaceChildren(...state.steps.map((step) => {
    const time = { waiting: `about ${step.usual} s`, running: `${Math.round(step.seconds)} s, usually ${step.usual} s`, done: `${Math.round(step.seconds)} s` }[step.state];
    const row = node("li", step.state, node("span", "mark", marks[step.state]), node("span", "", step.text), node("span", "time", time));
    if (step.state === "running") {
      const progress = node("progress");
      progress.max = 1;
      progress.value = Math.min(.97, step.seconds / step.usual);
      progress.setAttribute("aria-label", step.text);
      row.append(progress);
    }
    return row;
  }));
}

function flow({ totals, rates, latency }) {
  const cards = [
    ["Trucks", totals.online, "online", `${count(rates.messages)} messages per second`],
    ["Broker", totals.acknowledged, "acknowledged", "on disk before the acknowledgement"],
    ["Bronze", totals.bronze, "rows", totals.bronze ? `as they came; ${count(totals.waiting)} on the way` : "messages as they came"],
    ["Silver", totals.silver, "rows", totals.silver ? `parsed, each once; ${seconds(latency.p50)} old` : "parsed, each message once"],
    ["Gold", totals.gold, "rows", "averages by truck and window"],
    ["Alerts", totals.alerts, "received", `${count(totals.failures)} cooling ${totals.failures === 1 ? "failure" : "failures"} so far`],
  ];
  at("flow").replaceChildren(...cards.map(([title, figure, unit, note]) => node("li", title === "Alerts" ? "alert" : "",
    node("h3", "", title), node("div", "figure", count(figure)), node("div", "unit", unit), node("div", "note", note))));
}

const PARTS = { silver: "rows in silver", dead_letter: "dead letters", duplicates: "duplicates, dropped", waiting: "on the way" };

function account({ totals, phase }) {
  const figures = { ...totals, waiting: Math.max(0, totals.acknowledged - totals.accounted) };
  const names = Object.keys(PARTS);
  if (!at("bar").children.length) at("bar").append(...names.map((name) => node("span", `part-${name}`)));
  names.forEach((name, index) => { at("bar").children[index].style.flexGrow = figures[name]; });
  at("account").replaceChildren(...names.map((name) => node("li", `part-${name}`, node("b", "", count(figures[name])), PARTS[name])));
  const done = phase === "stopped" && figures.waiting === 0 && totals.acknowledged > 0;
  at("balance").className = done ? "good" : "soft";
  at("balance").textContent = done
    ? `All ${count(totals.acknowledged)} acknowledged messages are accounted for, exactly once.`
    : `The broker has acknowledged ${count(totals.acknowledged)} messages. Those on the way are in its log on disk. When you stop the demo, it writes them and checks the sum.`;
}

function empty(text, columns) {
  const cell = node("td", "empty", text);
  cell.colSpan = columns;
  return node("tr", "", cell);
}

function tables(state) {
  const rows = state.windows.slice(0, 12).filter((window) => window.celsius && window.speed);
  at("windows").replaceChildren(...(rows.length ? rows.map(({ start, celsius, speed }) => node("tr", "",
    ...[clock(start), count(celsius.devices), count(celsius.readings), degrees(celsius.low), degrees(celsius.average), degrees(celsius.high), `${speed.average.toFixed(1)} km/h`]
      .map((text) => node("td", "", text)))) : [empty("No window is over yet.", 7)]));
  const found = incidents(state.alerts);
  at("alerts").replaceChildren(...(found.length ? found.map(({ first, worst, readings }) => node("li", "",
    node("span", "soft", clock(first.at)),
    node("span", "", node("span", "device", first.device), " reached ", node("span", "hot", degrees(worst)), `, usually ${degrees(first.expected)}`),
    node("span", "delay", `${readings} ${readings === 1 ? "alert" : "alerts"}, the first after ${seconds(first.received - first.at)}`)))
    : [node("li", "empty", "No alert yet. Spark first has to learn the usual temperature of each truck.")]));
  const reasons = Object.entries(state.reasons), most = Math.max(1, ...reasons.map(([, figure]) => figure));
  at("reasons").replaceChildren(...(reasons.length ? reasons.map(([reason, figure]) => {
    const fill = node("span");
    fill.style.width = `${(100 * figure) / most}%`;
    return node("li", "", node("span", "", REASONS[reason] ?? reason), node("b", "", count(figure)), node("span", "track", fill));
  }) : [node("li", "soft", "There are none yet.")]));
  at("samples").replaceChildren(...(state.samples.length ? state.samples.map((sample) => node("tr", "",
    node("td", "", node("code", "", sample.topic)), node("td", "", node("code", "", sample.payload || "(empty)")), node("td", "", sample.reason)))
    : [empty("There are none yet.", 3)]));
}

// The alerts of one truck within a minute are one incident. The newest incident comes first.
function incidents(alerts) {
  const found = [];
  for (const alert of [...alerts].sort((one, other) => one.at - other.at)) {
    const same = found.find(({ first }) => first.device === alert.device && alert.at - first.at < 60);
    if (same) {
      same.readings += 1;
      same.worst = Math.max(same.worst, alert.value);
    } else found.push({ first: alert, worst: alert.value, readings: 1 });
  }
  return found.reverse().slice(0, 10);
}

const REASONS = {
  late: "too late", empty: "without a payload", not_utf8: "not text", bad_json: "not JSON", wrong_type: "a field has the wrong type",
  missing_field: "a field is missing", not_an_object: "not an object", bad_time: "no valid time", future: "from the future",
};

function draw({ series, windows }) {
  charts.rates.update(series.times, [series.messages, series.silver]);
  charts.waiting.update(series.times, [series.waiting]);
  charts.latency.update(series.times, [series.p50, series.p99]);
  const shown = windows.filter((window) => window.celsius).reverse();
  charts.celsius.update(shown.map((window) => window.start), ["high", "average", "low"].map((name) => shown.map((window) => window.celsius[name])));
}

function footer(state) {
  const code = (text) => node("code", "", text);
  const lines = [node("p", "", "Tables: ", code(state.folder))];
  if (state.addresses.mqtt) {
    const port = state.addresses.mqtt.split(":").pop();
    lines.push(node("p", "", "Broker: ", code(state.addresses.mqtt), ". Read API for Spark: ", code(state.addresses.read), "."));
    lines.push(node("p", "", "Metrics for Prometheus: ", code(state.addresses.metrics), " (broker) and ", code(`${location.origin}/metrics`), " (pipeline)."));
    lines.push(node("p", "", "Receive the alerts yourself: ", code(`.venv/bin/hookmq sub -p ${port} -t 'alerts/#' -v`)));
  }
  at("footer").replaceChildren(...lines);
}

function phase(name) {
  const shown = { starting: ["Starting", ""], running: ["Live", "live"], stopping: ["Stopping", ""], stopped: ["Stopped", "ended"] }[name];
  if (at("phase").textContent !== shown[0]) at("phase").textContent = shown[0];
  at("phase").className = `badge ${shown[1]}`;
  at("lead").textContent = name === "stopped" ? "The demo has stopped. The tables remain on disk, and the page shows the last figures." : LEAD;
}

const LEAD = at("lead").textContent;
let last = null, failures = 0;

async function refresh() {
  try {
    const response = await fetch("state.json", { cache: "no-store" });
    last = await response.json();
    failures = 0;
  } catch {
    failures += 1;
    if (failures >= PATIENCE && last) phase("stopped");
    return;
  }
  phase(last.phase);
  for (const show of [steps, flow, account, tables, draw, footer]) show(last);
  document.documentElement.dataset.updated = last.now;
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  at("theme").textContent = name === "dark" ? "Light" : "Dark";
  for (const chart of Object.values(charts)) chart.recolor();
}

const dark = matchMedia("(prefers-color-scheme: dark)");
theme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
at("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));

async function run() {
  await refresh();
  setTimeout(run, EVERY);
}
run();
