// Tokens of the API.
import { at, askTagged } from "../api.js";
import { button, choice, confirmed, field, form, node, section, shown } from "../dom.js";
import { time } from "../format.js";
import { table } from "../table.js";

const EXPIRY = [["86400", "in 1 day"], ["2592000", "in 30 days"], ["7776000", "in 90 days"], ["31536000", "in a year"], ["", "never"]];

export default function tokens(context, main) {
  const { ask, attempt, say, signal } = context;
  const found = node("div");
  let tag = null;
  main.append(node("h2", {}, "Tokens"), found, section("New token", form([
    field("Name", "name", { required: true, maxlength: 64 }), choice("Role", "role", ["viewer", "operator", "admin"]),
    choice("Expires", "expires_in", EXPIRY, { value: "7776000" }), field("Publishes as", "identity", { placeholder: "admin:NAME", maxlength: 256 }),
  ], "Create", ({ expires_in, ...rest }, sent) => attempt(async () => {
    const body = { ...rest, ...(expires_in ? { expires_in: Number(expires_in) } : {}) };
    const made = await changed(() => ask("POST", "/tokens", { body, headers: match() }));
    if (!made) return;
    sent.reset();
    shown(`Token ${made.name}`, node("p", {}, "Copy it now. The broker keeps only a hash, and cannot show it again."),
      node("input", { readonly: true, value: made.token, "aria-label": "The new token", class: "secret", onfocus: (event) => event.target.select() }));
  }), { class: "bar" })));
  attempt(update);

  const match = () => (tag ? { "If-Match": tag } : {});

  async function changed(work) {
    try {
      return await work();
    } catch (error) {
      if (error.status !== 412) throw error;
      say("Someone else has changed the tokens meanwhile. Here is the new list: check it, then try again.", true);
      return null;
    } finally {
      await update();
    }
  }

  async function update() {
    const [{ items }, found_tag] = await askTagged("GET", "/tokens", { signal });
    tag = found_tag;
    found.replaceChildren(table("Tokens", [
      { title: "Name", value: "name" }, { title: "Role", value: "role" }, { title: "Publishes as", value: "identity" },
      { title: "Created", value: "created_at", as: time }, { title: "By", value: "created_by" },
      { title: "Expires", value: "expires_at", show: (one) => (one.expires_at === null ? "never" : time(one.expires_at)) },
      { title: "", show: (one) => button("Revoke", () => revoke(one), { class: "danger small", "aria-label": `Revoke ${one.name}` }) },
    ], items));
  }

  async function revoke(one) {
    if (await confirmed(`Revoke ${one.name}`, "Requests with this token are refused at once.", { action: "Revoke" }) === null) return;
    await attempt(async () => {
      const done = await changed(() => ask("DELETE", at`/tokens/${one.id}`, { headers: match() }));
      if (done) say(`The token ${one.name} is revoked.`);
    });
  }
}
