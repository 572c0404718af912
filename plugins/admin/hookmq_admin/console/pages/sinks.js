// All sinks and sources, and one sink: its lanes and dead letters, and what an operator can do with it.
import { at, may, Refused } from "../api.js";
import { badge, button, field, node, pairs, section } from "../dom.js";
import { bytes, cut, duration, number, payload, time } from "../format.js";
import { table } from "../table.js";
import { age, Rates } from "./queues.js";

const EVERY = 2000;
const KINDS = { active: "on", retrying: "warn", failed: "bad", disabled: "bad" };
const FULL = { block: "messages are refused", drop_oldest: "the oldest are dropped", drop_new: "new ones are dropped" };
const state = (one) => badge(one.state, KINDS[one.state]);
const stored = (one) => `${bytes(one.bytes)} of ${bytes(one.max_bytes)}`;

export default function sinks(context, main) {
  const { act, ask } = context, found = node("div"), origins = node("div"), rates = new Rates();
  main.append(node("h2", {}, "Sinks"), found, section("Sources", origins));
  context.refresh = async () => origins.replaceChildren(...await sources());
  context.redraw(origins, sources, EVERY);
  context.redraw(found, async () => {
    const { items } = await ask("GET", "/sinks");
    rates.add(items);
    return [table("Sinks", [
      { title: "Name", value: "name", show: (one) => node("a", { href: at`#/sink/${one.name}` }, cut(one.name)) },
      { title: "Driver", value: "driver" }, { title: "State", value: "state", show: (one) => node("span", {}, state(one), " ", one.full ? badge("full", "bad") : "") },
      { title: "Lag", value: "lag", number: true }, { title: "Behind", value: "lag_seconds", number: true, as: age },
      { title: "Written/s", value: (one) => rates.of(one, "written"), number: true }, { title: "Stored", value: "bytes", number: true, show: stored },
      { title: "Dead letters", value: "dead_letters", number: true }, { title: "Reason", value: (one) => one.reason || one.last_error && `until ${time(one.last_error_at)}: ${one.last_error}` },
    ], items, { empty: "There is no sink." })];
  }, EVERY);

  async function sources() {
    const { items } = await ask("GET", "/sources");
    return [table("Sources", [
      { title: "Name", value: "name" }, { title: "Driver", value: "driver" }, { title: "State", value: "state", show: state }, { title: "Publishes as", value: "identity" },
      { title: "Received", value: (one) => one.counts.received, number: true }, { title: "Refused", value: (one) => one.counts.refused, number: true },
      { title: "Dead letters", value: "dead_letters", number: true }, { title: "Reason", value: "reason" },
      ...(may("operator") ? [{ title: "Connection", show: (one) => pause(one, one.state === "paused" ? "Resume" : "Pause") }] : []),
    ], items, { empty: "There is no source." })];
  }

  function pause({ name }, what) {
    const which = `${what} the source ${cut(name, 60)}`;
    return button(what, () => act(which, what === "Pause" ? "It closes its connection until you resume it, even after a restart." : "It connects again.", () =>
      ask("POST", `${at`/sources/${name}`}/${what.toLowerCase()}`, { body: {} })), { class: "small", "aria-label": which });
  }
}

