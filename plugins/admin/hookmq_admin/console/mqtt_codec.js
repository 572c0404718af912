// MQTT 5.0 packets: a client's as bytes, a broker's as objects.

export const TYPES = {
  CONNECT: 1, CONNACK: 2, PUBLISH: 3, PUBACK: 4, PUBREC: 5, PUBREL: 6, PUBCOMP: 7, SUBSCRIBE: 8, SUBACK: 9,
  UNSUBSCRIBE: 10, UNSUBACK: 11, PINGREQ: 12, PINGRESP: 13, DISCONNECT: 14, AUTH: 15,
};
const NAMES = Object.fromEntries(Object.entries(TYPES).map(([name, type]) => [type, name]));
const MAX_PACKET = 1 << 24;

// Identifier, name and kind of each property.
const PROPERTIES = [
  [0x01, "payload_format_indicator", "byte"], [0x02, "message_expiry_interval", "four"], [0x03, "content_type", "text"],
  [0x08, "response_topic", "text"], [0x09, "correlation_data", "binary"], [0x0b, "subscription_identifier", "variable"],
  [0x11, "session_expiry_interval", "four"], [0x12, "assigned_client_identifier", "text"], [0x13, "server_keep_alive", "two"],
  [0x15, "authentication_method", "text"], [0x16, "authentication_data", "binary"], [0x17, "request_problem_information", "byte"],
  [0x18, "will_delay_interval", "four"], [0x19, "request_response_information", "byte"], [0x1a, "response_information", "text"],
  [0x1c, "server_reference", "text"], [0x1f, "reason_string", "text"], [0x21, "receive_maximum", "two"],
  [0x22, "topic_alias_maximum", "two"], [0x23, "topic_alias", "two"], [0x24, "maximum_qos", "byte"], [0x25, "retain_available", "byte"],
  [0x26, "user_property", "pair"], [0x27, "maximum_packet_size", "four"], [0x28, "wildcard_subscription_available", "byte"],
  [0x29, "subscription_identifier_available", "byte"], [0x2a, "shared_subscription_available", "byte"],
];
const BY_ID = new Map(PROPERTIES.map(([id, name, kind]) => [id, [name, kind]]));
const BY_NAME = new Map(PROPERTIES.map(([id, name, kind]) => [name, [id, kind]]));
const encoder = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export class Malformed extends Error {}

class Writer {
  constructor() {
    this.parts = [];
  }

  byte(value) { this.parts.push(value & 0xff); return this; }
  two(value) { return this.byte(value >> 8).byte(value); }
  four(value) { return this.two(Math.floor(value / 65536)).two(value % 65536); }
  raw(data) { for (const one of data) this.parts.push(one); return this; }

  variable(value) {
    do {
      const digit = value % 128;
      value = Math.floor(value / 128);
      this.byte(value > 0 ? digit | 0x80 : digit);
    } while (value > 0);
    return this;
  }

  binary(data) {
    if (data.length > 65535) throw new RangeError("a text or binary field has at most 65535 bytes");
    return this.two(data.length).raw(data);
  }

  text(value) { return this.binary(encoder.encode(value)); }
  pair([name, value]) { return this.text(name).text(value); }

  properties(given = {}) {
    const section = new Writer();
    for (const [name, value] of Object.entries(given)) {
      if (value === undefined || value === null || value === "") continue;
      const [id, kind] = BY_NAME.get(name);
      for (const one of kind === "pair" ? value : [value]) section.byte(id)[kind](one);
    }
    return this.variable(section.parts.length).raw(section.parts);
  }

  packet(type, flags = 0) {
    const head = new Writer().byte((type << 4) | flags).variable(this.parts.length);
    return Uint8Array.from([...head.parts, ...this.parts]);
  }
}

class Reader {
  constructor(data) {
    this.data = data;
    this.place = 0;
  }

  get left() { return this.data.length - this.place; }

  take(count) {
    if (count > this.left) throw new Malformed("a packet ends too early");
    this.place += count;
    return this.data.subarray(this.place - count, this.place);
  }

  byte() { return this.take(1)[0]; }
  two() { const [high, low] = this.take(2); return high * 256 + low; }
  four() { return this.two() * 65536 + this.two(); }
  binary() { return this.take(this.two()); }
  pair() { return [this.text(), this.text()]; }

  text() {
    try {
      return strict.decode(this.binary());
    } catch (error) {
      if (error instanceof Malformed) throw error;
      throw new Malformed("a text is not valid UTF-8");
    }
  }

  variable() {
    let value = 0;
    for (let shift = 0; shift < 28; shift += 7) {
      const digit = this.byte();
      value += (digit & 0x7f) * 2 ** shift;
      if (digit < 0x80) return value;
    }
    throw new Malformed("a length has more than four bytes");
  }

