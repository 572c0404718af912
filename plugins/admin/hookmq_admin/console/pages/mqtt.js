// An MQTT client in the page, over WebSocket, with its own user name and password.
import { button, check, choice, field, form, node, section } from "../dom.js";
import { cut, short } from "../format.js";
import { MessageList, messageView, publishForm } from "../messages.js";
import { Client } from "../mqtt_client.js";
import { TopicTree } from "../topic_tree.js";

const RETRY = [1000, 2000, 5000, 10_000];
const decoder = new TextDecoder("utf-8", { fatal: true });
const encoder = new TextEncoder();
const PREVIEW = 100_000;

export default function mqtt(context, main) {
  const { say, signal } = context;
  const sign = node("span", { class: "badge off", role: "status" }, "not connected");
  const detail = node("div", { class: "card detail" }, node("p", { class: "empty" }, "Select a topic to see its last message."));
  const choose = (branch) => detail.replaceChildren(node("h3", { class: "id" }, cut(branch.topic, 300)), messageView(branch.last));
  const tree = new TopicTree(signal, choose), messages = new MessageList(signal, (message) => choose({ topic: message.topic, last: message }));
  const filters = new Map(), list = node("ul", { class: "chips", "aria-label": "Subscriptions" });
  const offer = node("datalist", { id: "sockets" }), parts = node("div");
  let client = null, wanted = null, failures = 0, timer;
  const url = field("Address", "url", { required: true, type: "url", list: "sockets", placeholder: "ws://127.0.0.1:8083/mqtt", class: "long" });
  const connecting = form([
    url, offer, field("Client id", "clientId", { value: `console-${Math.random().toString(36).slice(2, 8)}` }), field("User name", "username"),
    field("Password", "password", { type: "password" }), field("Keep alive (s)", "keepAlive", { type: "number", value: 60, min: 0, max: 65535 }),
    field("Session expiry (s)", "expiry", { type: "number", value: 0, min: 0, max: 4294967295 }), check("Clean start", "clean", { checked: true }),
  ], "Connect", (given) => { wanted = given; failures = 0; start(); }, { class: "bar", "aria-label": "Connect" });
  const leave = button("Disconnect", () => { wanted = null; client?.close(); }, { disabled: true });
  connecting.append(leave);
  parts.append(
    section("Subscriptions", form([
      field("Filter", "filter", { required: true, value: "#" }), choice("QoS", "qos", ["0", "1", "2"]),
      choice("Retained messages", "retainHandling", [["0", "send"], ["1", "only for a new subscription"], ["2", "do not send"]]), check("No local", "noLocal"),
    ], "Subscribe", ({ filter, ...options }) => act(() => subscribe(filter, { ...options, qos: Number(options.qos), retainHandling: Number(options.retainHandling) })), { class: "bar" }), list),
    node("div", { class: "explorer" }, node("div", { class: "card" }, tree.element), node("div", {}, detail, messages.element)),
    section("Publish", publishForm((given) => act(() => publish(given)))));
  main.append(node("div", { class: "head" }, node("h2", {}, "MQTT client"), sign),
    node("p", { class: "soft" }, "This client connects to a WebSocket listener with its own user name and password, like any other client. It disconnects when you leave this page."),
    connecting, parts);
  signal.addEventListener("abort", () => { wanted = null; clearTimeout(timer); client?.close(); });
  context.attempt(addresses);

  async function addresses() {
    const { items } = await context.ask("GET", "/listeners");
    const found = items.filter((one) => ["ws", "wss"].includes(one.type)).map((one) => `${one.type}://${location.hostname}:${one.address.split(":").at(-1)}/mqtt`);
    offer.replaceChildren(...found.map((value) => node("option", { value })));
    const input = url.querySelector("input");
    if (found.length && !input.value) input.value = found.find((one) => one.startsWith(location.protocol === "https:" ? "wss" : "ws:")) ?? found[0];
    if (!found.length) say("The broker has no WebSocket listener: add one of type ws or wss to the configuration.", true);
  }

  function mark(text, online) {
    sign.textContent = text;
    sign.className = online ? "badge on" : "badge off";
    leave.disabled = !online && wanted === null;
  }

  function start() {
    clearTimeout(timer);
    const given = wanted, old = client;
    client = null;
    old?.close();
    mark("connecting", false);
    const options = { ...given, keepAlive: Number(given.keepAlive), properties: { session_expiry_interval: Number(given.expiry) } };
    let mine;
    try {
      mine = client = new Client(given.url, options, {
        opened: (packet) => { if (mine === client) opened(packet); },
        message: (packet) => { if (mine === client) received(packet); },
        closed: (text) => { if (mine === client) closed(text); },
      });
    } catch (error) {
      wanted = null;
      mark("not connected", false);
      say(`This address cannot be used: ${error.message}`, true);
    }
  }

  function opened(packet) {
    failures = 0;
    mark(packet.sessionPresent ? "connected, session resumed" : "connected", true);
    const id = packet.properties.assigned_client_identifier;
    say(id ? `Connected as ${cut(id)}.` : "Connected.");
    for (const [filter, options] of filters) act(() => subscribe(filter, options));
  }

  function closed(text) {
    client = null;
    if (wanted === null || signal.aborted) {
      mark("not connected", false);
      if (!signal.aborted) say("Disconnected.");
      return;
    }
    const delay = RETRY[Math.min(failures, RETRY.length - 1)];
    failures += 1;
    mark("not connected, trying again", false);
    say(`Not connected: ${cut(text, 300)}. Trying again in ${delay / 1000} s.`, true);
    timer = setTimeout(() => { if (wanted) start(); }, delay);
  }

  function received(packet) {
    const message = {
      at: Date.now() / 1000, topic: packet.topic, qos: packet.qos, retain: packet.retain, bytes: packet.payload.length,
      payload: preview(packet.payload), properties: readable(packet.properties),
    };
    messages.add(message);
    tree.add(message);
  }

  async function act(work) {
    try {
      await work();
    } catch (error) {
      if (!signal.aborted) say(`Refused: ${cut(error.message, 300)}.`, true);
    }
  }

  function live() {
    if (!client?.open) throw new Error("the client is not connected");
    return client;
  }

  async function subscribe(filter, options) {
    const granted = await live().subscribe(filter, options);
    filters.set(filter, options);
    say(`Subscribed to ${cut(filter)} at QoS ${granted}.`);
    show();
  }

  async function unsubscribe(filter) {
    await live().unsubscribe(filter);
    filters.delete(filter);
    say(`Unsubscribed from ${cut(filter)}.`);
    show();
  }

  function show() {
    list.replaceChildren(...[...filters].map(([filter, { qos }]) => node("li", {}, `${cut(filter, 80)} (QoS ${qos}) `,
      button("×", () => act(() => unsubscribe(filter)), { class: "plain", "aria-label": `Unsubscribe from ${cut(filter, 80)}` }))));
  }

  async function publish({ topic, payload, qos, retain, user_properties, ...properties }) {
    const given = { ...properties, ...(user_properties && { user_property: user_properties }) };
    const code = await live().publish({ topic, payload: encoder.encode(payload), qos, retain, properties: given });
    say(qos === 0 ? "Sent at QoS 0." : code === 0x10 ? "Published; nobody subscribes to this topic." : `Published, and acknowledged at QoS ${qos}.`);
  }
}

function preview(data) {
  const part = data.subarray(0, PREVIEW), truncated = data.length > PREVIEW;
  try {
    return { text: decoder.decode(part), truncated };
  } catch {
    return { base64: btoa(String.fromCharCode(...part.subarray(0, 512))), truncated: data.length > 512 };
  }
}

function readable(properties) {
  return Object.fromEntries(Object.entries(properties).map(([name, value]) =>
    [name === "user_property" ? "user_properties" : name, value instanceof Uint8Array ? `${value.length} bytes` : name === "subscription_identifier" ? short(value) : value]));
}
