// One queue: its groups, their consumers, its messages and settings, and what an operator can do with it.
import { at, may } from "../api.js";
import { confirmed } from "../dialog.js";
import { button, field, node, section } from "../dom.js";
import { bytes, cut, duration, number, payload, short, time } from "../format.js";
import { table } from "../table.js";
import { age, badges, Rates } from "./queues.js";

const EVERY = 2000;
const COUNTS = ["accepted", "delivered", "redelivered", "acknowledged", "timed_out", "dead_lettered", "expired", "rejected", "dropped_newest", "dropped_oldest", "purged", "redriven"];

// A stream has no limit at which it is full.
const most = (one, limit) => one.type === "stream" ? "" : ` of ${limit}`;

// What the broker says about a dead letter in its user property dead-letter-NAME, or undefined.
const deadLetter = (one, name) => one.properties?.user_properties?.find(([key]) => key === `dead-letter-${name}`)?.[1];
const reason = (one) => [deadLetter(one, "reason"), deadLetter(one, "description")].filter(Boolean).join(": ");

export default function queue(context, main) {
  const name = context.part, { ask, attempt, say } = context, path = at`/queues/${name}`, rates = new Rates();
  const mark = node("span"), facts = node("div", { class: "facts" }), groups = node("div"), consumers = node("div"), messages = node("div");
  const settings = node("div", { class: "facts" }), moving = node("p", { role: "status" }), row = node("div", { class: "row actions" });
  let last = null;
  main.append(node("p", {}, node("a", { href: "#/queues" }, "All queues")), node("div", { class: "head" }, node("h2", { class: "id" }, cut(name, 200)), mark),
    row, moving, facts, section("Groups", groups), section("Consumers", consumers), may("operator") ? section("Messages", messages) : "", section("Settings", settings));
  context.repeat(update, EVERY);
  if (may("operator")) peek("", null);

  async function update() {
    const one = await ask("GET", path), redrive = await ask("GET", `${path}/redrive`);
    rates.add([one]);
    one.redriving = redrive.state === "running";
    if (!last || last.paused !== one.paused || last.made_by !== one.made_by || last.redriving !== one.redriving) row.replaceChildren(...actions(one));
    last = one;
    mark.replaceChildren(badges(one, ""));
    list(facts, {
      Type: one.type, "Made by": { configuration: "the configuration", operator: "an operator", first_use: "its first use" }[one.made_by],
      Messages: number(one.messages) + most(one, number(one.max_messages)), Size: bytes(one.bytes) + most(one, bytes(one.max_bytes)), Delayed: one.delayed,
      Oldest: age(one.oldest), "In/s": rates.of(one, "accepted"), "Out/s": rates.of(one, "acknowledged"), "Next offset": one.end, "Dead letters to": one.dead_letter,
      ...Object.fromEntries(COUNTS.filter((key) => one.counts[key]).map((key) => [key.replaceAll("_", " "), one.counts[key]])),
    });
    list(settings, one.settings);
    show(redrive);
    if (groups.contains(document.activeElement) || consumers.contains(document.activeElement)) return; // do not take the focus away
    groups.replaceChildren(table("Groups", [
      { title: "Group", value: (group) => group.name }, { title: "Unsettled", value: (group) => group.unsettled, number: true },
      { title: "Unacknowledged", value: (group) => group.unacknowledged, number: true }, { title: "Delayed", value: (group) => group.delayed, number: true },
      { title: "Oldest", value: (group) => group.oldest ?? -1, number: true, show: (group) => age(group.oldest) },
      { title: "Consumers", value: (group) => group.consumer_count, number: true }, { title: "Stalled", value: (group) => group.stalled, number: true },
      ...(may("operator") ? [{ title: "Deliveries", show: (group) => button(group.paused ? "Resume" : "Pause", () => pause(group.paused, group.name),
        { class: "small", disabled: one.paused, "aria-label": `${group.paused ? "Resume" : "Pause"} ${cut(group.name, 60)}` }) }] : []),
      ...(may("admin") && one.type === "stream" ? [{ title: "Position", show: (group) => button("Move", () => seek(group.name), { class: "small", "aria-label": `Move ${cut(group.name, 60)}` }) }] : []),
    ], one.groups));
    consumers.replaceChildren(table("Consumers", [
      { title: "Client", value: (client) => client.client_id, show: (client) => node("a", { href: at`#/client/${client.client_id}` }, cut(client.client_id)) },
      { title: "Group", value: (client) => client.group }, { title: "Filter", value: (client) => client.filter },
      { title: "Unacknowledged", value: (client) => client.unacknowledged, number: true }, { title: "Timed out", value: (client) => client.timed_out, number: true },
      { title: "State", value: (client) => client.stalled, show: (client) => client.stalled ? node("span", { class: "badge warn" }, "stalled") : client.active ? "–" : "waiting" },
    ], one.groups.flatMap((group) => group.consumers.map((client) => ({ ...client, group: group.name }))), { empty: "No consumer is online." }));
  }

  function list(place, values) {
    place.replaceChildren(node("dl", {}, Object.entries(values).map(([key, value]) => node("div", {}, node("dt", {}, key), node("dd", {}, short(value))))));
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

  async function act(what, text, work, options = {}) {
    const given = await confirmed(what, text, options);
    if (given === null) return;
    await attempt(async () => {
      await work(given);
      say(`Done: ${what}.`);
      await update();
      await peek("", null);
    });
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
        { title: "Offset", value: (one) => one.offset, number: true }, { title: "State", value: (one) => one.state },
        { title: "Deliveries", value: (one) => one.deliveries, number: true }, { title: "Client", value: (one) => one.client_id },
        ...(dead ? [{ title: "From", value: (one) => deadLetter(one, "id") }, { title: "Reason", value: reason }] : []),
        { title: "Topic", value: (one) => one.topic }, { title: "Age", value: (one) => one.received_at, show: (one) => duration(Date.now() / 1000 - one.received_at) },
        { title: "Bytes", value: (one) => one.bytes, number: true }, { title: "Payload", show: (one) => cut(payload(one.payload)) },
      ], page.items, { empty: "Every message is settled." }),
      node("div", { class: "row pager" }, button("First page", () => peek(group, null), { disabled: after === null }), button("Next", () => peek(group, page.after), { disabled: page.after === null }), button("Refresh", () => peek(group, after))));
    });
  }
}
