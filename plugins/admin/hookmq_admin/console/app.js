// The console: a page without dependencies. All text from the broker is set as text, never as HTML.

const api = new URL("api/v1", document.baseURI).pathname;
const main = document.getElementById("main");
const bar = document.getElementById("status");
const nav = document.getElementById("nav");
const leave = document.getElementById("leave");
const KEY = "hookmq-admin-token";
const EVERY = 5000;
const MAX_ROWS = 200;
const pages = { overview, clients, client, topics, plugins, audit };
const TITLES = { overview: "Overview", clients: "Clients", topics: "Topics", plugins: "Plugins", audit: "Audit log" };
let stop = new AbortController(); // ends the requests and timers of the page that is shown

// helpers ------------------------------------------------------------------------------------------------------------

export function node(name, fields = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(fields)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((one) => one !== null));
  return made;
}

function say(text, bad = false) {
  bar.textContent = text;
  bar.className = bad ? "bad" : "";
}

export function short(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (value === true) return "yes";
  if (value === false) return "no";
  if (typeof value === "number") return value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 0 });
  if (Array.isArray(value)) return value.map(short).join(", ");
  if (typeof value === "object") return JSON.stringify(value);
  return value;
}

function time(seconds) {
  return seconds ? new Date(seconds * 1000).toLocaleString() : "–";
}

class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function open(method, path, { query = {}, body, signal = stop.signal } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined);
  const search = new URLSearchParams(given).toString();
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(KEY)}` };
  if (body) headers["Content-Type"] = "application/json";
  const response = await fetch(api + path + (search && `?${search}`), {
    method, headers, signal, body: body && JSON.stringify(body), cache: "no-store", credentials: "omit",
  });
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  const field = problem.field ? `${problem.field}: ` : "";
  throw new Refused(response.status, field + (problem.detail ?? `status ${response.status}`));
}

async function ask(method, path, options) {
  return (await open(method, path, options)).json();
}

function table(caption, columns, items, empty = "nothing") {
  const head = node("tr", {}, ...columns.map(([title]) => node("th", { scope: "col" }, title)));
  const rows = items.map((one) => node("tr", {}, ...columns.map(([, read]) => {
    const found = read(one);
    return node("td", {}, found instanceof Node ? found : String(short(found)));
  })));
  const shown = node("table", {}, node("caption", {}, items.length ? caption : `${caption}: ${empty}`), node("thead", {}, head), node("tbody", {}, ...rows));
  return node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, shown);
}

function cards(figures) {
  return node("div", { class: "cards" }, ...Object.entries(figures).map(([name, value]) =>
    node("dl", { class: "card" }, node("dt", {}, name), node("dd", {}, String(short(value))))));
}

function field(title, name, options = {}) {
  return node("label", {}, title, node("input", { name, autocomplete: "off", spellcheck: "false", ...options }));
}

function form(fields, action, run) {
  return node("form", { onsubmit: (event) => {
    event.preventDefault();
    attempt(() => run(Object.fromEntries(new FormData(event.target))));
  } }, ...fields, node("button", {}, action));
}

async function attempt(work) {
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (error.status === 401) return login("The token is not valid.");
    say(error instanceof Refused ? error.message : `The broker cannot be reached, or the page failed: ${error.message}`, true);
  }
}

function repeat(work) {
  const signal = stop.signal;
  const again = async () => {
    if (!document.hidden) await attempt(work);
    if (!signal.aborted) setTimeout(again, EVERY);
  };
  again();
}

export function chart(title, times, values) {
  const most = Math.max(...values, 0);
  const last = values.at(-1) ?? 0;
  const step = 300 / Math.max(values.length - 1, 1);
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(60 - (most ? value / most : 0) * 56).toFixed(1)}`);
  const NS = "http://www.w3.org/2000/svg";
  const image = document.createElementNS(NS, "svg");
  const label = `${title}: now ${short(last)}, highest ${short(most)}`;
  for (const [key, value] of Object.entries({ viewBox: "0 0 300 62", preserveAspectRatio: "none", role: "img", "aria-label": label })) image.setAttribute(key, value);
  const line = document.createElementNS(NS, "polyline");
  line.setAttribute("points", points.join(" "));
  image.append(line);
  return node("figure", {}, node("figcaption", {}, label), image);
}

