// May a user or client publish to or subscribe to a topic, and why?
import { badge, choice, field, form, node } from "../dom.js";
import { cut, short } from "../format.js";
import { table } from "../table.js";

export default function access(context, main) {
  const found = node("div", { "aria-live": "polite" });
  main.append(node("h2", {}, "Access"),
    node("p", { class: "soft" }, "Ask each plugin whether it allows an action, without taking it. Give a user name, the id of a client, or both."),
    form([
      field("User name", "user"), field("Client id", "client_id"), choice("Action", "action", ["publish", "subscribe"]),
      field("Topic or filter", "topic", { required: true }), choice("QoS", "qos", ["0", "1", "2"]),
    ], "Test", ({ qos, ...given }) => context.attempt(async () => {
      const asked = Object.entries(given).filter(([, value]) => value !== "");
      show(await context.ask("POST", "/access", { body: { ...Object.fromEntries(asked), qos: Number(qos) } }), given);
    }), { class: "bar" }), found);

  function show(answer, { action, topic }) {
    const rule = answer.rule ? `, rule ${cut(answer.rule)}` : "";
    found.replaceChildren(
      node("div", { class: "card" }, node("div", { class: "head" },
        badge(answer.allowed ? "allowed" : "refused", answer.allowed ? "on" : "bad"), node("span", {}, `${action} ${cut(topic)}`)),
      node("p", {}, `${cut(answer.why, 300)} (${answer.plugin ? `plugin ${cut(answer.plugin)}` : "default"}${rule})`)),
      table("Decisions", [
        { title: "Plugin", value: (one) => one.plugin || "default" }, { title: "Verdict", value: "verdict" },
        { title: "Rule", value: "rule" }, { title: "Reason", value: "reason" }, { title: "At most QoS", show: (one) => short(one.max_qos) },
      ], answer.plugins, { empty: "No plugin decides: the default applies." }));
  }
}
