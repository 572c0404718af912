// The cluster as this node sees it: its nodes, and which of them owns which lane.
import { at, may, Refused } from "../api.js";
import { badge, button, choice, node, pairs } from "../dom.js";
import { bytes, cut, duration } from "../format.js";
import { table } from "../table.js";

const EVERY = 2000;
const KINDS = { ready: "on", unconfirmed: "bad" };
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

  function move({ name }, others) {
    const what = `Move the lane ${cut(name, 60)}`;
    return button("Move", () => act(what, "Its clients are disconnected, and connect again.", ({ to }) => ask("POST", at`/cluster/lanes/${name}/move`, { body: { node: to } }),
      { fields: [choice("To", "to", others)], action: "Move" }), { class: "small", "aria-label": what });
  }
}
