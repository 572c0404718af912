// Users and groups of the plugin accounts: lists, new ones, export and import.
import { may, Refused } from "../api.js";
import { confirmed } from "../dialog.js";
import { check, choice, field, form, node, section } from "../dom.js";
import { cut, number, time } from "../format.js";
import { pages, table } from "../table.js";

const link = (kind, name) => node("a", { href: `#/${kind}/${encodeURIComponent(name)}` }, cut(name, 60));
const RULES = { title: "Rules", value: (one) => one.rules.length, number: true };
const NOTE = { title: "Note", value: (one) => one.note };
const CHANGED = { title: "Changed", value: (one) => one.changed_at, show: (one) => time(one.changed_at) };
const name = (kind) => ({ title: "Name", value: (one) => one.name, show: (one) => link(kind, one.name) });

export const enabled = (one) => node("span", { class: one.enabled ? "badge on" : "badge bad" }, one.enabled ? "enabled" : "disabled");

export default function accounts(context, main) {
  const { ask, attempt, say } = context, mayChange = may("admin");
  let given = { search: "", group: "", enabled: "", ...context.query }, wanted = "";
  const users = pages(context, (cursor, limit) => ask("GET", "/users", { query: { ...given, cursor, limit } }), (items) =>
    table("Users", [
      name("user"), { title: "State", value: (one) => one.enabled, show: enabled }, { title: "Password", value: (one) => one.has_password },
      { title: "Groups", value: (one) => one.groups }, RULES, NOTE, CHANGED,
    ], items, { empty: "No user matches. Add one below, or search for something else." }));
  const groups = pages(context, (cursor, limit) => ask("GET", "/groups", { query: { search: wanted, cursor, limit } }), (items) =>
    table("Groups", [name("group"), RULES, NOTE, CHANGED], items, { empty: "No group matches. Add one below: a group gives the same rules to several users." }));
  const parts = node("div");
  main.append(node("h2", {}, "Users and groups"), parts);
  attempt(async () => {
    try {
      await ask("GET", "/groups", { query: { limit: 1 } });
    } catch (error) {
      if (error.status !== 409) throw error;
      return parts.append(missing());
    }
    parts.append(
      section("Users", form([
        field("Name contains", "search", { type: "search", value: given.search }), field("In the group", "group", { type: "search", value: given.group }),
        choice("State", "enabled", [["", "all"], ["true", "enabled"], ["false", "disabled"]], { value: given.enabled }),
      ], "Search", (values) => {
        given = values;
        context.remember(given);
        users.restart();
      }, { class: "bar", role: "search" }), users.element,
      mayChange ? form([
        field("New user", "name", { required: true, maxlength: 512 }), field("Password", "password", { type: "password", autocomplete: "new-password" }),
        field("Group", "group", { placeholder: "optional" }), field("Note", "note", { maxlength: 256 }),
      ], "Add the user", ({ group, password, ...rest }, sent) => add("/users", { ...rest, ...(password && { password }), groups: group ? [group] : [] }, sent, users), { class: "bar" }) : null),
      section("Groups", form([field("Name contains", "search", { type: "search" })], "Search groups", ({ search }) => { wanted = search; groups.restart(); }, { class: "bar" }), groups.element,
        mayChange ? form([field("New group", "name", { required: true, maxlength: 512 }), field("Note", "note", { maxlength: 256 })], "Add the group", (body, sent) => add("/groups", body, sent, groups), { class: "bar" }) : null),
      mayChange ? moving() : "");
    return Promise.all([users.show(), groups.show()]);
  });

  function add(path, body, sent, listing) {
    return attempt(async () => {
      await ask("POST", path, { body });
      sent.reset();
      say(`${cut(body.name)} was added. Select its name to give it rules.`);
      await listing.restart();
    });
  }

  function moving() {
    return section("Export and import",
      form([check("With the hashes of passwords", "hashes")], "Export", ({ hashes }) => attempt(async () => {
        const found = await ask("GET", "/accounts", { query: { hashes } });
        save("accounts.json", JSON.stringify(found, null, 1));
        say(`Exported ${number(found.users.length)} users and ${number(found.groups.length)} groups.`);
      }), { class: "bar" }),
      form([
        node("label", {}, "File of an export", node("input", { type: "file", name: "file", accept: ".json,application/json", required: true })),
        check("Delete all other users and groups", "replace"),
      ], "Check and import", ({ file, replace }) => attempt(() => load(file, replace)), { class: "bar" }),
      node("p", { class: "soft" }, "An import is applied completely or not at all. The file is checked first, and you are asked before anything changes."));
  }

  async function load(file, replace) {
    let found;
    try {
      found = JSON.parse(await file.text());
    } catch (error) {
      throw new Refused(0, `${cut(file.name)} is not a JSON document: ${cut(error.message)}`);
    }
    const { created, changed, deleted } = await ask("POST", "/accounts", { body: { ...found, replace, check: true } });
    const what = `${cut(file.name)} has no mistake. Users and groups: ${number(created)} are created, ${number(changed)} are changed, and ${number(deleted)} are deleted.`;
    if (await confirmed("Import users and groups", what, { action: "Import", danger: deleted > 0 }) === null) return;
    await ask("POST", "/accounts", { body: { ...found, replace } });
    say(`${cut(file.name)} was imported.`);
    await Promise.all([users.restart(), groups.restart()]);
  }
}

function missing() {
  return node("div", { class: "card" }, node("p", {}, "Users and groups need the plugin accounts, which is not in the configuration. Add it, then reload the configuration:"),
    node("pre", {}, "plugins:\n  - use: accounts"));
}

function save(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  node("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
