// Live messages: the API's fields, and `at` in epoch seconds.
import { button, node } from "./dom.js";
import { clock, cut, payload } from "./format.js";
import { LiveList } from "./live_list.js";

export class MessageList extends LiveList {
  // `choose` is called with a message that a person selects.
  constructor(signal, choose) {
    super(signal, "Live messages", "message", ["Time", "Topic", "QoS", "Payload"], (one) =>
      node("tr", {}, node("td", { class: "nowrap" }, clock(one.at, true)),
        node("td", {}, button(cut(one.topic), () => choose(one), { class: "plain" })),
        node("td", {}, String(one.qos), one.retain ? node("span", { class: "badge" }, "retained") : ""),
        node("td", { class: "payload" }, cut(payload(one.payload), 160))));
  }
}
