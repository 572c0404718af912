// All queues, and one queue: its groups, their consumers, its messages and settings, and what an operator can do with it.
import { at, may } from "../api.js";
import { area, badge, button, confirmed, field, node, pairs, section } from "../dom.js";
import { bytes, cut, duration, number, payload, short, time } from "../format.js";
import { table } from "../table.js";

export default function queues(context, main) {
  const { ask, attempt, say } = context, found = node("div"), rates = new Rates();
  main.append(node("div", { class: "head" }, node("h2", {}, "Queues"), may("admin") ? button("Create a queue", create) : ""), found);
  context.redraw(found, draw);

  async function draw() {
    const { items } = await ask("GET", "/queues");
    rates.add(items);
    return [table("Queues", [
      { title: "Name", value: "name", show: (one) => node("a", { href: at`#/queue/${one.name}` }, cut(one.name)) },
      { title: "Type", value: "type" },
      { title: "Messages", value: "messages", number: true },
      { title: "Delayed", value: "delayed", number: true },
      { title: "Size", value: "bytes", number: true, as: bytes },
      { title: "Oldest", value: "oldest", number: true, as: age },
      { title: "In/s", value: (one) => rates.of(one, "accepted"), number: true, show: (one) => short(rates.of(one, "accepted")) },
      { title: "Out/s", value: (one) => rates.of(one, "acknowledged"), number: true, show: (one) => short(rates.of(one, "acknowledged")) },
      { title: "Unacknowledged", value: (one) => sum(one, "unacknowledged"), number: true },
      { title: "Redelivered", value: (one) => one.counts.redelivered ?? 0, number: true },
      { title: "Consumers", value: (one) => sum(one, "consumer_count"), number: true },
      { title: "State", value: (one) => state(one).join(), show: (one) => badges(one) },
    ], items, { empty: "There is no queue." })];
  }

  async function create() {
    const given = await confirmed("Create a queue", "Its settings are those of the plugin queues, as JSON. Leave them empty to use the defaults.", { action: "Create", danger: false, fields: [
      field("Name", "name", { required: true, maxlength: 128 }), area("Settings (optional)", "settings", { placeholder: '{"groups": ["work"], "max_messages": 10000}' }),
    ] });
    if (given === null) return;
    await attempt(async () => {
      await ask("POST", "/queues", { body: { name: given.name, settings: given.settings.trim() ? JSON.parse(given.settings) : {} } });
      say(`The queue ${cut(given.name)} was created.`);
      found.replaceChildren(...await draw());
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
  return node("span", {}, found.length ? found.map((text) => [badge(text, text === "full" ? "bad" : "warn"), " "]).flat() : none);
}

const EVERY = 2000;
const COUNTS = ["accepted", "delivered", "redelivered", "acknowledged", "timed_out", "dead_lettered", "expired", "rejected", "dropped_newest", "dropped_oldest", "purged", "redriven"];

// A stream has no limit at which it is full.
const most = (one, limit) => one.type === "stream" ? "" : ` of ${limit}`;

// What the broker says about a dead letter in its user property dead-letter-NAME, or undefined.
const deadLetter = (one, name) => one.properties?.user_properties?.find(([key]) => key === `dead-letter-${name}`)?.[1];
const reason = (one) => [deadLetter(one, "reason"), deadLetter(one, "description")].filter(Boolean).join(": ");

export function queue(context, main) {
  const name = context.part, { act, ask, attempt, say } = context, path = at`/queues/${name}`, rates = new Rates();
  const mark = node("span"), facts = node("div", { class: "facts" }), groups = node("div"), consumers = node("div"), messages = node("div");
  const settings = node("div", { class: "facts" }), moving = node("p", { role: "status" }), row = node("div", { class: "row actions" });
  let last = null;
  main.append(node("p", {}, node("a", { href: "#/queues" }, "All queues")), node("div", { class: "head" }, node("h2", { class: "id" }, cut(name, 200)), mark),
    row, moving, facts, section("Groups", groups), section("Consumers", consumers), may("operator") ? section("Messages", messages) : "", section("Settings", settings));
  context.refresh = async () => {
    await update();
    await peek("", null);
  };
  context.repeat(update, EVERY);
  if (may("operator")) peek("", null);

  async function update() {
    const one = await ask("GET", path), redrive = await ask("GET", `${path}/redrive`);
    rates.add([one]);
    one.redriving = redrive.state === "running";
    if (!last || last.paused !== one.paused || last.made_by !== one.made_by || last.redriving !== one.redriving) row.replaceChildren(...actions(one));
    last = one;
    mark.replaceChildren(badges(one, ""));
    facts.replaceChildren(pairs({
      Type: one.type, "Made by": { configuration: "the configuration", operator: "an operator", first_use: "its first use" }[one.made_by],
      Messages: number(one.messages) + most(one, number(one.max_messages)), Size: bytes(one.bytes) + most(one, bytes(one.max_bytes)), Delayed: one.delayed,
      Oldest: age(one.oldest), "In/s": rates.of(one, "accepted"), "Out/s": rates.of(one, "acknowledged"), "Next offset": one.end, "Dead letters to": one.dead_letter,
      ...Object.fromEntries(COUNTS.filter((key) => one.counts[key]).map((key) => [key.replaceAll("_", " "), one.counts[key]])),
    }));
    settings.replaceChildren(pairs(one.settings));
    show(redrive);
    if (groups.contains(document.activeElement) || consumers.contains(document.activeElement)) return; // do not take the focus away
    groups.replaceChildren(table("Groups", [
      { title: "Group", value: "name" }, { title: "Unsettled", value: "unsettled", number: true },
      { title: "Unacknowledged", value: "unacknowledged", number: true }, { title: "Delayed", value: "delayed", number: true },
      { title: "Oldest", value: "oldest", number: true, as: age },
      { title: "Consumers", value: "consumer_count", number: true }, { title: "Stalled", value: "stalled", number: true },
      ...(may("operator") ? [{ title: "Deliveries", show: (group) => button(group.paused ? "Resume" : "Pause", () => pause(group.paused, group.name),
        { class: "small", disabled: one.paused, "aria-label": `${group.paused ? "Resume" : "Pause"} ${cut(group.name, 60)}` }) }] : []),
      ...(may("admin") && one.type === "stream" ? [{ title: "Position", show: (group) => button("Move", () => seek(group.name), { class: "small", "aria-label": `Move ${cut(group.name, 60)}` }) }] : []),
    ], one.groups));
    consumers.replaceChildren(table("Consumers", [
      { title: "Client", value: "client_id", show: (client) => node("a", { href: at`#/client/${client.client_id}` }, cut(client.client_id)) },
      { title: "Group", value: "group" }, { title: "Filter", value: "filter" },
      { title: "Unacknowledged", value: "unacknowledged", number: true }, { title: "Timed out", value: "timed_out", number: true },
      { title: "State", value: "stalled", show: (client) => client.stalled ? badge("stalled", "warn") : client.active ? "–" : "waiting" },
    ], one.groups.flatMap((group) => group.consumers.map((client) => ({ ...client, group: group.name }))), { empty: "No consumer is online." }));
  }

  function show({ state, moved, skipped, examined, total, waiting_for: full, note, ended_at: ended }) {
    let text = "";
    if (state !== "idle") {
      const what = state === "running" ? "Dead letters are being moved back" : `The redrive ${state === "done" ? "is done" : state === "stopped" ? "was stopped" : "has failed"} (${time(ended)})`;
      text = `${what}: ${number(moved)} moved, ${number(skipped)} skipped, ${number(examined)} of ${number(total)} examined.${full ? ` It waits for room in ${cut(full)}.` : ""}${note ? ` ${cut(note, 300)}.` : ""}`;
    }
    if (moving.textContent !== text) moving.textContent = text;
  }

  function actions(one) {
    if (!may("operator")) return [];
    const stored = one.made_by !== "configuration";
    return [
      button(one.paused ? "Resume the deliveries" : "Pause the deliveries", () => pause(one.paused, "")),
      ...(may("admin") ? [
        one.redriving ? button("Stop the redrive", () => act("Stop the redrive", "Messages that were moved stay moved.", () => ask("DELETE", `${path}/redrive`))) : button("Redrive", redrive),
        button("Purge", () => act("Purge the queue", "All messages that no consumer has are lost.", () => ask("DELETE", `${path}/messages`)), { class: "danger" }),
        stored ? button("Delete", remove, { class: "danger" }) : "",
      ] : []),
    ].filter(Boolean);
  }

  function seek(group) {
    return act(`Move the group ${cut(group, 60)}`, "The group continues at this position: first, last, next, an offset, a time such as 2030-01-31T12:00:00Z, or @ and epoch seconds.", (given) =>
      ask("POST", `${path}/seek`, { body: { group, position: given.position } }), { action: "Move", fields: [field("Position", "position", { required: true, maxlength: 64 })] });
  }

  function pause(paused, group) {
    const which = group ? `the group ${cut(group, 60)}` : "the queue";
    return act(`${paused ? "Resume" : "Pause"} ${which}`, paused ? "Consumers get messages again." : "Consumers get no messages until you resume the deliveries, even after a restart.", () =>
      ask("POST", `${path}/${paused ? "resume" : "pause"}`, { body: { group } }), { danger: !paused });
  }

  function redrive() {
    return act("Redrive", "Dead letters go back to the queues and groups that they come from. Empty fields select all.", (given) =>
      ask("POST", `${path}/redrive`, { body: { ...given, rate: Number(given.rate), older_than: Number(given.older_than) } }), { action: "Move them", danger: false, fields: [
      field("Only from this queue", "queue", { maxlength: 128 }), field("Only with topics that match this filter", "topic"), field("Only with this reason", "reason", { maxlength: 256, placeholder: "delivery-limit, rejected or expired" }),
      field("Only older than this many seconds", "older_than", { type: "number", min: 0, value: 0 }), field("Maximum messages per second", "rate", { type: "number", min: 1, max: 1000000, value: 1000, required: true }),
    ] });
  }

  async function remove() {
    if (await confirmed("Delete the queue", `It has ${number(last.messages)} messages, which are lost.`) === null) return;
    await attempt(async () => {
      await ask("DELETE", path, { query: { force: true } });
      say("The queue was deleted.");
      location.hash = "#/queues";
    });
  }

  function peek(group, after) {
    return attempt(async () => {
      const page = await ask("GET", `${path}/messages`, { query: { group, limit: 25, ...(after === null ? {} : { after }) } });
      const dead = page.items.some((one) => deadLetter(one, "reason"));
      messages.replaceChildren(table("Messages", [
        { title: "Offset", value: "offset", number: true }, { title: "State", value: "state" },
        { title: "Deliveries", value: "deliveries", number: true }, { title: "Client", value: "client_id" },
        ...(dead ? [{ title: "From", value: (one) => deadLetter(one, "id") }, { title: "Reason", value: reason }] : []),
        { title: "Topic", value: "topic" }, { title: "Age", value: "received_at", show: (one) => duration(Date.now() / 1000 - one.received_at) },
        { title: "Bytes", value: "bytes", number: true }, { title: "Payload", show: (one) => cut(payload(one.payload)) },
      ], page.items, { empty: "Every message is settled." }),
      node("div", { class: "row pager" }, button("First page", () => peek(group, null), { disabled: after === null }), button("Next", () => peek(group, page.after), { disabled: page.after === null }), button("Refresh", () => peek(group, after))));
    });
  }
}
