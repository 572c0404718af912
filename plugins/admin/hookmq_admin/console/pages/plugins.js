// Plugins, their hooks, and how often and how fast they are called.
import { node } from "../dom.js";
import { short } from "../format.js";
import { table } from "../table.js";

const calls = (hook) => Object.values(hook.outcomes).reduce((sum, count) => sum + count, 0);
const failures = (hook) => (hook.outcomes.error ?? 0) + (hook.outcomes.timeout ?? 0);
const mean = (hook) => (hook.timed ? (hook.seconds / hook.timed) * 1e6 : null);

export default function plugins(context, main) {
  const found = node("div");
  main.append(node("h2", {}, "Plugins"), found);
  context.repeat(async () => {
    const { items } = await context.ask("GET", "/plugins");
    if (found.contains(document.activeElement)) return; // do not take the focus away
    found.replaceChildren(...items.map(show));
  });
}

function show(one) {
  const failed = one.hooks.some(failures);
  const badge = one.disabled ? node("span", { class: "badge bad" }, "disabled")
    : one.circuit_open ? node("span", { class: "badge bad" }, "not called after failures")
      : node("span", { class: failed ? "badge warn" : "badge on" }, failed ? "has failed" : "working");
  const where = [one.listeners && `listeners ${one.listeners.join(", ")}`, one.filters && `filters ${one.filters.join(", ")}`].filter(Boolean).join("; ");
  return node("section", { class: "card", "aria-label": one.id },
    node("div", { class: "head" }, node("h3", {}, one.id), node("span", { class: "soft" }, `${one.use} ${one.version}`), badge),
    one.disabled ? node("p", { class: "bad" }, short(one.disabled)) : null, where ? node("p", { class: "soft" }, short(where)) : null,
    one.hooks.length ? table(`Hooks of ${one.id}`, [
      { title: "Hook", value: (hook) => hook.name }, { title: "Calls", value: calls, number: true }, { title: "Mean (µs)", value: mean, number: true },
      { title: "Results", show: (hook) => short(Object.entries(hook.outcomes).filter(([, count]) => count).map(([name, count]) => `${name} ${short(count)}`).join(", ")) },
      { title: "Failures", value: failures, number: true }, { title: "Waiting", value: (hook) => hook.queue, number: true },
      { title: "Lost", value: (hook) => hook.dropped, number: true }, { title: "Last error", value: (hook) => hook.last_error },
    ], one.hooks) : node("p", { class: "soft" }, "It has no hooks."));
}
