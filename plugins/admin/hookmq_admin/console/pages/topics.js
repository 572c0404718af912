// Topics with live and retained messages, over the API. It needs no MQTT client.
import { may, open } from "../api.js";
import { button, confirmed, field, form, node, section } from "../dom.js";
import { cut, number, payload, time } from "../format.js";
import { Tail } from "../live.js";
import { MessageList, messageView, publishForm } from "../messages.js";
import { pages, table } from "../table.js";
import { TopicTree, WINDOW } from "../topic_tree.js";

const RATE = 1000;
const RATES = `A branch shows its messages since you began to follow and, per second, the mean of the last ${WINDOW} seconds. If the tail skips messages, this rate is an estimate: it assumes that the skipped ones belong to the same topics.`;

export default function topics(context, main) {
  const { ask, attempt, say, signal } = context;
  const mayRead = may("operator");
  const detail = node("div", { class: "card detail" }, node("p", { class: "empty" }, "Select a topic to see its last message."));
  const tree = new TopicTree(signal, choose), messages = new MessageList(signal, (message) => choose({ topic: message.topic, last: message }));
  const tail = new Tail(context, (name, data) => {
    if (name === "skipped") {
      tree.skip(data.messages);
      return messages.skip(data.messages);
    }
    const message = { ...data, at: data.received_at };
    messages.add(message);
    return tree.add(message);
  }, () => tree.rest());
  let filter = context.query.filter ?? "#";
  const follow = form([field("Filter", "filter", { required: true, value: filter, placeholder: "sensors/#" })], "Follow", (given) => {
    filter = given.filter;
    context.remember(given);
    attempt(start);
  }, { class: "bar" });
  follow.append(tail.stop);
  let wanted = "#";
  const retained = pages(context, (cursor, limit) => ask("GET", "/retained", { query: { filter: wanted, cursor, limit } }), (items) => {
    for (const one of items) tree.add({ ...one, at: one.received_at });
    return table("Retained messages", [
      { title: "Topic", value: "topic", show: (one) => button(cut(one.topic), () => choose({ topic: one.topic, last: { ...one, at: one.received_at } }), { class: "plain" }) },
      { title: "Bytes", value: "bytes", number: true }, { title: "Payload", show: (one) => cut(payload(one.payload)) },
      { title: "At", value: "received_at", as: time },
    ], items, { empty: "No retained message matches. Use a wider filter, such as #, or publish a message with Retain." });
  }, { once: true });
  main.append(node("h2", {}, "Topics"),
    mayRead ? section("Live messages", follow, node("p", { class: "soft" }, "Each open tail is a subscriber. Access rules do not restrict it.")) : node("p", {}, "The role viewer may not read messages."),
    node("div", { class: "explorer" }, node("div", { class: "card" }, tree.element, mayRead ? node("p", { class: "soft" }, RATES) : null), node("div", {}, detail, mayRead ? messages.element : null)),
    section("Retained messages", form([field("Filter", "retained", { type: "search", value: "#" })], "Show", (given) => {
      wanted = given.retained || "#";
      retained.restart();
    }, { class: "bar" }), retained.element, mayRead ? button("Clear those that match", clear, { class: "danger below" }) : null),
    mayRead ? section("Publish", publishForm((given) => attempt(async () => {
      const { user_properties: pairs, ...rest } = given;
      const done = await ask("POST", "/publish", { body: { ...rest, ...(pairs && { user_properties: Object.fromEntries(pairs) }) } });
      say(`Published: ${number(done.matched)} subscriptions match.`);
    }))) : "");
  retained.show();

  function choose(branch) {
    const { topic } = branch;
    detail.replaceChildren(node("h3", { class: "id" }, cut(topic, 300)), messageView(branch.last),
      node("div", { class: "row" }, node("a", { class: "button", href: `#/subscriptions?${new URLSearchParams({ topic })}` }, "Who gets it, and why")));
  }

  async function clear() {
    if (await confirmed("Clear retained messages", `All retained messages that match ${cut(wanted)} are deleted.`, { action: "Clear" }) === null) return;
    await attempt(async () => {
      const done = await ask("DELETE", "/retained", { query: { filter: wanted } });
      say(`${number(done.cleared)} retained messages were cleared.`);
      await retained.restart();
    });
  }

  function start() {
    messages.clear();
    tree.clear();
    return tail.follow(async (mine) => {
      const { time } = await ask("GET", "/overview"); // older messages are retained ones
      const response = await open("GET", "/tail", { query: { filter, rate: RATE, retained: true }, signal: mine });
      tree.measure(time);
      return response;
    }, `Following ${cut(filter)}.`);
  }
}
