// Users and groups of the plugin accounts: lists, new ones, export and import. One user or group, and its rules.
import { askTagged, at, may, Refused } from "../api.js";
import { area, badge, button, check, choice, confirmed, field, form, node, pairs, section } from "../dom.js";
import { cut, number, short, time } from "../format.js";
import { pages, table } from "../table.js";

const link = (kind, name) => node("a", { href: `#/${kind}/${encodeURIComponent(name)}` }, cut(name, 60));
const RULES = { title: "Rules", value: (one) => one.rules.length, number: true };
const NOTE = { title: "Note", value: "note" };
const CHANGED = { title: "Changed", value: "changed_at", as: time };
const name = (kind) => ({ title: "Name", value: "name", show: (one) => link(kind, one.name) });

export const enabled = (one) => badge(one.enabled ? "enabled" : "disabled", one.enabled ? "on" : "bad");

export default function accounts(context, main) {
  const { ask, attempt, say } = context, mayChange = may("admin");
  let given = { search: "", group: "", enabled: "", ...context.query }, wanted = "";
  const users = pages(context, (cursor, limit) => ask("GET", "/users", { query: { ...given, cursor, limit } }), (items) =>
    table("Users", [
      name("user"), { title: "State", value: "enabled", show: enabled }, { title: "Password", value: "has_password" },
      { title: "Groups", value: "groups" }, RULES, NOTE, CHANGED,
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

const ACTIONS = ["publish", "subscribe", "deliver", "will", "all"];
export const user = (context, main) => account("user", context, main);
export const group = (context, main) => account("group", context, main);

function account(kind, context, main) {
  const { ask, attempt, say } = context, name = context.part, isUser = kind === "user", mayChange = may("admin");
  const path = isUser ? at`/users/${name}` : at`/groups/${name}`;
  const state = node("span"), parts = node("div"), offer = node("datalist", { id: "groups" });
  let one = null, tag = null;
  main.append(node("p", {}, node("a", { href: "#/accounts" }, "All users and groups")),
    node("div", { class: "head" }, node("h2", { class: "id" }, cut(name, 200)), state), parts, offer);
  attempt(update);
  if (isUser && mayChange) {
    attempt(async () => {
      const { items } = await ask("GET", "/groups", { query: { limit: 500 } });
      offer.replaceChildren(...items.map((found) => node("option", { value: found.name })));
    });
  }

  async function update() {
    try {
      [one, tag] = await askTagged("GET", path, { signal: context.signal });
    } catch (error) {
      if (error.status !== 404) throw error;
      state.replaceChildren(badge(`no such ${kind}`, "off"));
      return parts.replaceChildren();
    }
    state.replaceChildren(isUser ? enabled(one) : "");
    const facts = { ...(isUser && { Password: one.has_password ? "set" : "none" }), Note: one.note, Created: time(one.created_at), Changed: time(one.changed_at) };
    return parts.replaceChildren(mayChange ? actions() : "",
      node("div", { class: "facts" }, pairs(facts)),
      isUser ? memberships() : node("p", {}, node("a", { href: `#/accounts?${new URLSearchParams({ group: name })}` }, "Users in this group")), rules());
  }

  // Make a change, unless someone else has made one since this page was loaded.
  function change(what, method, below, body) {
    return attempt(async () => {
      try {
        await ask(method, path + below, { body, headers: below === "/password" || !tag ? {} : { "If-Match": tag } });
        say(`Done: ${what}.`);
      } catch (error) {
        if (error.status !== 412) throw error;
        say(`Someone else has changed this ${kind} meanwhile. Here is the new state: check it, then try again.`, true);
      }
      await update();
    });
  }

  function actions() {
    const turn = one.enabled ? "Disable" : "Enable";
    return node("div", { class: "row actions" },
      isUser ? button(turn, async () => {
        const what = one.enabled ? "It is disconnected, and refused until you enable it again." : "It may connect again.";
        if (await confirmed(`${turn} the user`, what, { danger: one.enabled }) !== null) await change(`${turn} the user`, "PATCH", "", { enabled: !one.enabled });
      }) : null,
      isUser ? button("Set the password", password) : null,
      button("Change the note", async () => {
        const given = await confirmed("Change the note", "The note is for people only.", { fields: [field("Note", "note", { value: one.note, maxlength: 256 })], danger: false });
        if (given !== null) await change("Change the note", "PATCH", "", given);
      }),
      button(`Delete the ${kind}`, async () => {
        const what = isUser ? "Its clients are disconnected. Its sessions stay until they expire." : "Its users lose the rights that its rules give them.";
        if (await confirmed(`Delete the ${kind}`, what) !== null) await change(`Delete the ${kind}`, "DELETE", "");
      }, { class: "danger" }));
  }

  async function password() {
    const given = await confirmed("Set the password", "Its clients are disconnected, and need the new password.", { fields: ["New password", "The same again"].map((title, index) =>
      field(title, `password${index}`, { type: "password", autocomplete: "new-password", required: true })) });
    if (given === null) return;
    if (given.password0 !== given.password1) say("The two passwords differ: nothing has changed.", true);
    else await change("Set the password", "PUT", "/password", { password: given.password0 });
  }

  function memberships() {
    const without = (left) => change(`Remove the group ${cut(left, 60)}`, "PATCH", "", { groups: one.groups.filter((found) => found !== left) });
    const list = node("ul", { class: "chips", "aria-label": "Groups" }, one.groups.map((found) => node("li", {}, node("a", { href: `#/group/${encodeURIComponent(found)}` }, cut(found, 60)), " ",
      mayChange ? button("×", () => without(found), { class: "plain", "aria-label": `Remove the group ${cut(found, 60)}` }) : null)));
    return section("Groups", one.groups.length ? list : node("p", { class: "empty" }, "The user is in no group, so only its own rules apply."),
      mayChange ? form([field("Group", "group", { required: true, list: "groups" })], "Add to the group", (given) =>
        change(`Add to the group ${cut(given.group, 60)}`, "PATCH", "", { groups: [...one.groups, given.group] }), { class: "bar below" }) : null);
  }

  function rules() {
    const last = one.rules.length - 1, place = (rule) => one.rules.indexOf(rule);
    const move = (rule, step) => {
      const found = [...one.rules], from = place(rule);
      [found[from], found[from + step]] = [found[from + step], found[from]];
      return change(`Move the rule ${rule.id}`, "PATCH", "", { rules: found });
    };
    const small = (text, rule, run, fields) => button(text, run, { class: "small", ...fields, "aria-label": `${text} rule ${rule.id}` });
    return section("Rules", table("Rules", [
      { title: "Number", show: (rule) => String(rule.id), number: true },
      { title: "Verdict", show: (rule) => badge(rule.allow ? "allow" : "deny", rule.allow ? "on" : "bad") },
      { title: "Actions", show: (rule) => (rule.allow ?? rule.deny).join(", ") }, { title: "Topics", show: (rule) => cut(rule.topic.join(", "), 300) },
      { title: "Highest QoS", show: (rule) => short(rule.qos) }, { title: "Retained", show: (rule) => short(rule.retain) },
      ...(mayChange ? [{ title: "", show: (rule) => node("span", { class: "nowrap" },
        small("Up", rule, () => move(rule, -1), { disabled: place(rule) === 0 }), " ", small("Down", rule, () => move(rule, 1), { disabled: place(rule) === last }), " ",
        small("Delete", rule, () => change(`Delete the rule ${rule.id}`, "DELETE", at`/rules/${rule.id}`), { class: "danger small" })) }] : []),
    ], one.rules, { empty: `No rule: ${isUser ? "only the rules of its groups apply" : "the group gives no rights"}. Add one below.` }),
    node("p", { class: "soft" }, isUser ? "The first rule that applies decides. The rules of the groups follow, in the order of the groups. If no rule applies, the action is denied, unless the plugin is configured otherwise."
      : "The first rule that applies decides. The own rules of a user come before those of its groups."), mayChange ? adding() : "");
  }

  function adding() {
    return form([
      choice("Verdict", "verdict", ["allow", "deny"]), node("div", { class: "row", role: "group", "aria-label": "Actions" }, ACTIONS.map((action) => check(action, action))),
      choice("Highest QoS", "qos", [["", "any"], "0", "1", "2"]), choice("Retained", "retain", [["", "any"], ["true", "only with RETAIN"], ["false", "only without RETAIN"]]),
      choice("Place", "position", [["", "at the end"], ["0", "before all others"]]),
      area("Topic filters, one per line; %u is the user name, %c the client id", "topic", { required: true, placeholder: "light/#" }),
    ], "Add the rule", (given) => {
      const actions = ACTIONS.filter((action) => given[action]);
      if (!actions.length) return say("Select at least one action.", true);
      return change("Add the rule", "POST", "/rules", {
        [given.verdict]: actions, topic: given.topic.split("\n").map((line) => line.trim()).filter(Boolean), ...(given.qos && { qos: Number(given.qos) }),
        ...(given.retain && { retain: given.retain === "true" }), ...(given.position && { position: Number(given.position) }),
      });
    }, { class: "bar below", "aria-label": "New rule" });
  }
}
