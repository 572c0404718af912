// Messages: a live list of them, one in full, and a form that makes one.
import { area, badge, button, check, choice, field, form, node, pairs } from "./dom.js";
import { bytes, clock, cut, payload, pretty, time } from "./format.js";
import { LiveList } from "./live.js";

// Its items have the fields of the API, and `at` in epoch seconds.
export class MessageList extends LiveList {
  // `choose` is called with a message that a person selects.
  constructor(signal, choose) {
    super(signal, "Live messages", "message", ["Time", "Topic", "QoS", "Payload"], (one) =>
      node("tr", {}, node("td", { class: "nowrap" }, clock(one.at, true)),
        node("td", {}, button(cut(one.topic), () => choose(one), { class: "plain" })),
        node("td", {}, String(one.qos), one.retain ? badge("retained") : ""),
        node("td", { class: "payload" }, cut(payload(one.payload), 160))));
  }
}

// The payload, QoS, sender and properties.
export function messageView(message) {
  if (!message) return node("p", { class: "empty" }, "No message of this topic has been seen.");
  const properties = Object.entries(message.properties ?? {}).flatMap(([name, value]) =>
    (Array.isArray(value) && Array.isArray(value[0]) ? value.map(([key, text]) => [`User property ${cut(key, 60)}`, text]) : [[name.replaceAll("_", " "), value]]));
  const facts = [
    ["Time", time(message.at)], ["QoS", message.qos], ["Retained", Boolean(message.retain)], ["Size", bytes(message.bytes)],
    ...(message.sender ? [["From", message.sender]] : []), ...properties,
  ];
  return node("div", {}, node("pre", { class: "message", tabindex: "0", role: "region", "aria-label": "Payload" }, pretty(payload(message.payload)).slice(0, 100_000)),
    pairs(facts, { class: "pairs" }));
}

// Call `publish` with the fields that the API has.
export function publishForm(publish, topic = "") {
  return form([
    field("Topic", "topic", { required: true, value: topic }), choice("QoS", "qos", ["0", "1", "2"]), check("Retain", "retain"),
    area("Payload", "payload"),
    node("details", { class: "wide" }, node("summary", {}, "Properties"), node("div", { class: "bar" },
      field("Content type", "content_type", { placeholder: "application/json" }), field("Response topic", "response_topic"),
      field("Expires after (s)", "message_expiry_interval", { type: "number", min: 0, max: 4294967295 }),
      area("User properties, one per line: name=value", "user_properties"))),
  ], "Publish", (given) => publish(fields(given)), { class: "bar", "aria-label": "Publish" });
}

function fields({ qos, message_expiry_interval, user_properties, content_type, response_topic, ...rest }) {
  const pairs = user_properties.split("\n").filter((line) => line.trim()).map((line) => {
    const [name, ...value] = line.split("=");
    return [name.trim(), value.join("=").trim()];
  });
  return {
    ...rest, qos: Number(qos), ...(content_type && { content_type }), ...(response_topic && { response_topic }),
    ...(message_expiry_interval && { message_expiry_interval: Number(message_expiry_interval) }), ...(pairs.length && { user_properties: pairs }),
  };
}
