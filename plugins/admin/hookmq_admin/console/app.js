// The console's frame: sign-in, navigation, and the current page.
import { ask, forget, identify, keep, may, Refused, signedIn } from "./api.js";
import { confirmed, field, form, node } from "./dom.js";
import { cut } from "./format.js";
import access from "./pages/access.js";
import accounts, { group, user } from "./pages/accounts.js";
import audit from "./pages/audit.js";
import clients, { client } from "./pages/clients.js";
import cluster from "./pages/cluster.js";
import configuration from "./pages/configuration.js";
import diagnosis from "./pages/diagnosis.js";
import log from "./pages/log.js";
import maintenance from "./pages/maintenance.js";
import mqtt from "./pages/mqtt.js";
import overview from "./pages/overview.js";
import plugins, { streams } from "./pages/plugins.js";
import queues, { queue } from "./pages/queues.js";
import sinks, { sink } from "./pages/sinks.js";
import subscriptions from "./pages/subscriptions.js";
import tokens from "./pages/tokens.js";
import topics from "./pages/topics.js";

const EVERY = 5000;
const THEME = "hookmq-admin-theme";
const THEMES = ["auto", "light", "dark"];
// name of the page: function, title, and the lowest role that may use it. Pages without a title are not in the menu.
const PAGES = {
  overview: [overview, "Overview", "viewer"], clients: [clients, "Clients", "viewer"], client: [client, "", "viewer"],
  subscriptions: [subscriptions, "Subscriptions", "viewer"], topics: [topics, "Topics", "viewer"],
  mqtt: [mqtt, "MQTT client", "viewer"], diagnosis: [diagnosis, "Diagnosis", "viewer"], log: [log, "Log", "operator"],
  plugins: [plugins, "Plugins", "viewer"], streams: [streams, "Streams", "viewer"],
  queues: [queues, "Queues", "viewer"], queue: [queue, "", "viewer"],
  sinks: [sinks, "Sinks", "viewer"], sink: [sink, "", "viewer"],
  cluster: [cluster, "Cluster", "viewer"], access: [access, "Access", "operator"],
  accounts: [accounts, "Users and groups", "operator"], user: [user, "", "operator"], group: [group, "", "operator"],
  configuration: [configuration, "Configuration", "admin"], maintenance: [maintenance, "Maintenance", "admin"], tokens: [tokens, "Tokens", "admin"], audit: [audit, "Audit log", "admin"],
};
const PARENTS = { client: "clients", queue: "queues", sink: "sinks", user: "accounts", group: "accounts" };
const main = document.getElementById("main");
const bar = document.getElementById("status");
const nav = document.getElementById("nav");
const menu = document.getElementById("menu");
const account = document.getElementById("account");
let stop = new AbortController(); // ends the requests and timers of the page that is shown
let unreachable = false;

function say(text, bad = false) {
  unreachable = false;
  bar.textContent = text;
  bar.className = bad ? "bad" : text ? "good" : "";
}

// What a page may use. Everything ends when another page is shown.
function context(signal, part, query) {
  const self = {
    signal, part, query, say,
    ask: (method, path, options) => ask(method, path, { signal, ...options }),
    // Run `work`, and show its error. Return whether it succeeded.
    async attempt(work) {
      try {
        await work();
        if (unreachable) say("The broker answers again.");
        return true;
      } catch (error) {
        if (error.name === "AbortError" || signal.aborted) return false;
        if (error.status === 401) login("The token is wrong, expired or revoked.");
        else if (error instanceof Refused && !error.starting) say(error.message, true);
        else if (error.starting) {
          say("The broker is starting. Trying again…", true);
          unreachable = true;
        } else {
          say(error instanceof TypeError && /fetch|network/i.test(error.message) ? "The broker does not answer. Trying again…" : cut(error.message, 300), true);
          unreachable = true;
        }
        return false;
      }
    },
    // Ask before a change, make it with the values of the dialog's fields, then show the page's new state.
    async act(what, text, work, options) {
      const given = await confirmed(what, text, options);
      if (given === null) return;
      await self.attempt(async () => {
        await work(given);
        say(`Done: ${what}.`);
        await self.refresh();
      });
    },
    // Run `work` now and every few seconds, while the tab is visible.
    repeat(work, every = EVERY) {
      const again = async () => {
        if (!document.hidden) await self.attempt(work);
        if (!signal.aborted) setTimeout(again, every);
      };
      again();
    },
    // Fill `place` with what `draw` returns, now and every few seconds. Do not take the focus away from it.
    redraw(place, draw, every) {
      self.repeat(async () => {
        const made = await draw();
        if (!place.contains(document.activeElement)) place.replaceChildren(...made);
      }, every);
    },
    // Keep `values` in the address, for Back and bookmarks.
    remember(values) {
      const search = new URLSearchParams(Object.entries(values).filter(([, value]) => value !== "")).toString();
      history.replaceState(null, "", location.hash.split("?")[0] + (search && `?${search}`));
    },
  };
  return self;
}

