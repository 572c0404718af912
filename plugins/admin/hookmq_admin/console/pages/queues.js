// All queues: their depth, rates, the age of the oldest message, and consumers that are stalled.
import { at, may } from "../api.js";
import { confirmed } from "../dialog.js";
import { area, button, field, node } from "../dom.js";
import { bytes, cut, duration, number, short } from "../format.js";
import { table } from "../table.js";

export default function queues(context, main) {
  const { ask, attempt, say } = context, found = node("div"), rates = new Rates();
  main.append(node("div", { class: "head" }, node("h2", {}, "Queues"), may("admin") ? button("Create a queue", create) : ""), found);
  context.repeat(update);

  async function update() {
    const { items } = await ask("GET", "/queues");
    rates.add(items);
    if (found.contains(document.activeElement)) return; // do not take the focus away
    found.replaceChildren(table("Queues", [
      { title: "Name", value: (one) => one.name, show: (one) => node("a", { href: at`#/queue/${one.name}` }, cut(one.name)) },
      { title: "Type", value: (one) => one.type },
      { title: "Messages", value: (one) => one.messages, number: true },
      { title: "Delayed", value: (one) => one.delayed, number: true },
      { title: "Size", value: (one) => one.bytes, number: true, show: (one) => bytes(one.bytes) },
      { title: "Oldest", value: (one) => one.oldest ?? -1, number: true, show: (one) => age(one.oldest) },
      { title: "In/s", value: (one) => rates.of(one, "accepted"), number: true, show: (one) => short(rates.of(one, "accepted")) },
      { title: "Out/s", value: (one) => rates.of(one, "acknowledged"), number: true, show: (one) => short(rates.of(one, "acknowledged")) },
      { title: "Unacknowledged", value: (one) => sum(one, "unacknowledged"), number: true },
      { title: "Redelivered", value: (one) => one.counts.redelivered ?? 0, number: true },
      { title: "Consumers", value: (one) => sum(one, "consumer_count"), number: true },
      { title: "State", value: (one) => state(one).join(), show: (one) => badges(one) },
    ], items, { empty: "There is no queue." }));
  }

  async function create() {
    const given = await confirmed("Create a queue", "Its settings are those of the plugin queues, as JSON. Leave them empty to use the defaults.", { action: "Create", danger: false, fields: [
      field("Name", "name", { required: true, maxlength: 128 }), area("Settings (optional)", "settings", { placeholder: '{"groups": ["work"], "max_messages": 10000}' }),
    ] });
    if (given === null) return;
    await attempt(async () => {
      await ask("POST", "/queues", { body: { name: given.name, settings: given.settings.trim() ? JSON.parse(given.settings) : {} } });
      say(`The queue ${cut(given.name)} was created.`);
      await update();
    });
  }
}

// Counters per second between the last two answers.
export class Rates {
  constructor() { this.before = this.now = null; }

  add(items) {
    this.before = this.now;
    this.now = { at: performance.now(), counts: new Map(items.map((one) => [one.name, one.counts])) };
  }

  of(one, name) {
    const earlier = this.before?.counts.get(one.name)?.[name];
    if (earlier === undefined || this.now.at === this.before.at) return null;
    return Math.max(0, (one.counts[name] - earlier) / ((this.now.at - this.before.at) / 1000));
  }
}

export function age(seconds) {
  return seconds === null ? "–" : duration(seconds);
}

function sum(one, name) {
  return one.groups.reduce((total, group) => total + group[name], 0);
}

function state(one) {
  const stalled = sum(one, "stalled"), paused = one.groups.filter((group) => group.paused).length;
  return [one.full && "full", paused && (paused === one.groups.length ? "paused" : `${number(paused)} paused`), stalled && `${number(stalled)} stalled`].filter(Boolean);
}

export function badges(one, none = "–") {
  const found = state(one);
  return node("span", {}, found.length ? found.map((text) => [node("span", { class: `badge ${text === "full" ? "bad" : "warn"}` }, text), " "]).flat() : none);
}
