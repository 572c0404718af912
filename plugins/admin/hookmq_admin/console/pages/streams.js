// The streams of plugins: their size, their consumers, and how far these lag behind.
import { node } from "../dom.js";
import { bytes, cut, duration, number, short, time } from "../format.js";
import { table } from "../table.js";

export default function streams(context, main) {
  const found = node("div");
  main.append(node("h2", {}, "Streams"), found);
  context.repeat(async () => {
    const { items, failed } = await context.ask("GET", "/streams");
    if (found.contains(document.activeElement)) return; // do not take the focus away
    found.replaceChildren(
      ...failed.map((one) => node("p", { class: "bad" }, `${cut(one.plugin)}: ${cut(one.error, 300)}`)),
      ...(items.length ? items.map(show) : [node("p", { class: "soft" }, "No plugin keeps messages for consumers.")]));
  });
}

function show(one) {
  const badge = one.full ? node("span", { class: "badge bad" }, "refuses messages")
    : one.max_bytes && one.bytes > 0.8 * one.max_bytes ? node("span", { class: "badge warn" }, "almost full")
      : one.consumers.some(remark) ? node("span", { class: "badge warn" }, "check the consumers") : null;
  const facts = [
    `${number(one.messages)} messages`, one.max_bytes ? `${bytes(one.bytes)} of ${bytes(one.max_bytes)}` : bytes(one.bytes),
    one.messages ? `${bytes(one.bytes / one.messages)} per message` : "", one.oldest === null ? "" : `oldest: ${duration(one.oldest)}`,
    one.refused ? `refused: ${number(one.refused)}` : "", one.dropped ? `removed unread: ${number(one.dropped)}` : "",
    one.partitions.length > 1 ? `messages by partition: ${one.partitions.map(number).join(", ")}` : "",
  ].filter(Boolean);
  return node("section", { class: "card", "aria-label": cut(one.name) },
    node("div", { class: "head" }, node("h3", {}, cut(one.name)), node("span", { class: "soft" }, `${cut(one.plugin)}, ${one.kind}`), badge),
    node("p", {}, cut(facts.join("; "), 2000)), one.error ? node("p", { class: "bad" }, cut(one.error, 300)) : null,
    one.consumers.length ? table(`Consumers of ${cut(one.name)}`, [
      { title: "Consumer", value: (consumer) => consumer.name }, { title: "Lag", value: (consumer) => consumer.lag, number: true },
      { title: "Behind", value: (consumer) => consumer.lag_seconds, number: true,
        show: (consumer) => consumer.lag_seconds === null ? "–" : duration(consumer.lag_seconds) },
      { title: "Dead letters", value: (consumer) => consumer.dead_letters, number: true,
        show: (consumer) => consumer.dead_letters === null ? "–" : number(consumer.dead_letters) },
      { title: "Last commit", value: (consumer) => consumer.committed_at, show: (consumer) => time(consumer.committed_at) },
      { title: "Remark", value: remark, show: (consumer) => short(remark(consumer)) },
    ], one.consumers) : node("p", { class: "soft" }, "It has no consumers."));
}

function remark(consumer) {
  if (consumer.declared && consumer.committed_at === null) return "has never committed: all messages are kept for it";
  if (consumer.declared === false) return "not declared: messages are not kept for it";
  return "";
}
