// The cluster as this node sees it: its nodes, and which of them owns which lane. An operator moves lanes and drains the node.
import { at, may, Refused } from "../api.js";
import { badge, button, choice, field, node, pairs } from "../dom.js";
import { bytes, cut, duration } from "../format.js";
import { table } from "../table.js";

const EVERY = 2000;
const KINDS = { ready: "on", isolated: "bad" };
const known = (value, as) => value === null ? "" : as(value);

export default function cluster(context, main) {
  const { act, ask } = context, found = node("div");
  main.append(node("h2", {}, "Cluster"), found);
  context.refresh = async () => found.replaceChildren(...await draw());
  context.redraw(found, draw, EVERY);

  async function draw() {
    let one = null;
    try {
      one = await ask("GET", "/cluster");
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 409) throw error;
      return [node("p", { class: "soft" }, "This broker is not in a cluster.")];
    }
    const owned = (name) => one.lanes.filter(({ owner }) => owner === name).length;
    const others = one.members.map((member) => member.node).filter((name) => name !== one.node);
    return [
      node("div", { class: "facts" }, pairs({ Cluster: one.name, "This node": one.node,
        "Lease renewed": known(one.lease_age, (age) => `${duration(age)} ago, of ${duration(one.lease)}`) }), badge(one.state, KINDS[one.state] ?? "warn")),
      one.problem ? node("p", { class: "bad" }, cut(one.problem, 1000)) : "", may("admin") ? service(one) : "",
      table("Nodes", [
        { title: "Node", value: "node" }, { title: "Address", value: "address" },
        { title: "Lanes", value: (member) => owned(member.node), number: true },
      ], one.members),
      table("Lanes", [
        { title: "Lane", value: "name" }, { title: "Owner", value: "owner" },
        { title: "State", value: "live", show: ({ live }) => live ? badge("open", "on") : badge("closed", "bad") },
        { title: "Sessions", value: "sessions", number: true, as: (count) => known(count, String) },
        { title: "Size", value: "bytes", number: true, as: (size) => known(size, bytes) },
        ...(may("admin") && others.length ? [{ title: "Change", show: (lane) => lane.owner === one.node && lane.name !== one.node ? move(lane, others) : "" }] : []),
      ], one.lanes),
    ];
  }

  function service(one) {
    const path = at`/cluster/nodes/${one.node}`;
    return node("div", { class: "row actions" }, one.state === "drained"
      ? button("Put back", () => act("Put the node back", "It takes its own lane back, with the sessions.", () => ask("POST", `${path}/undrain`), { action: "Put back", danger: false }))
      : one.state === "ready" && button("Drain", () => act("Drain the node", "Its clients and lanes move to other nodes.", ({ seconds }) => ask("POST", `${path}/drain`, { body: { seconds: Number(seconds) } }),
        { fields: [field("Seconds for clients without a durable session", "seconds", { type: "number", min: 0, max: 3600, value: 10 })], action: "Drain" })));
  }

  function move({ name }, others) {
    const what = `Move the lane ${cut(name, 60)}`;
    return button("Move", () => act(what, "Its clients are disconnected, and connect again.", ({ to }) => ask("POST", at`/cluster/lanes/${name}/move`, { body: { node: to } }),
      { fields: [choice("To", "to", others)], action: "Move" }), { class: "small", "aria-label": what });
  }
}