export function rates(times, values) {
  return values.slice(1).map((value, index) => Math.max(0, (value - values[index]) / Math.max(times[index + 1] - times[index], 0.001)));
}

// pages --------------------------------------------------------------------------------------------------------------

function overview() {
  const figures = node("div"), charts = node("div", { class: "charts" }), listeners = node("div");
  main.replaceChildren(node("h2", {}, "Overview"), figures, node("h2", {}, "The last hour"), charts, listeners);
  repeat(async () => {
    const [now, history, open_] = await Promise.all([
      ask("GET", "/overview"), ask("GET", "/history", { query: { limit: 360 } }), ask("GET", "/listeners"),
    ]);
    const drops = Object.values(now.dropped).reduce((sum, one) => sum + one, 0);
    figures.replaceChildren(cards({
      Connections: now.connections, Sessions: now.sessions, Subscriptions: now.subscriptions,
      "Messages in per second": now.rates.messages_received, "Messages out per second": now.rates.messages_delivered,
      "Retained messages": now.retained_messages, "Bytes in queues": now.queue_bytes, Dropped: drops,
      "Event loop lag (ms)": now.loop_lag * 1000, Version: now.version, "Up since": time(now.started_at),
    }));
    const { times, series } = history;
    charts.replaceChildren(
      chart("Messages in per second", times, rates(times, series.messages_received_total)),
      chart("Messages out per second", times, rates(times, series.messages_delivered_total)),
      chart("Connections", times, series.connections),
      chart("Bytes in queues", times, series.queue_bytes),
      chart("Dropped per second", times, rates(times, series.dropped_total)),
      chart("Event loop lag (ms)", times, series.loop_lag.map((lag) => lag * 1000)),
    );
    listeners.replaceChildren(table("Listeners", [
      ["Name", (one) => one.name], ["Type", (one) => one.type], ["Address", (one) => one.address], ["Connections", (one) => one.connections],
    ], open_.items));
  });
}

function clients() {
  const found = node("div"), more = node("div");
  let items = [];
  async function search(given, cursor = "") {
    const query = { ...given, cursor, limit: 100 };
    const page = await ask("GET", "/clients", { query });
    items = cursor ? [...items, ...page.items].slice(-1000) : page.items;
    found.replaceChildren(table("Clients", [
      ["Client id", (one) => node("a", { href: `#/client/${encodeURIComponent(one.client_id)}` }, one.client_id)],
      ["Identity", (one) => one.identity], ["Online", (one) => one.connected], ["Address", (one) => one.address],
      ["Listener", (one) => one.listener], ["Subscriptions", (one) => one.subscriptions], ["In flight", (one) => one.inflight], ["Queued", (one) => one.queued],
    ], items, "no client matches"));
    more.replaceChildren(page.cursor ? node("button", { type: "button", onclick: () => attempt(() => search(given, page.cursor)) }, "More") : "");
    say(`${items.length} clients shown`);
  }
  const state = node("label", {}, "State", node("select", { name: "connected" }, node("option", { value: "" }, "all"), node("option", { value: "true" }, "online"), node("option", { value: "false" }, "offline")));
  main.replaceChildren(node("h2", {}, "Clients"), form([
    field("Client id begins with", "client_id", { type: "search" }), field("User name begins with", "username", { type: "search" }),
    field("Address begins with", "address", { type: "search" }), state,
  ], "Search", search), found, more);
  attempt(() => search({}));
}

