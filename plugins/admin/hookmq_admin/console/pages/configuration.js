// The configuration without secrets, and its reload.
import { askTagged } from "../api.js";
import { confirmed } from "../dialog.js";
import { button, node, section } from "../dom.js";
import { table } from "../table.js";

const CHANGED = [{ title: "Setting", value: (one) => one.path }, { title: "Before", value: (one) => one.old }, { title: "After", value: (one) => one.new }];

export default function configuration(context, main) {
  const { attempt, say, signal } = context;
  const text = node("pre", { tabindex: "0", role: "region", "aria-label": "Configuration" }), changes = node("div", { "aria-live": "polite" });
  let tag = null;
  main.append(node("div", { class: "head" }, node("h2", {}, "Configuration"), button("Reload the file", reload, { class: "main" })),
    node("p", { class: "soft" }, "This is the configuration that the broker uses. Secrets are shown as ***. To change it, edit the file on the broker's machine, then reload it."),
    changes, text);
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
          section("Applied", table("Applied changes", CHANGED, done.applied, { empty: "Nothing has changed." })),
          done.needs_restart.length ? section("Needs a restart", table("Changes that need a restart", CHANGED, done.needs_restart)) : "");
        say("The configuration was reloaded.");
      } catch (error) {
        if (error.status !== 412) throw error;
        say("Someone else has reloaded the configuration meanwhile. Here is the new one: check it, then try again.", true);
      }
      await update();
    });
  }
}
