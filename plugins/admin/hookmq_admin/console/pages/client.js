// One client: session, subscriptions, queue, messages in flight, and actions.
import { at, may } from "../api.js";
import { confirmed } from "../dialog.js";
import { button, check, choice, field, form, node, section } from "../dom.js";
import { bytes, cut, duration, number, payload, short, time, VERSIONS } from "../format.js";
import { pages, table } from "../table.js";
import { state } from "./clients.js";

export default function client(context, main) {
  const id = context.part, { ask, attempt, say } = context;
  const title = node("h2", { class: "id" }, cut(id, 200)), status = node("span"), figures = node("div", { class: "facts" });
  const mayChange = may("operator");
  const message = [
    { title: "Topic", value: (one) => one.topic }, { title: "QoS", value: (one) => one.qos, number: true },
    { title: "Bytes", value: (one) => one.bytes, number: true }, { title: "From", value: (one) => one.sender },
    { title: "Payload", show: (one) => cut(payload(one.payload)) },
  ];
  const subs = pages(context, (cursor, limit) => ask("GET", at`/clients/${id}/subscriptions`, { query: { cursor, limit } }), (items) =>
    table("Subscriptions", [
      { title: "Filter", value: (one) => one.filter }, { title: "QoS", value: (one) => one.qos, number: true },
      { title: "Options", show: (one) => [one.no_local && "no local", one.retain_as_published && "retain as published"].filter(Boolean).join(", ") || "–" },
      ...(mayChange ? [{ title: "", show: (one) => button("Remove", () => act(`Remove the subscription ${cut(one.filter, 60)}`, "The client receives no more messages of this filter.", () =>
        ask("DELETE", at`/clients/${id}/subscriptions`, { query: { filter: one.filter } })), { class: "danger small", "aria-label": `Remove the subscription ${cut(one.filter, 60)}` }) }] : []),
    ], items, { empty: mayChange ? "The client has no subscription, so it gets no messages. You can add one above." : "The client has no subscription, so it gets no messages." }));
  const queue = pages(context, (cursor, limit) => ask("GET", at`/clients/${id}/queue`, { query: { cursor, limit } }), (items) =>
    table("Queue", message, items, { empty: "No message waits for this client. Messages wait while it is offline, or while too many are in flight." }), { limit: 25 });
  const inflight = pages(context, (cursor, limit) => ask("GET", at`/clients/${id}/inflight`, { query: { cursor, limit } }), (items) =>
    table("Messages in flight", [
      { title: "Packet id", value: (one) => one.packet_id, number: true }, { title: "Topic", value: (one) => one.message?.topic },
      { title: "QoS", value: (one) => one.qos, number: true }, { title: "State", show: (one) => (one.released ? "waits for PUBCOMP" : "waits for PUBACK or PUBREC") },
    ], items, { empty: "Every message is acknowledged." }), { limit: 25 });

  main.append(node("p", {}, node("a", { href: "#/clients" }, "All clients")), node("div", { class: "head" }, title, status),
    mayChange ? actions() : "", figures, subscriptions(), section("Queue", queue.element), section("In flight", inflight.element));
  const lists = () => Promise.all([subs.show(), queue.show(), inflight.show()]);
  let loaded = false;
  context.repeat(async () => {
    if (await update() && !loaded) {
      loaded = true;
      await lists();
    }
  });

  async function update() {
    let one;
    try {
      one = await ask("GET", at`/clients/${id}`);
    } catch (error) {
      if (error.status !== 404) throw error;
      status.replaceChildren(node("span", { class: "badge off" }, "no session"));
      loaded = false;
      return false;
    }
    status.replaceChildren(state(one.connected));
    const facts = {
      Identity: one.identity, "User name": one.username, Address: `${one.address}:${one.port}`, Listener: `${one.listener} (${one.transport})`,
      MQTT: VERSIONS[one.version] ?? one.version, [one.connected ? "Connected" : "Offline since"]: time(one.connected ? one.connected_at : one.ended_at),
      "Session ends": one.expiry === null ? "never" : `${duration(one.expiry)} after the connection`, "Keep alive": one.keep_alive ? duration(one.keep_alive) : "off",
      Queue: `${number(one.queued)} messages, ${bytes(one.queued_bytes)}`, "In flight": `${number(one.inflight)} of ${number(one.receive_maximum)}`,
      Will: one.will, "Credentials expire": one.credential_expires_at ? time(one.credential_expires_at) : "never", "Accepted by": one.vouched_by,
      Certificate: one.certificate, ...Object.fromEntries(Object.entries(one.claims).slice(0, 50).map(([name, value]) => [`Claim ${cut(name, 40)}`, value])),
    };
    figures.replaceChildren(node("dl", {}, Object.entries(facts).map(([name, value]) => node("div", {}, node("dt", {}, name), node("dd", {}, short(value))))));
    return true;
  }

  async function refresh() {
    if (await update()) await lists();
  }

  async function act(what, text, work, options = {}) {
    const given = await confirmed(what, text, options);
    if (given === null) return;
    await attempt(async () => {
      await work(given);
      say(`Done: ${what}.`);
      await refresh();
    });
  }

  function actions() {
    const why = () => field("Reason, for the log and the client", "reason", { maxlength: 256 });
    return node("div", { class: "row actions" },
      button("Disconnect", () => act("Disconnect the client", "It may connect again at once.", (given) =>
        ask("POST", at`/clients/${id}/disconnect`, { body: given }), { fields: [why(), check("Do not publish its will", "drop_will")] })),
      button("Ban", () => act("Ban the client id", "It is disconnected, and refused until the ban ends. This needs the plugin ratelimit.", ({ seconds, reason }) =>
        ask("POST", at`/clients/${id}/ban`, { body: { seconds: Number(seconds), reason } }), { fields: [choice("For", "seconds", [["600", "10 minutes"], ["3600", "1 hour"], ["86400", "1 day"], ["2592000", "30 days"]], { value: "3600" }), why()] })),
      button("Lift the ban", () => act("Lift the ban", "The client may connect again.", () => ask("DELETE", at`/clients/${id}/ban`), { danger: false })),
      button("Clear the queue", () => act("Clear the queue", "All messages that wait for this client are lost.", () => ask("DELETE", at`/clients/${id}/queue`)), { class: "danger" }),
      button("End the session", () => act("End the session", "Its subscriptions and all messages that wait for it are lost.", ({ reason }) =>
        ask("DELETE", at`/clients/${id}/session`, { query: { reason } }), { fields: [why()] }), { class: "danger" }),
      button("Refresh", () => attempt(refresh)));
  }

  function subscriptions() {
    const add = form([
      field("Filter", "filter", { required: true, placeholder: "sensors/+/temperature" }), choice("QoS", "qos", ["0", "1", "2"]),
      check("Only if its access rules allow it", "authorize", { checked: true }),
    ], "Subscribe", ({ qos, ...rest }) => attempt(async () => {
      await ask("POST", at`/clients/${id}/subscriptions`, { body: { ...rest, qos: Number(qos) } });
      say(`The client is now subscribed to ${cut(rest.filter)}.`);
      await subs.show();
    }), { class: "bar" });
    return section("Subscriptions", mayChange ? add : null, subs.element);
  }
}