  properties() {
    const found = {};
    if (!this.left) return found;
    const section = new Reader(this.take(this.variable()));
    while (section.left) {
      const id = section.variable(), known = BY_ID.get(id);
      if (!known) throw new Malformed(`unknown property 0x${id.toString(16)}`);
      const value = section[known[1]]();
      if (known[0] === "user_property") (found.user_property ??= []).push(value);
      else if (known[0] === "subscription_identifier") (found.subscription_identifier ??= []).push(value);
      else found[known[0]] = value;
    }
    return found;
  }
}

export function connect({ clientId = "", username = "", password = "", clean = true, keepAlive = 60, properties = {} }) {
  const flags = (username ? 0x80 : 0) | (password ? 0x40 : 0) | (clean ? 0x02 : 0);
  const made = new Writer().text("MQTT").byte(5).byte(flags).two(keepAlive).properties(properties).text(clientId);
  if (username) made.text(username);
  if (password) made.text(password);
  return made.packet(TYPES.CONNECT);
}

// Only messages are large, so their payload is copied whole.
export function publish({ topic, payload, qos = 0, retain = false, packetId = 0, properties = {} }) {
  const start = new Writer().text(topic);
  if (qos) start.two(packetId);
  start.properties(properties);
  const size = start.parts.length + payload.length;
  const head = new Writer().byte((TYPES.PUBLISH << 4) | (qos << 1) | (retain ? 1 : 0)).variable(size);
  const packet = new Uint8Array(head.parts.length + size);
  packet.set(head.parts);
  packet.set(start.parts, head.parts.length);
  packet.set(payload, head.parts.length + start.parts.length);
  return packet;
}

export function acknowledgement(name, packetId, code = 0) {
  const made = new Writer().two(packetId);
  if (code) made.byte(code);
  return made.packet(TYPES[name], name === "PUBREL" ? 2 : 0);
}

export function subscribe(packetId, filter, { qos = 0, noLocal = false, retainAsPublished = true, retainHandling = 0 } = {}) {
  const options = qos | (noLocal ? 4 : 0) | (retainAsPublished ? 8 : 0) | (retainHandling << 4);
  return new Writer().two(packetId).properties().text(filter).byte(options).packet(TYPES.SUBSCRIBE, 2);
}

export function unsubscribe(packetId, filter) {
  return new Writer().two(packetId).properties().text(filter).packet(TYPES.UNSUBSCRIBE, 2);
}

export const ping = () => new Writer().packet(TYPES.PINGREQ);
export const disconnect = (code = 0) => (code ? new Writer().byte(code) : new Writer()).packet(TYPES.DISCONNECT);

// Splits a stream of bytes into packets.
export class Stream {
  constructor() {
    this.rest = new Uint8Array(0);
  }

  // Return the packets that `data` completes. Throws Malformed.
  feed(data) {
    let buffer = data;
    if (this.rest.length) {
      buffer = new Uint8Array(this.rest.length + data.length);
      buffer.set(this.rest);
      buffer.set(data, this.rest.length);
    }
    const found = [];
    let start = 0;
    for (;;) {
      const end = packetEnd(buffer, start);
      if (end === null || end.end > buffer.length) break;
      found.push(decode(buffer[start], buffer.subarray(end.body, end.end)));
      start = end.end;
    }
    this.rest = buffer.slice(start);
    return found;
  }
}

function packetEnd(buffer, start) {
  let size = 0;
  for (let index = 1; index <= 4; index += 1) {
    if (start + index >= buffer.length) return null;
    const digit = buffer[start + index];
    size += (digit & 0x7f) * 128 ** (index - 1);
    if (digit < 0x80) {
      if (size > MAX_PACKET) throw new Malformed(`a packet has ${size} bytes`);
      return { body: start + index + 1, end: start + index + 1 + size };
    }
  }
  throw new Malformed("a length has more than four bytes");
}

export function decode(first, body) {
  const type = NAMES[first >> 4], reader = new Reader(body);
  const packet = { type };
  if (type === "CONNACK") {
    packet.sessionPresent = (reader.byte() & 1) === 1;
    packet.code = reader.byte();
    packet.properties = reader.properties();
  } else if (type === "PUBLISH") {
    packet.qos = (first >> 1) & 3;
    packet.retain = (first & 1) === 1;
    packet.dup = (first & 8) === 8;
    packet.topic = reader.text();
    if (packet.qos) packet.packetId = reader.two();
    packet.properties = reader.properties();
    packet.payload = reader.take(reader.left).slice();
  } else if (["PUBACK", "PUBREC", "PUBREL", "PUBCOMP"].includes(type)) {
    packet.packetId = reader.two();
    packet.code = reader.left ? reader.byte() : 0;
    packet.properties = reader.properties();
  } else if (type === "SUBACK" || type === "UNSUBACK") {
    packet.packetId = reader.two();
    packet.properties = reader.properties();
    packet.codes = [...reader.take(reader.left)];
  } else if (type === "DISCONNECT" || type === "AUTH") {
    packet.code = reader.left ? reader.byte() : 0;
    packet.properties = reader.properties();
  } else if (type !== "PINGRESP") throw new Malformed(`a broker does not send packets of type ${first >> 4}`);
  return packet;
}
