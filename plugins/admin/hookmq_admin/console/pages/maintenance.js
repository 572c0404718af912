// Drain the broker, and back up its store.
import { button, check, confirmed, field, node, section } from "../dom.js";
import { bytes, cut, duration, number, time } from "../format.js";

const EVERY = 1000;

export default function maintenance(context, main) {
  const { ask, attempt, say } = context;
  const drain = panel(), backup = panel();
  const begin = button("Drain", start, { class: "danger" }), accept = button("Accept connections again", cancel, { disabled: true }), save = button("Back up now", copy, { class: "main" });
  let most = 0; // clients when the drain began
  main.append(node("h2", {}, "Maintenance"),
    section("Drain", node("p", { class: "soft" }, "A drain refuses new connections and disconnects all clients, so that they connect to another broker. The broker continues to run, and keeps sessions and queues. /readyz answers 503 meanwhile."),
      drain.element, node("div", { class: "row" }, begin, accept)),
    section("Backup", node("p", { class: "soft" }, "A backup is a consistent copy of the store, in a new folder below backup_folder of the plugin admin. The broker continues to run."),
      backup.element, node("div", { class: "row" }, save)));
  context.repeat(update, EVERY);

  async function update() {
    showDrain(await ask("GET", "/drain"));
    try {
      showBackup(await ask("GET", "/backup"));
    } catch (error) {
      if (error.status !== 409) throw error;
      backup.show(`No backup is possible: ${error.message}.`);
      save.disabled = true;
    }
  }

  function showDrain({ draining, waiting, connections }) {
    begin.disabled = draining;
    accept.disabled = !draining;
    most = draining ? Math.max(most, waiting) : 0;
    const open = `${number(connections)} connections are open.`;
    if (!draining) drain.show(`The broker accepts connections. ${open}`);
    else if (waiting) drain.show(`Draining: ${number(waiting)} clients are still to be disconnected. ${open}`, 1 - waiting / most);
    else drain.show(`Drained: the broker refuses connections until you accept them again or restart it. ${open}`, 1);
  }

  function showBackup({ state, target, started_at, ended_at, progress, bytes: size, error }) {
    save.disabled = state === "running";
    if (state === "running") backup.show(`Copying to ${cut(target)} since ${time(started_at)}.`, progress);
    else if (state === "done") backup.show(`Done: ${cut(target)} has ${bytes(size)}. It was made at ${time(started_at)}, in ${duration(ended_at - started_at)}.`);
    else if (state === "failed") backup.show(`The backup of ${time(started_at)} to ${cut(target)} has failed: ${cut(error, 300)}.`);
    else backup.show("No backup has been made since the broker started.");
  }

  async function start() {
    const given = await confirmed("Drain the broker", "All clients are disconnected, and new connections are refused until you cancel this or restart the broker.", { action: "Drain", fields: [
      field("Over how many seconds", "seconds", { type: "number", value: 10, min: 0, max: 3600, required: true }),
      field("Server that MQTT 5.0 clients should use (optional)", "server_reference", { maxlength: 1024, placeholder: "mqtt-2.example.com:1883" }),
      check("They should always use that server", "moved"),
    ] });
    if (given === null) return;
    await attempt(async () => {
      showDrain(await ask("POST", "/drain", { body: { ...given, seconds: Number(given.seconds) } }));
      say("The drain has begun.");
    });
  }

  async function cancel() {
    if (await confirmed("Accept connections again", "Clients that are still connected stay connected.", { action: "Accept", danger: false }) === null) return;
    await attempt(async () => {
      await ask("DELETE", "/drain");
      say("The broker accepts connections again.");
      await update();
    });
  }

  function copy() {
    return attempt(async () => {
      showBackup(await ask("POST", "/backup"));
      say("The backup has begun.");
    });
  }
}

// A text, with a bar if there is progress.
function panel() {
  const text = node("p", { role: "status" }), bar = node("progress", { max: 1, "aria-label": "Progress", hidden: true });
  return {
    element: node("div", { class: "card" }, text, bar),
    show(what, part = null) {
      if (text.textContent !== what) text.textContent = what;
      bar.hidden = part === null;
      bar.value = part ?? 0;
    },
  };
}