function client(id) {
  const path = `/clients/${encodeURIComponent(id)}`;
  const figures = node("div"), lists = node("div");
  async function show() {
    const [one, subs, queue, inflight] = await Promise.all([
      ask("GET", path), ask("GET", `${path}/subscriptions`), ask("GET", `${path}/queue`), ask("GET", `${path}/inflight`),
    ]);
    figures.replaceChildren(cards({
      Online: one.connected, Identity: one.identity, "User name": one.username, Address: `${one.address}:${one.port}`, Listener: one.listener,
      Version: { 3: "3.1", 4: "3.1.1", 5: "5.0" }[one.version], "Connected at": time(one.connected_at), "Session expiry (s)": one.expiry ?? "never",
      "Keep alive (s)": one.keep_alive, Will: one.will, Queued: one.queued, "In flight": one.inflight, Claims: one.claims,
    }));
    lists.replaceChildren(
      table("Subscriptions", [["Filter", (s) => s.filter], ["QoS", (s) => s.qos], ["", (s) => button("Remove", `the subscription ${s.filter}`, () => ask("DELETE", `${path}/subscriptions`, { query: { filter: s.filter } }))]], subs.items),
      table("Queue, the first hundred", [["Topic", (m) => m.topic], ["QoS", (m) => m.qos], ["Bytes", (m) => m.bytes], ["From", (m) => m.sender]], queue.items),
      table("In flight", [["Packet id", (m) => m.packet_id], ["Topic", (m) => m.message?.topic], ["QoS", (m) => m.qos]], inflight.items),
    );
  }
  function button(title, what, work) {
    return node("button", { type: "button", class: "bad", onclick: () => {
      if (confirm(`${title} ${what}?`)) attempt(async () => { await work(); say(`Done: ${title} ${what}`); await show(); });
    } }, title);
  }
  main.replaceChildren(node("h2", {}, `Client ${id}`), figures, node("h2", {}, "Actions"), node("form", {},
    button("Disconnect", id, () => ask("POST", `${path}/disconnect`, { body: { reason: "console" } })),
    button("End the session of", id, () => ask("DELETE", `${path}/session`)),
    button("Drop the queue of", id, () => ask("DELETE", `${path}/queue`)),
  ), lists);
  attempt(show);
}

function topics() {
  const found = node("div"), rows = node("tbody"), note = node("caption", {}, "No tail is open");
  let tail = null;
  async function retained(given) {
    const page = await ask("GET", "/retained", { query: { filter: given.filter || "#" } });
    found.replaceChildren(table("Retained messages", [
      ["Topic", (m) => m.topic], ["Bytes", (m) => m.bytes], ["Payload", (m) => m.payload?.text ?? m.payload?.base64], ["At", (m) => time(m.received_at)],
    ], page.items));
  }
  async function who(given) {
    const page = await ask("GET", "/subscribers", { query: given });
    found.replaceChildren(table(`Who gets ${given.topic}`, [["Client", (s) => s.client_id], ["Online", (s) => s.connected], ["Filter", (s) => s.filter], ["QoS", (s) => s.qos], ["Why", (s) => s.why]], page.items, "nobody"));
  }
  async function publish(given) {
    const { retain, qos, ...rest } = given;
    const done = await ask("POST", "/publish", { body: { ...rest, qos: Number(qos), retain: retain === "on" } });
    say(`Published to ${done.matched} subscriptions`);
  }
  async function follow(given) {
    tail?.abort();
    tail = new AbortController();
    const signal = AbortSignal.any([tail.signal, stop.signal]);
    rows.replaceChildren();
    note.textContent = `Messages of ${given.filter}, the newest first`;
    const response = await open("GET", "/tail", { query: { filter: given.filter, rate: 50 }, signal });
    let skipped = 0;
    for await (const [name, data] of events(response.body)) {
      if (name === "message") {
        const cells = [time(data.received_at), data.topic, data.payload.text ?? data.payload.base64, short(data.sender)];
        rows.prepend(node("tr", {}, ...cells.map((text) => node("td", {}, text))));
        while (rows.childElementCount > MAX_ROWS) rows.lastElementChild.remove();
      } else if (name === "skipped") {
        skipped += data.messages;
        note.textContent = `Messages of ${given.filter}; ${short(skipped)} were skipped`;
      } else say(`The tail has ended: ${data.reason}`, true);
    }
  }
  const heads = ["Time", "Topic", "Payload", "From"].map((title) => node("th", { scope: "col" }, title));
  const level = node("label", {}, "QoS", node("select", { name: "qos" }, ...["0", "1", "2"].map((one) => node("option", {}, one))));
  main.replaceChildren(node("h2", {}, "Topics"),
    form([field("Retained messages of the filter", "filter", { type: "search", placeholder: "#" })], "Show", retained),
    form([field("Who gets the topic", "topic", { type: "search", required: true })], "Find", who), found,
    node("h2", {}, "Live messages"), form([field("Filter", "filter", { required: true })], "Follow", follow),
    node("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Live messages" }, node("table", {}, note, node("thead", {}, node("tr", {}, ...heads)), rows)),
    node("h2", {}, "Publish"), form([
      field("Topic", "topic", { required: true }), field("Payload", "payload"), level, node("label", {}, "Retain", node("input", { type: "checkbox", name: "retain" })),
    ], "Publish", publish));
}

