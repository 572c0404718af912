// The broker at a glance: figures, charts, dropped messages by reason, and listeners.
import { chart, rates } from "../chart.js";
import { choice, node, section } from "../dom.js";
import { bytes, duration, number, time } from "../format.js";
import { table } from "../table.js";

const EVERY = 5000;
const RANGES = [["900", "15 minutes"], ["3600", "1 hour"], ["21600", "6 hours"]];
const REASONS = {
  denied: "denied by access rules", undecided: "undecided", plugin: "discarded by a plugin", queue_full: "queue full",
  queue_bytes: "queues too large", offline_qos0: "QoS 0, client offline", expired: "expired", too_large: "too large for the client",
  revoked: "permission revoked", session_ended: "session ended", client_left: "client left", refused: "refused by the client",
  retain_limit: "too many retained messages", rate_limited: "rate limited", depth: "published too deeply",
};

// The title and meaning of each latency. The API has seconds, and null if nothing was measured.
const LATENCIES = {
  commit: ["Commits", "the time to store changes of sessions and messages"],
  delivery: ["Deliveries", "the time from receiving a message to sending it, also in a queue; one turn in 16 is measured"],
  hook: ["Hooks", "the duration of calls of all plugins; for messages, one in 64 is measured"],
};
const milliseconds = (seconds) => (seconds === null ? null : seconds * 1000);
const below = (seconds) => (seconds === null ? "–" : `≤ ${number(seconds * 1000)} ms`);

export default function overview(context, main) {
  const figures = node("div", { class: "tiles" }), charts = node("div", { class: "charts" });
  const drops = node("div"), listeners = node("div"), drain = node("div");
  let touched = 0, seconds = Number(RANGES[0][0]), times = [], series = {}, interval = 10;
  const range = choice("Range", "range", RANGES, { onchange: (event) => {
    seconds = Number(event.target.value);
    times = [];
    context.attempt(update);
  } });
  main.append(node("div", { class: "head" }, node("h2", {}, "Overview"), range), drain, figures, charts,
    node("p", { class: "soft" }, `Of 100 values between two samples, 50 are at most p50, and 99 are at most p99. Values are counted in ranges, so each figure is the upper bound of one. Commits: ${LATENCIES.commit[1]}. Deliveries: ${LATENCIES.delivery[1]}. Hooks: ${LATENCIES.hook[1]}.`),
    node("div", { class: "two" }, drops, listeners));
  charts.addEventListener("pointermove", () => { touched = Date.now(); });
  context.repeat(update);

  async function update() {
    const [now, history, open, drained] = await Promise.all([
      context.ask("GET", "/overview"), load(), context.ask("GET", "/listeners"), context.ask("GET", "/drain"),
    ]);
    add(history);
    show(now);
    drain.replaceChildren(drained.draining ? node("p", { class: "card bad" }, `The broker is draining: it refuses new clients, and ${number(drained.waiting)} clients are still to be disconnected.`) : "");
    listeners.replaceChildren(section("Listeners", table("Listeners", [
      { title: "Name", value: "name" }, { title: "Type", value: "type" },
      { title: "Address", value: "address" }, { title: "Connections", value: "connections", number: true },
    ], open.items)));
  }

  // All samples of the range, and later only those that are new.
  function load() {
    const limit = Math.max(2, Math.ceil(seconds / interval));
    const since = times.length ? times.at(-1) : 0;
    return context.ask("GET", "/history", { query: { limit: Math.min(limit, 20_000), since } });
  }

  function add(history) {
    if (times.length && history.times.length && history.times[0] <= times.at(-1)) return; // the range changed meanwhile
    interval = history.interval;
    const most = Math.ceil(seconds / interval) + 1;
    if (!times.length) series = {};
    times = [...times, ...history.times].slice(-most);
    for (const [name, values] of Object.entries(history.series)) series[name] = [...(series[name] ?? []), ...values].slice(-most);
  }

  function show(now) {
    const lost = Object.values(now.dropped).reduce((sum, one) => sum + one, 0);
    const tiles = [
      ["Connections", number(now.connections), `${number(now.sessions)} sessions`],
      ["Messages in", `${number(now.rates.messages_received)}/s`, `${bytes(now.rates.bytes_received)}/s`],
      ["Messages out", `${number(now.rates.messages_delivered)}/s`, `${bytes(now.rates.bytes_sent)}/s`],
      ["In queues", bytes(now.queue_bytes), `${number(now.retained_messages)} retained messages`],
      ["Dropped", `${number(now.rates.dropped)}/s`, `${number(lost)} since the start`, now.rates.dropped > 0],
      ["Event loop lag", `${number(now.loop_lag * 1000)} ms`, "at the last sample", now.loop_lag > 0.1],
      ...Object.entries(LATENCIES).slice(0, 2).map(([name, [title]]) =>
        [`${title}, p99`, below(now.latency[`${name}_p99`]), `p50 ${below(now.latency[`${name}_p50`])}, in the last ${duration(interval)}`]),
      ["Subscriptions", number(now.subscriptions), `${number(now.rates.connections_accepted)} new connections/s`],
      ["Running for", duration(now.uptime), `version ${now.version}, since ${time(now.started_at)}`],
    ];
    figures.replaceChildren(...tiles.map(([title, value, more, bad]) => node("dl", { class: bad ? "tile warn" : "tile" },
      node("dt", {}, title), node("dd", {}, value), node("dd", { class: "soft" }, more))));
    const perSecond = (name) => rates(times, series[name]);
    const later = times.slice(1);
    if (Date.now() - touched > EVERY) { // do not take a chart away from the pointer that reads it
      charts.replaceChildren(
        chart("Messages per second", later, [{ title: "in", values: perSecond("messages_received_total") }, { title: "out", values: perSecond("messages_delivered_total") }]),
        chart("Traffic per second", later, [{ title: "in", values: perSecond("bytes_received_total") }, { title: "out", values: perSecond("bytes_sent_total") }], bytes),
        chart("Connections and sessions", times, [{ title: "connections", values: series.connections }, { title: "sessions", values: series.sessions }]),
        chart("Bytes in queues", times, [{ title: "bytes", values: series.queue_bytes }], bytes),
        chart("Dropped messages per second", later, [{ title: "dropped", values: perSecond("dropped_total") }]),
        chart("Event loop lag in ms", times, [{ title: "lag", values: series.loop_lag.map((lag) => lag * 1000) }]),
        ...Object.entries(LATENCIES).map(([name, [title]]) => chart(`${title}: latency in ms`, times, ["p50", "p99"].map((part) =>
          ({ title: part, values: series[`${name}_${part}`].map(milliseconds) })))),
      );
    }
    const reasons = Object.entries(now.dropped).map(([name, count]) => {
      const [direction, why] = name.split(":");
      return { direction: direction === "in" ? "from clients" : "to clients", why: REASONS[why] ?? why, count };
    });
    drops.replaceChildren(section("Dropped messages by reason", table("Dropped messages since the start", [
      { title: "Reason", value: "why" }, { title: "Direction", value: "direction" },
      { title: "Messages", value: "count", number: true },
    ], reasons.filter((one) => one.count), { empty: "No message has been dropped." })));
  }
}
