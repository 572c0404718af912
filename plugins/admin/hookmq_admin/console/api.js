// Requests to the API, with the token that a person entered. The token is kept until the tab is closed.

const BASE = new URL("api/v1", document.baseURI).pathname;
const KEY = "hookmq-admin-token";
const ROLES = ["viewer", "operator", "admin"];
const MEANING = { 413: "this is larger than http.max_body of the listener" }; // the listener refuses it, without a detail
let me = null;

export class Refused extends Error {
  constructor(status, detail, starting = false) {
    super(detail);
    this.status = status;
    this.starting = starting; // the listener answered because the API cannot yet
  }
}

export function signedIn() {
  return sessionStorage.getItem(KEY) !== null;
}

export function forget() {
  sessionStorage.removeItem(KEY);
  me = null;
}

export function keep(token) {
  sessionStorage.setItem(KEY, token);
}

// The token of the page: its name and role.
export async function identify(signal) {
  me ??= await ask("GET", "/me", { signal });
  return me;
}

export function may(role) {
  return me !== null && ROLES.indexOf(me.role) >= ROLES.indexOf(role);
}

// A path with encoded parts: at`/clients/${id}/queue`.
export function at(texts, ...parts) {
  return texts.reduce((path, text, index) => path + encodeURIComponent(parts[index - 1]) + text);
}

export async function open(method, path, { query = {}, body, headers = {}, signal } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const search = new URLSearchParams(given).toString();
  const sent = { Authorization: `Bearer ${sessionStorage.getItem(KEY)}`, ...headers };
  if (body) sent["Content-Type"] = "application/json";
  const response = await fetch(BASE + path + (search && `?${search}`), {
    method, headers: sent, signal, body: body && JSON.stringify(body), cache: "no-store", credentials: "omit",
  });
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  const name = problem.field ? `${problem.field}: ` : "";
  throw new Refused(response.status, name + (problem.detail ?? MEANING[response.status] ?? `status ${response.status}`), response.status === 503 && !problem.detail);
}

export async function ask(method, path, options) {
  return (await open(method, path, options)).json();
}

// Like `ask`, and return the entity tag too.
export async function askTagged(method, path, options) {
  const response = await open(method, path, options);
  return [await response.json(), response.headers.get("ETag")];
}

// The events of a stream, as pairs of a name and a value.
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
