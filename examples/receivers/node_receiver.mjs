// A Node.js receiver for HookMQ events, without packages. It remembers events in memory until the process ends.
//
// HOOK_SECRETS='whsec_... whpk_...' node node_receiver.mjs

import { createHmac, createPublicKey, timingSafeEqual, verify as verifyEd25519 } from "node:crypto";
import { createServer } from "node:http";
import { gunzipSync } from "node:zlib";

// Throw an error unless one of `keys` (whsec_... or whpk_...) signed this request within the last five minutes.
function verify(headers, body, keys) {
  const id = headers["webhook-id"] ?? "";
  const timestamp = headers["webhook-timestamp"] ?? "";
  if (!/^[!-\-/-~]+$/.test(id) || !/^\d{1,15}$/.test(timestamp)) {
    throw new Error("not signed");
  }
  if (Math.abs(Date.now() / 1000 - Number(timestamp)) > 300) {
    throw new Error("too old, or from the future");
  }
  const content = Buffer.concat([Buffer.from(`${id}.${timestamp}.`), body]);
  for (const one of (headers["webhook-signature"] ?? "").split(" ").slice(0, 32)) {
    const [version, text = ""] = one.split(",");
    const signature = Buffer.from(text, "base64");
    for (const key of keys) {
      const bytes = Buffer.from(key.slice(key.indexOf("_") + 1), "base64");
      if (version === "v1" && key.startsWith("whsec_")) {
        const made = createHmac("sha256", bytes).update(content).digest();
        if (made.length === signature.length && timingSafeEqual(made, signature)) return;
      }
      if (version === "v1a" && key.startsWith("whpk_")) {
        // Node.js reads public keys in DER: twelve bytes that name ed25519, and the key.
        const der = Buffer.concat([Buffer.from("302a300506032b6570032100", "hex"), bytes]);
        const publicKey = createPublicKey({ key: der, format: "der", type: "spki" });
        if (verifyEd25519(null, content, publicKey, signature)) return;
      }
    }
  }
  throw new Error("wrong signature");
}

const LARGEST = 16 << 20;
const REMEMBERED = 100_000;
const keys = (process.env.HOOK_SECRETS ?? "").split(/\s+/).filter(Boolean);
if (!keys.length || !keys.every((key) => /^(whsec|whpk)_[A-Za-z0-9+/]{32,}=*$/.test(key))) {
  console.error("HOOK_SECRETS: expected secrets (whsec_...) and public keys (whpk_...), separated by spaces");
  process.exit(2);
}
const seen = new Set();
const counts = {};

// Handle an event: replace this function. It counts the events of each type.
function handle(event) {
  counts[event.type] = (counts[event.type] ?? 0) + 1;
}

function receive(headers, body) {
  try {
    verify(headers, body, keys);
  } catch (error) {
    return [401, error.message];
  }
  let events;
  try {
    const plain = headers["content-encoding"] === "gzip" ? gunzipSync(body, { maxOutputLength: LARGEST }) : body;
    const found = JSON.parse(plain.toString());
    events = Array.isArray(found) ? found : [found];
    if (!events.every((event) => typeof event?.id === "string" && typeof event.source === "string")) {
      throw new Error("not an event");
    }
  } catch (error) {
    return [400, error.message];
  }
  for (const event of events) {
    const id = `${event.source} ${event.id}`;
    if (seen.has(id)) continue;
    handle(event);
    seen.add(id);
    if (seen.size > REMEMBERED) seen.delete(seen.values().next().value);
  }
  return [204, ""];
}

const server = createServer(async (request, response) => {
  if (request.method === "GET" && request.url === "/counts") {
    response.setHeader("Content-Type", "application/json").end(JSON.stringify({ counts }));
    return;
  }
  if (request.method !== "POST" || request.url !== "/hook") {
    response.writeHead(404).end();
    return;
  }
  const chunks = [];
  let size = 0;
  try {
    for await (const chunk of request) {
      size += chunk.length;
      if (size > LARGEST) {
        response.writeHead(413).end();
        return;
      }
      chunks.push(chunk);
    }
  } catch {
    return; // the connection ended early
  }
  const [status, text] = receive(request.headers, Buffer.concat(chunks));
  response.writeHead(status).end(text);
});
server.listen(Number(process.env.PORT ?? 8000), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