export async function* events(body) {
  let text = "";
  for await (const chunk of body.pipeThrough(new TextDecoderStream())) {
    text += chunk;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const name = /^event: (.*)$/m.exec(part), data = /^data: (.*)$/m.exec(part);
      if (name && data) yield [name[1], JSON.parse(data[1])];
    }
  }
}

function plugins() {
  const found = node("div");
  main.replaceChildren(node("h2", {}, "Plugins"), found);
  repeat(async () => {
    const { items } = await ask("GET", "/plugins");
    const failures = (hook) => (hook.outcomes.error ?? 0) + (hook.outcomes.timeout ?? 0);
    found.replaceChildren(...items.map((one) => table(
      `${one.id} (${one.use} ${one.version})${one.disabled ? `, disabled: ${one.disabled}` : ""}${one.circuit_open ? ", not called after failures" : ""}`, [
        ["Hook", (hook) => hook.name], ["Calls", (hook) => Object.values(hook.outcomes).reduce((sum, n) => sum + n, 0)],
        ["Mean (µs)", (hook) => (hook.timed ? (hook.seconds / hook.timed) * 1e6 : null)], ["Failures", failures],
        ["Waiting", (hook) => hook.queue], ["Lost", (hook) => hook.dropped], ["Last error", (hook) => hook.last_error],
      ], one.hooks)));
  });
}

function audit() {
  const found = node("div");
  main.replaceChildren(node("h2", {}, "Audit log"), found);
  attempt(async () => {
    const { items } = await ask("GET", "/audit");
    found.replaceChildren(table("Changes, the newest first", [
      ["Time", (one) => time(one.time)], ["Who", (one) => one.name], ["From", (one) => one.address], ["Action", (one) => one.action],
      ["Arguments", (one) => one.arguments], ["Status", (one) => String(one.status)], ["Result", (one) => one.result],
    ], items));
  });
}

// the frame ----------------------------------------------------------------------------------------------------------

function login(why = "") {
  stop.abort();
  stop = new AbortController();
  sessionStorage.removeItem(KEY);
  nav.hidden = leave.hidden = true;
  main.replaceChildren(node("h2", {}, "Sign in"), form([field("Token", "token", { type: "password", required: true })], "Sign in", async ({ token }) => {
    sessionStorage.setItem(KEY, token.trim());
    const me = await ask("GET", "/me");
    say(`Signed in as ${me.name}, ${me.role}`);
    show();
  }));
  main.querySelector("input").focus();
  say(why, why !== "");
}

function show() {
  if (!sessionStorage.getItem(KEY)) return login();
  stop.abort();
  stop = new AbortController();
  const [name, ...rest] = location.hash.replace(/^#\//, "").split("/");
  const page = Object.hasOwn(pages, name) ? name : "overview";
  nav.hidden = leave.hidden = false;
  nav.replaceChildren(...Object.entries(TITLES).map(([key, title]) =>
    node("a", { href: `#/${key}`, "aria-current": key === page || (key === "clients" && page === "client") ? "page" : null }, title)));
  document.title = `${TITLES[page] ?? "Client"} – HookMQ`;
  pages[page](decodeURIComponent(rest.join("/")));
}

leave.addEventListener("click", () => login());
addEventListener("hashchange", () => {
  if (!location.hash.startsWith("#/")) return; // the link that skips to the content
  say("");
  show();
  main.focus();
});
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.matches("input, select, textarea")) return;
  const search = main.querySelector("input");
  if (search) { event.preventDefault(); search.focus(); }
});
show();
