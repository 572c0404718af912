// Search and list clients.
import { choice, field, form, node } from "../dom.js";
import { cut, short, time, VERSIONS } from "../format.js";
import { pages, table } from "../table.js";

export const state = (online) => node("span", { class: online ? "badge on" : "badge off" }, online ? "online" : "offline");
export const link = (id) => node("a", { href: `#/client/${encodeURIComponent(id)}`, title: id.length > 60 ? cut(id, 1000) : null }, cut(id, 60));

export default function clients(context, main) {
  let given = { client_id: "", username: "", address: "", connected: "", ...context.query };
  const listing = pages(context, (cursor, limit) => context.ask("GET", "/clients", { query: { ...given, cursor, limit } }), (items) =>
    table("Clients", [
      { title: "Client id", value: (one) => one.client_id, show: (one) => link(one.client_id) },
      { title: "State", value: (one) => one.connected, show: (one) => state(one.connected) },
      { title: "User", value: (one) => one.identity ?? one.username }, { title: "Address", value: (one) => one.address },
      { title: "Listener", value: (one) => one.listener }, { title: "MQTT", value: (one) => one.version, show: (one) => VERSIONS[one.version] ?? short(one.version) },
      { title: "Subscriptions", value: (one) => one.subscriptions, number: true }, { title: "In flight", value: (one) => one.inflight, number: true },
      { title: "Queued", value: (one) => one.queued, number: true }, { title: "Since", value: (one) => one.ended_at ?? one.connected_at, show: (one) => time(one.ended_at ?? one.connected_at) },
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
