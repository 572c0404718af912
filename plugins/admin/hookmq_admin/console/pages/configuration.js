// The configuration without secrets, its reload, and the check of another document.
import { askTagged } from "../api.js";
import { area, badge, button, confirmed, form, node, section } from "../dom.js";
import { table } from "../table.js";

const CHANGED = [{ title: "Setting", value: "path" }, { title: "Before", value: "old" }, { title: "After", value: "new" }];

const MISTAKE = [
  { title: "Line", value: "line", number: true }, { title: "Column", value: "column", number: true },
  { title: "Mistake", value: "message" }, { title: "Hint", value: "hint" },
];
const restart = (report) => (report.needs_restart.length ? section("Needs a restart", table("Changes that need a restart", CHANGED, report.needs_restart)) : "");

// The mistakes in a document, or the changes that a reload of it would make.
function verdict({ valid, mistakes, changes }) {
  const found = node("div", {}, node("p", {}, badge(valid ? "no mistake" : `mistakes: ${mistakes.length}`, valid ? "on" : "bad")));
  if (!valid) found.append(table("Mistakes", MISTAKE, mistakes));
  else if (changes) found.append(table("Changes that a reload would make", CHANGED, changes.applied, { empty: "A reload of this document would change nothing at once." }), restart(changes));
  return found;
}

export default function configuration(context, main) {
  const { attempt, say, signal } = context;
  const text = node("pre", { tabindex: "0", role: "region", "aria-label": "Configuration" }), changes = node("div", { "aria-live": "polite" }), checked = node("div", { "aria-live": "polite" });
  let tag = null;
  main.append(node("div", { class: "head" }, node("h2", {}, "Configuration"), button("Reload the file", reload, { class: "main" })),
    node("p", { class: "soft" }, "This is the configuration that the broker uses. Secrets are shown as ***. To change it, edit the file on the broker's machine, then reload it."),
    changes, text,
    section("Check a document", node("p", { class: "soft" }, "The broker checks all settings, also those of plugins, and changes nothing."),
      form([area("Configuration", "yaml", { rows: 8, required: true, maxlength: 65535, placeholder: "version: 1" })], "Check", ({ yaml }) => attempt(async () => {
        checked.replaceChildren(verdict(await context.ask("POST", "/configuration/check", { body: { yaml } })));
      }), { class: "bar" }), checked));
  attempt(update);

  async function update() {
    const [found, found_tag] = await askTagged("GET", "/configuration", { signal });
    text.textContent = found.yaml;
    tag = found_tag;
  }

  async function reload() {
    if (await confirmed("Reload the configuration", "The broker reads its file again, and applies it if it has no mistake.", { action: "Reload", danger: false }) === null) return;
    await attempt(async () => {
      try {
        const done = await context.ask("POST", "/configuration/reload", { headers: tag ? { "If-Match": tag } : {} });
        changes.replaceChildren(
          section("Applied", table("Applied changes", CHANGED, done.applied, { empty: "Nothing has changed." })), restart(done));
        say("The configuration was reloaded.");
      } catch (error) {
        if (error.status !== 412) throw error;
        say("Someone else has reloaded the configuration meanwhile. Here is the new one: check it, then try again.", true);
      }
      await update();
    });
  }
}
