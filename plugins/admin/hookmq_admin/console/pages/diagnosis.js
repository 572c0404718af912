// Slow clients, busy topics and drops. The last two are measured on request.
import { may } from "../api.js";
import { button, choice, field, form, node, section } from "../dom.js";
import { bytes, cut, duration, number, short, time } from "../format.js";
import { pages, table } from "../table.js";
import { link, state } from "./clients.js";

const TIMES = [["10", "10 seconds"], ["60", "1 minute"], ["600", "10 minutes"]];
const EVERY = 2000;
const topic = (one) => node("a", { href: `#/subscriptions?${new URLSearchParams({ topic: one.topic })}`, title: "Who gets it, and why" }, cut(one.topic));

export default function diagnosis(context, main) {
  const { ask, attempt, say } = context;
  const hot = node("div"), drops = node("div"), mayStart = may("operator");
  let by = "queued", busy = false, shown = "";
  const slow = pages(context, (cursor, limit) => ask("GET", "/slow-clients", { query: { by, cursor, limit } }), (items) =>
    table("Slow clients", [
      { title: "Client id", value: "client_id", as: link }, { title: "State", value: "connected", as: state },
      { title: "Queued", value: "queued", number: true }, { title: "Bytes", value: "queued_bytes", as: bytes, number: true },
      { title: "In flight", value: "inflight", show: (one) => `${number(one.inflight)} of ${number(one.receive_maximum)}`, number: true },
      { title: "Oldest message", value: "oldest", show: (one) => (one.oldest === null ? "–" : duration(one.oldest)), number: true },
      { title: "Address", value: "address" },
    ], items, { empty: "No message waits for any client, so none of them is slow." }), { limit: 25 });
  const order = choice("Sort by", "by", [["queued", "messages that wait"], ["queued_bytes", "bytes that wait"], ["inflight", "messages in flight"]], { onchange: (event) => {
    by = event.target.value;
    slow.restart();
  } });
  main.append(node("h2", {}, "Diagnosis"),
    section("Slow clients", node("div", { class: "bar" }, order, button("Refresh", () => slow.restart())), slow.element,
      node("p", { class: "soft" }, "Each page has the slowest of 10,000 sessions.")),
    section("Hot topics", mayStart ? form([
      field("Filter", "filter", { required: true, value: "#" }), choice("For", "seconds", TIMES), choice("Count by", "levels", [["0", "whole topics"], ["1", "1 level"], ["2", "2 levels"], ["3", "3 levels"]]),
    ], "Measure", (given) => begin("/hot-topics", { filter: given.filter, seconds: Number(given.seconds), levels: Number(given.levels) }), { class: "bar" }) : null, hot),
    section("Dropped messages", mayStart ? form([choice("For", "seconds", TIMES, { value: "60" })], "Record", (given) => begin("/drops", { seconds: Number(given.seconds) }), { class: "bar" }) : null, drops));
  slow.show();
  context.repeat(update, EVERY);

  function begin(path, body) {
    return attempt(async () => {
      await (path === "/drops" ? ask("POST", "/drops", { body }) : ask("POST", "/hot-topics", { body }));
      say("Started.");
      await update();
    });
  }

  async function update() {
    if (busy) return;
    busy = true;
    try {
      const [topics, lost] = await Promise.all([ask("GET", "/hot-topics"), ask("GET", "/drops")]);
      const seen = JSON.stringify([topics, lost]);
      if (seen === shown || hot.contains(document.activeElement) || drops.contains(document.activeElement)) return;
      shown = seen;
      show(topics, lost);
    } finally {
      busy = false;
    }
  }

  function show(topics, lost) {
    hot.replaceChildren(topics.started_at ? table("Hot topics", [
      { title: "Topic", value: "topic", show: topics.levels ? null : topic }, { title: "Messages", value: "messages", number: true },
      { title: "Per second", value: "rate", number: true }, { title: "Bytes", value: "bytes", as: bytes, number: true },
    ], topics.topics, { empty: "No message has arrived yet. Check the filter, or wait until clients publish." }) : "", node("p", { class: "soft" }, topics.started_at
      ? `${topics.running ? "Measuring" : "Measured"} ${cut(topics.filter)} for ${duration(topics.seconds)}: ${number(topics.messages)} messages.`
      : "Nothing has been measured. A measurement is a subscriber for a limited time; without one, it costs nothing."));
    drops.replaceChildren(lost.started_at ? table("Newest dropped messages", [
      { title: "Time", value: "time", as: time }, { title: "Reason", value: "reason" },
      { title: "Client", value: "client_id", show: (one) => (one.client_id ? link(one.client_id) : "–") },
      { title: "Topic", value: "topic", show: topic }, { title: "QoS", value: "qos", number: true },
      { title: "Detail", value: "detail", as: short },
    ], lost.samples, { empty: "No message was dropped during the recording." }) : "", node("p", { class: "soft" }, lost.started_at
      ? `${lost.running ? "Recording" : "Recorded"} since ${time(lost.started_at)}: ${number(lost.recorded)} dropped messages.`
      : "Nothing has been recorded. The overview counts all drops by reason."));
  }
}
