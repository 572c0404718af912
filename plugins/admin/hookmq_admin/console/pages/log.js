// The level of the broker's log, and its events live.
import { may, open } from "../api.js";
import { badge, choice, field, form, node, section } from "../dom.js";
import { clock, cut } from "../format.js";
import { LiveList, Tail } from "../live.js";

const LEVELS = ["debug", "info", "warning", "error"];
const BADGES = { warning: "warn", error: "bad" };

export default function log(context, main) {
  const { ask, attempt, say } = context;
  const now = node("p", { "aria-live": "polite" }), setting = node("div");
  const lines = new LiveList(context.signal, "Log", "event", ["Time", "Level", "Event", "Fields"], (one) => node("tr", {},
    node("td", { class: "nowrap" }, clock(one.time, true)), node("td", {}, badge(one.level, BADGES[one.level])),
    node("td", {}, cut(one.event)), node("td", { class: "payload" }, fields(one.fields))));
  const tail = new Tail(context, (name, data) => {
    if (name === "log") lines.add(data);
    else if (name === "skipped") lines.skip(data.events);
  });
  const follow = form([
    choice("Lowest level", "level", LEVELS), field("Event begins with", "event", { placeholder: "client.", maxlength: 200 }),
    choice("Begin with", "recent", [["0", "new events"], ["100", "the last 100 events"], ["500", "the last 500 events"]], { value: "100" }),
  ], "Follow", (query) => attempt(() => {
    lines.clear();
    return tail.follow((signal) => open("GET", "/log/tail", { query, signal }), "Following the log.");
  }), { class: "bar" });
  follow.append(tail.stop);
  main.append(node("h2", {}, "Log"), section("Level", now, setting),
    section("Live log", follow, node("p", { class: "soft" }, "Only events of the level in force and above are logged. Secrets and payloads are not in the log."), lines.element));
  attempt(async () => show(await ask("GET", "/log/level")));

  function show({ level, configured }) {
    now.textContent = `The broker logs events of the level ${level} and above. ${level === configured ? "The configuration says the same." : `The configuration says ${configured}: a reload or a restart returns to it.`}`;
    if (!may("admin")) return;
    setting.replaceChildren(form([choice("Level", "level", LEVELS, { value: level })], "Set the level", (body) => attempt(async () => {
      show(await ask("PUT", "/log/level", { body }));
      say(`The level is ${body.level}.`);
    }), { class: "bar", "aria-label": "Level of the log" }),
    node("p", { class: "soft" }, "Each message costs time on the level debug, so return to info afterwards."));
  }
}

function fields(found) {
  return cut(Object.entries(found).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join("  "), 500);
}
