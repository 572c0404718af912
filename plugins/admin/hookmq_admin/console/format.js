// Shows values as text for people.

const LONGEST = 120;

// A text without control characters, at most `most` characters long. Client ids and topics may have 65535 bytes.
export function cut(text, most = LONGEST) {
  const clean = text.slice(0, most + 1).replace(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
  return clean.length > most ? `${clean.slice(0, most - 1)}…` : clean;
}

export function short(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (value === true) return "yes";
  if (value === false) return "no";
  if (typeof value === "number") return number(value);
  if (Array.isArray(value)) return cut(value.map(short).join(", "));
  if (typeof value === "object") return cut(JSON.stringify(value), 400);
  return cut(String(value));
}

export function number(value) {
  return value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0 });
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${number(value)} ${units[unit]}`;
}

export function time(seconds) {
  return seconds ? new Date(seconds * 1000).toLocaleString("en-GB") : "–";
}

export function clock(seconds, precise = false) {
  const options = { hour: "2-digit", minute: "2-digit", ...(precise ? { second: "2-digit" } : {}) };
  return new Date(seconds * 1000).toLocaleTimeString("en-GB", options);
}

export function duration(seconds) {
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  let left = Math.max(0, Math.floor(seconds));
  const found = [];
  for (const [name, size] of parts) {
    const count = Math.floor(left / size);
    if (count) found.push(`${count} ${name}`);
    left -= count * size;
  }
  return found.slice(0, 2).join(" ") || "0 s";
}

export function payload(found) {
  if (!found) return "hidden for this role";
  const text = found.text ?? `base64: ${found.base64}`;
  return found.truncated ? `${text}…` : text;
}

// JSON with indentation, or the text itself.
export function pretty(text) {
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

export const VERSIONS = { 3: "3.1", 4: "3.1.1", 5: "5.0" };
