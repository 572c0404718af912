// Clients, and one client: session, subscriptions, queue, messages in flight, and actions.
import { at, may } from "../api.js";
import { badge, button, check, choice, field, form, node, pairs, section } from "../dom.js";
import { bytes, cut, duration, number, payload, short, time, VERSIONS } from "../format.js";
import { pages, table } from "../table.js";

export const state = (online) => badge(online ? "online" : "offline", online ? "on" : "off");
export const link = (id) => node("a", { href: `#/client/${encodeURIComponent(id)}`, title: id.length > 60 ? cut(id, 1000) : null }, cut(id, 60));

export default function clients(context, main) {
  let given = { client_id: "", username: "", address: "", connected: "", ...context.query };
  const listing = pages(context, (cursor, limit) => context.ask("GET", "/clients", { query: { ...given, cursor, limit } }), (items) =>
    table("Clients", [
      { title: "Client id", value: "client_id", as: link },
      { title: "State", value: "connected", as: state },
      { title: "User", value: (one) => one.identity ?? one.username }, { title: "Address", value: "address" },
      { title: "Listener", value: "listener" }, { title: "MQTT", value: "version", show: (one) => VERSIONS[one.version] ?? short(one.version) },
      { title: "Subscriptions", value: "subscriptions", number: true }, { title: "In flight", value: "inflight", number: true },
      { title: "Queued", value: "queued", number: true }, { title: "Since", value: (one) => one.ended_at ?? one.connected_at, show: (one) => time(one.ended_at ?? one.connected_at) },
    ], items, { empty: Object.values(given).some(Boolean) ? "No client matches. Search for something shorter, or clear all fields to see every client."
      : "No client has connected yet. The overview lists the listeners, with the addresses to which clients connect." }), { fill: true });
  const search = form([
    field("Client id begins with", "client_id", { type: "search", value: given.client_id }),
    field("User name begins with", "username", { type: "search", value: given.username }),
    field("Address begins with", "address", { type: "search", value: given.address }),
    choice("State", "connected", [["", "all"], ["true", "online"], ["false", "offline"]], { value: given.connected }),
  ], "Search", (values) => {
    given = values;
    context.remember(given);
    listing.restart();
  }, { class: "bar", role: "search" });
  search.addEventListener("change", (event) => { if (event.target.name === "connected") search.requestSubmit(); });
  main.append(node("h2", {}, "Clients"), search, listing.element,
    node("p", { class: "soft" }, "The broker lists clients in the order in which their sessions began. A column heading sorts the rows of this page."));
  listing.show();
}

export function client(context, main) {
  const id = context.part, { act, ask, attempt, say } = context;
  const title = node("h2", { class: "id" }, cut(id, 200)), status = node("span"), figures = node("div", { class: "facts" });
  const mayChange = may("operator");
  const message = [
    { title: "Topic", value: "topic" }, { title: "QoS", value: "qos", number: true },
    { title: "Bytes", value: "bytes", number: true }, { title: "From", value: "sender" },
    { title: "Payload", show: (one) => cut(payload(one.payload)) },
  ];
  const subs = pages(context, (cursor, limit) => ask("GET", at`/clients/${id}/subscriptions`, { query: { cursor, limit } }), (items) =>
    table("Subscriptions", [
      { title: "Filter", value: "filter" }, { title: "QoS", value: "qos", number: true },
      { title: "Options", show: (one) => [one.no_local && "no local", one.retain_as_published && "retain as published"].filter(Boolean).join(", ") || "–" },
      ...(mayChange ? [{ title: "", show: (one) => button("Remove", () => act(`Remove the subscription ${cut(one.filter, 60)}`, "The client receives no more messages of this filter.", () =>
        ask("DELETE", at`/clients/${id}/subscriptions`, { query: { filter: one.filter } })), { class: "danger small", "aria-label": `Remove the subscription ${cut(one.filter, 60)}` }) }] : []),
    ], items, { empty: mayChange ? "The client has no subscription, so it gets no messages. You can add one above." : "The client has no subscription, so it gets no messages." }));
  const queue = pages(context, (cursor, limit) => ask("GET", at`/clients/${id}/queue`, { query: { cursor, limit } }), (items) =>
    table("Queue", message, items, { empty: "No message waits for this client. Messages wait while it is offline, or while too many are in flight." }), { limit: 25 });
  const inflight = pages(context, (cursor, limit) => ask("GET", at`/clients/${id}/inflight`, { query: { cursor, limit } }), (items) =>
    table("Messages in flight", [
      { title: "Packet id", value: "packet_id", number: true }, { title: "Topic", value: (one) => one.message?.topic },
      { title: "QoS", value: "qos", number: true }, { title: "State", show: (one) => (one.released ? "waits for PUBCOMP" : "waits for PUBACK or PUBREC") },
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
      status.replaceChildren(badge("no session", "off"));
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
    figures.replaceChildren(pairs(facts));
    return true;
  }

  context.refresh = async () => {
    if (await update()) await lists();
  };

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
      button("Refresh", () => attempt(context.refresh)));
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