export function sink(context, main) {
  const name = context.part, { act, ask, attempt, say } = context, path = at`/sinks/${name}`, rates = new Rates();
  const mark = node("span"), why = node("p", { class: "bad" }), row = node("div", { class: "row actions" }), facts = node("div", { class: "facts" }), lanes = node("div"), letters = node("div"), sent = section("Latest deliveries");
  let stopped = null;
  main.append(node("p", {}, node("a", { href: "#/sinks" }, "All sinks")), node("div", { class: "head" }, node("h2", { class: "id" }, cut(name, 200)), mark),
    row, why, facts, section("Lanes", lanes), sent, may("operator") ? section("Dead letters", letters) : "");
  sent.hidden = true;
  context.refresh = async () => {
    await update();
    await peek(null);
  };
  context.repeat(update, EVERY);
  if (may("operator")) peek(null);

  async function update() {
    const one = await ask("GET", path), { counts } = one, batches = Math.max(1, counts.batches);
    rates.add([{ name, counts: { ...counts, end: one.end } }]);
    mark.replaceChildren(state(one));
    why.textContent = cut(one.reason, 1000);
    if (stopped !== (stopped = /paused|disabled/.test(one.state))) row.replaceChildren(...actions());
    facts.replaceChildren(pairs({
      Driver: one.driver, Topics: one.topics, Delivery: one.exactly_once ? "exactly once" : "at least once", Lag: `${number(one.lag)} messages`, Behind: age(one.lag_seconds),
      "In/s": rates.of({ name, counts: { end: one.end } }, "end"), "Written/s": rates.of(one, "written"), Stored: stored(one), "If it is full": FULL[one.on_full] ?? one.on_full,
      Cursor: one.cursor, "Next offset": one.end, Written: counts.written, "Messages per batch": counts.written / batches, "Milliseconds per batch": counts.write_seconds / batches * 1000,
      Failures: counts.failures, "Restarts of its process": counts.restarts, Dropped: counts.dropped, "Dead letters": one.dead_letters,
      "Last error": one.last_error && `${time(one.last_error_at)}: ${one.last_error}`, ...one.driver_counts,
    }));
    lanes.replaceChildren(table("Lanes", [
      { title: "Lane", show: (lane) => String(one.lanes.indexOf(lane) + 1) }, { title: "State", value: "state", show: state }, { title: "In memory", value: "waiting", number: true },
      { title: "Oldest", value: "oldest", number: true, as: age }, { title: "Reason", value: "reason" },
    ], one.lanes, { empty: "This kind of sink has no lanes." }));
    if (one.driver === "webhook" && may("operator")) await deliveries();
  }

  async function deliveries() {
    const { items } = await ask("GET", `${path}/deliveries`, { query: { limit: 25 } });
    sent.hidden = false;
    sent.replaceChildren(node("h3", {}, "Latest deliveries"), table("Latest deliveries", [
      { title: "Time", value: "at", as: time }, { title: "Event", value: "event" }, { title: "Id", value: "id" }, { title: "Attempt", value: "attempt", number: true },
      { title: "Seconds", value: "seconds", number: true }, { title: "Result", value: "result" }, { title: "Reason", value: "reason" },
    ], items));
  }

  function actions() {
    if (!may("operator")) return [];
    const what = stopped ? "Resume" : "Pause";
    return [
      button("Test the connection", test),
      button(what, () => act(`${what} the sink`, stopped ? "It writes messages again." : "It stores messages and writes none until you resume it, even after a restart.", () =>
        ask("POST", `${path}/${stopped ? "resume" : "pause"}`, { body: {} }), { danger: !stopped })),
      may("admin") ? button("Move the cursor", () => act("Move the cursor", "All messages from this position on are written again, even if the target has them: first, next, an offset, a time such as 2030-01-31T12:00:00Z, or @ and epoch seconds. The position next skips all messages that wait.", (given) =>
        ask("POST", `${path}/seek`, { body: given }), { action: "Move", fields: [field("Position", "position", { required: true, maxlength: 64 })] })) : "",
    ];
  }

  function test() {
    say("Opening the target…");
    return attempt(async () => {
      const { problems } = await ask("POST", `${path}/test`, { body: {} });
      if (problems.length) say(problems.map((one) => `${one.key && `${one.key}: `}${one.message}${one.hint && ` (${one.hint})`}`).join("; "), true);
      else say("The target is ready.");
    });
  }

  function peek(after) {
    return attempt(async () => {
      const page = await ask("GET", `${path}/dead-letters`, { query: { limit: 25, after } }), none = !page.items.length;
      letters.replaceChildren(table("Dead letters", [
        { title: "Offset", value: "offset", number: true }, { title: "Topic", value: "topic" }, { title: "Reason", value: "reason", show: (one) => cut(one.reason, 500) },
        { title: "Age", value: (one) => -one.at, show: (one) => duration(Date.now() / 1000 - one.at) }, { title: "Client", value: "client_id" }, { title: "Bytes", value: "bytes", number: true },
        { title: "Payload", show: (one) => cut(payload(one.payload)) },
      ], page.items, { empty: "The target has taken every message." }),
      node("div", { class: "row pager" }, button("First page", () => peek(null), { disabled: after === null }), button("Next", () => peek(page.after), { disabled: page.after === null }), button("Refresh", () => peek(after)),
        ...(may("admin") ? [
          button("Write them again", () => act("Write the dead letters again", "Those that the target still does not take stay.", async () => {
            const { written, failed } = await ask("POST", `${path}/dead-letters/replay`, { body: {} });
            if (failed) throw new Refused(409, `${number(written)} were written, and ${number(failed)} are dead letters again.`);
          }, { danger: false }), { disabled: none }),
          button("Delete them", () => act("Delete the dead letters", "All of them are lost, also those on other pages.", () => ask("DELETE", `${path}/dead-letters`)), { class: "danger", disabled: none }),
        ] : [])));
    });
  }
}
