// Plugins: their hooks, and how often and how fast they are called; their streams, consumers, and how far these lag behind.
import { badge, node } from "../dom.js";
import { bytes, cut, duration, number, short, time } from "../format.js";
import { table } from "../table.js";

const calls = (hook) => Object.values(hook.outcomes).reduce((sum, count) => sum + count, 0);
const failures = (hook) => (hook.outcomes.error ?? 0) + (hook.outcomes.timeout ?? 0);
const mean = (hook) => (hook.timed ? (hook.seconds / hook.timed) * 1e6 : null);

export default function plugins(context, main) {
  const found = node("div");
  main.append(node("h2", {}, "Plugins"), found);
  context.redraw(found, async () => (await context.ask("GET", "/plugins")).items.map(plugin));
}

function plugin(one) {
  const failed = one.hooks.some(failures);
  const mark = one.disabled ? badge("disabled", "bad")
    : one.circuit_open ? badge("not called after failures", "bad")
      : badge(failed ? "has failed" : "working", failed ? "warn" : "on");
  const where = [one.listeners && `listeners ${one.listeners.join(", ")}`, one.filters && `filters ${one.filters.join(", ")}`].filter(Boolean).join("; ");
  return node("section", { class: "card", "aria-label": one.id },
    node("div", { class: "head" }, node("h3", {}, one.id), node("span", { class: "soft" }, `${one.use} ${one.version}`), mark),
    one.disabled ? node("p", { class: "bad" }, short(one.disabled)) : null, where ? node("p", { class: "soft" }, short(where)) : null,
    one.hooks.length ? table(`Hooks of ${one.id}`, [
      { title: "Hook", value: "name" }, { title: "Calls", value: calls, number: true }, { title: "Mean (µs)", value: mean, number: true },
      { title: "Results", show: (hook) => short(Object.entries(hook.outcomes).filter(([, count]) => count).map(([name, count]) => `${name} ${short(count)}`).join(", ")) },
      { title: "Failures", value: failures, number: true }, { title: "Waiting", value: "queue", number: true },
      { title: "Lost", value: "dropped", number: true }, { title: "Last error", value: "last_error" },
    ], one.hooks) : node("p", { class: "soft" }, "It has no hooks."));
}

export function streams(context, main) {
  const found = node("div");
  main.append(node("h2", {}, "Streams"), found);
  context.redraw(found, async () => {
    const { items, failed } = await context.ask("GET", "/streams");
    return [...failed.map((one) => node("p", { class: "bad" }, `${cut(one.plugin)}: ${cut(one.error, 300)}`)),
      ...(items.length ? items.map(stream) : [node("p", { class: "soft" }, "No plugin keeps messages for consumers.")])];
  });
}

function stream(one) {
  const mark = one.full ? badge("refuses messages", "bad")
    : one.max_bytes && one.bytes > 0.8 * one.max_bytes ? badge("almost full", "warn")
      : one.consumers.some(remark) ? badge("check the consumers", "warn") : null;
  const facts = [
    `${number(one.messages)} messages`, one.max_bytes ? `${bytes(one.bytes)} of ${bytes(one.max_bytes)}` : bytes(one.bytes),
    one.messages ? `${bytes(one.bytes / one.messages)} per message` : "", one.oldest === null ? "" : `oldest: ${duration(one.oldest)}`,
    one.refused ? `refused: ${number(one.refused)}` : "", one.dropped ? `removed unread: ${number(one.dropped)}` : "",
    one.partitions.length > 1 ? `messages by partition: ${one.partitions.map(number).join(", ")}` : "",
  ].filter(Boolean);
  return node("section", { class: "card", "aria-label": cut(one.name) },
    node("div", { class: "head" }, node("h3", {}, cut(one.name)), node("span", { class: "soft" }, `${cut(one.plugin)}, ${one.kind}`), mark),
    node("p", {}, cut(facts.join("; "), 2000)), one.error ? node("p", { class: "bad" }, cut(one.error, 300)) : null,
    one.consumers.length ? table(`Consumers of ${cut(one.name)}`, [
      { title: "Consumer", value: "name" }, { title: "Lag", value: "lag", number: true },
      { title: "Behind", value: "lag_seconds", number: true,
        show: (consumer) => consumer.lag_seconds === null ? "–" : duration(consumer.lag_seconds) },
      { title: "Dead letters", value: "dead_letters", number: true,
        show: (consumer) => consumer.dead_letters === null ? "–" : number(consumer.dead_letters) },
      { title: "Last commit", value: "committed_at", as: time },
      { title: "Remark", value: remark, show: (consumer) => short(remark(consumer)) },
    ], one.consumers) : node("p", { class: "soft" }, "It has no consumers."));
}

function remark(consumer) {
  if (consumer.declared && consumer.committed_at === null) return "has never committed: all messages are kept for it";
  if (consumer.declared === false) return "not declared: messages are not kept for it";
  return "";
}
