// One message in full: its payload, QoS, sender and properties.
import { node } from "./dom.js";
import { bytes, cut, payload, pretty, short, time } from "./format.js";

export function messageView(message) {
  if (!message) return node("p", { class: "empty" }, "No message of this topic has been seen.");
  const properties = Object.entries(message.properties ?? {}).flatMap(([name, value]) =>
    (Array.isArray(value) && Array.isArray(value[0]) ? value.map(([key, text]) => [`User property ${cut(key, 60)}`, text]) : [[name.replaceAll("_", " "), value]]));
  const facts = [
    ["Time", time(message.at)], ["QoS", message.qos], ["Retained", Boolean(message.retain)], ["Size", bytes(message.bytes)],
    ...(message.sender ? [["From", message.sender]] : []), ...properties,
  ];
  return node("div", {}, node("pre", { class: "message", tabindex: "0", role: "region", "aria-label": "Payload" }, pretty(payload(message.payload)).slice(0, 100_000)),
    node("dl", { class: "pairs" }, facts.map(([name, value]) => node("div", {}, node("dt", {}, name), node("dd", {}, short(value))))));
}
