// Who gets the messages of a topic, and all subscriptions.
import { field, form, node, section } from "../dom.js";
import { cut } from "../format.js";
import { pages, table } from "../table.js";
import { link, state } from "./clients.js";

const CLIENT = { title: "Client", value: "client_id", as: link };
const FILTER = { title: "Filter", value: "filter" };
const QOS = { title: "QoS", value: "qos", number: true };

export default function subscriptions(context, main) {
  const { topic = "" } = context.query;
  let asked = topic, given = { filter: "", client_id: "" };
  const receivers = pages(context, (cursor, limit) => context.ask("GET", "/subscribers", { query: { topic: asked, cursor, limit } }), (items) =>
    table(`Who gets ${cut(asked)}`, [
      CLIENT, { title: "State", value: "connected", as: state }, FILTER, QOS, { title: "Why", value: "why" },
    ], items, { empty: "Nobody: no subscription matches this topic. Check its spelling: upper case and lower case differ." }));
  const all = pages(context, (cursor, limit) => context.ask("GET", "/subscriptions", { query: { ...given, cursor, limit } }), (items) =>
    table("Subscriptions", [CLIENT, FILTER, QOS, { title: "Shared by", value: "share" }, { title: "Identifier", value: "identifier", number: true }],
      items, { empty: "No subscription matches. Clear both fields to see every subscription." }), { fill: true });
  const shared = pages(context, (cursor, limit) => context.ask("GET", "/shared-subscriptions", { query: { cursor, limit } }), (items) =>
    table("Shared subscriptions", [
      FILTER, { title: "Strategy", value: "strategy" }, { title: "Members", value: "members", number: true },
      { title: "Online", value: "online", number: true }, { title: "Queued", value: "queued", number: true },
    ], items, { empty: "There is no shared subscription. A client makes one when it subscribes to $share/NAME/FILTER." }));
  main.append(node("h2", {}, "Subscriptions"),
    section("Who gets a topic?", form([field("Topic", "topic", { type: "search", required: true, value: topic, placeholder: "sensors/7/temperature" })], "Find", (values) => {
      asked = values.topic;
      context.remember(values);
      receivers.restart();
    }, { class: "bar" }), receivers.element),
    section("All subscriptions", form([
      field("Overlaps the filter", "filter", { type: "search", placeholder: "#" }), field("Client id", "client_id", { type: "search" }),
    ], "Search", (values) => { given = values; all.restart(); }, { class: "bar" }), all.element),
    section("Shared subscriptions", shared.element));
  if (asked) receivers.show();
  all.show();
  shared.show();
}