function login(why = "") {
  stop.abort();
  stop = new AbortController();
  forget();
  document.body.className = "alone";
  document.title = "Sign in – HookMQ";
  nav.hidden = account.hidden = menu.hidden = true;
  const own = context(stop.signal, "", {});
  main.replaceChildren(node("div", { class: "card login" }, node("h2", {}, "Sign in"),
    node("p", { class: "soft" }, "Enter a token of the admin API. The page keeps it until you close the tab."),
    form([field("Token", "token", { type: "password", required: true })], "Sign in", ({ token }) => own.attempt(async () => {
      keep(token.trim());
      try {
        await identify(own.signal);
      } catch (error) {
        forget();
        throw error;
      }
      say("");
      show();
    }))));
  main.querySelector("input").focus();
  say(why, why !== "");
}

async function show() {
  if (!signedIn()) return login();
  stop.abort();
  const mine = stop = new AbortController();
  const [path, search = ""] = location.hash.replace(/^#\//, "").split("?");
  const [name, ...rest] = path.split("/");
  const own = context(mine.signal, decode(rest.join("/")), Object.fromEntries(new URLSearchParams(search)));
  let me = null;
  if (!await own.attempt(async () => { me = await identify(mine.signal); })) {
    if (!mine.signal.aborted) setTimeout(() => mine.signal.aborted || show(), EVERY);
    return undefined;
  }
  if (mine.signal.aborted) return undefined;
  const page = Object.hasOwn(PAGES, name) && may(PAGES[name][2]) ? name : "overview";
  document.body.className = "";
  document.getElementById("who").textContent = `${cut(me.name, 30)} (${me.role})`;
  nav.hidden = account.hidden = menu.hidden = false;
  open(false);
  nav.replaceChildren(...Object.entries(PAGES).filter(([, [, title, role]]) => title && may(role)).map(([key, [, title]]) =>
    node("a", { href: `#/${key}`, "aria-current": key === (PARENTS[page] ?? page) ? "page" : null }, title)));
  document.title = `${PAGES[page][1] || cut(own.part, 60)} – HookMQ`;
  main.replaceChildren();
  PAGES[page][0](own, main);
  return undefined;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function open(wanted) {
  menu.setAttribute("aria-expanded", String(wanted));
  nav.classList.toggle("open", wanted);
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = `Theme: ${name}`;
  sessionStorage.setItem(THEME, name);
}

menu.addEventListener("click", () => open(menu.getAttribute("aria-expanded") !== "true"));
document.getElementById("leave").addEventListener("click", () => login());
document.getElementById("theme").addEventListener("click", () => {
  theme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
});
addEventListener("hashchange", () => {
  if (!location.hash.startsWith("#/")) return; // the link that skips to the content
  say("");
  show();
  main.focus();
});
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea") || document.querySelector("dialog")) return;
  if (event.key === "/") {
    const search = main.querySelector("input:not([type=checkbox])");
    if (search) { event.preventDefault(); search.focus(); }
  } else if (/^[1-9]$/.test(event.key)) nav.children[Number(event.key) - 1]?.click();
});
theme(sessionStorage.getItem(THEME) ?? "auto");
show();
