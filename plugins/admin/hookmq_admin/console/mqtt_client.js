// An MQTT 5.0 client over WebSocket, authenticated and authorized like any other.
import * as codec from "./mqtt_codec.js";

const CODES = {
  0x80: "unspecified error", 0x81: "malformed packet", 0x82: "protocol error", 0x83: "implementation specific error",
  0x85: "client id not valid", 0x86: "bad user name or password", 0x87: "not authorized", 0x88: "server unavailable",
  0x89: "server busy", 0x8a: "banned", 0x8b: "server shutting down", 0x8c: "bad authentication method",
  0x8d: "keep alive timeout", 0x8e: "session taken over", 0x8f: "topic filter invalid", 0x90: "topic name invalid",
  0x93: "receive maximum exceeded", 0x94: "topic alias invalid", 0x95: "packet too large", 0x96: "message rate too high",
  0x97: "quota exceeded", 0x98: "administrative action", 0x99: "payload format invalid", 0x9a: "retain not supported",
  0x9b: "QoS not supported", 0x9c: "use another server", 0x9d: "server moved", 0x9e: "shared subscriptions not supported",
  0x9f: "connection rate exceeded", 0xa0: "maximum connect time", 0xa1: "subscription identifiers not supported",
  0xa2: "wildcard subscriptions not supported", 0x10: "no matching subscribers", 0x11: "no subscription existed",
};

// The text of a reason code, with the reason that the broker gave.
export function reason(code, properties = {}) {
  const text = CODES[code] ?? `reason code ${code}`;
  return properties.reason_string ? `${text}: ${properties.reason_string}` : text;
}

export class Client {
  // `events` has functions: opened(packet), message(packet), closed(text).
  constructor(url, options, events) {
    this.events = events;
    this.options = options;
    this.waiting = new Map(); // by packet id: what to do with the final acknowledgement
    this.received = new Set(); // packet ids of QoS 2 messages that are not complete
    this.lastId = 0;
    this.open = this.over = false;
    this.why = "";
    const stream = new codec.Stream();
    this.socket = new WebSocket(url, ["mqtt"]);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => this.send(codec.connect(options));
    this.socket.onmessage = ({ data }) => {
      try {
        for (const packet of stream.feed(new Uint8Array(data))) this.handle(packet);
      } catch (error) {
        this.fail(error instanceof codec.Malformed ? `malformed packet: ${error.message}` : error.message);
      }
    };
    this.socket.onclose = () => this.end(this.why || (this.open ? "the connection was lost" : "the WebSocket could not be opened"));
  }

  send(packet) {
    this.socket.send(packet);
    this.sentAt = Date.now();
  }

  fail(text) {
    this.why ||= text;
    this.socket.close();
  }

  close() {
    this.why ||= "disconnected";
    if (this.open && this.socket.readyState === WebSocket.OPEN) this.send(codec.disconnect());
    this.socket.close();
  }

  end(text) {
    if (this.over) return;
    this.over = true;
    this.open = false;
    clearInterval(this.timer);
    for (const { reject } of this.waiting.values()) reject(new Error(text));
    this.waiting.clear();
    this.events.closed(text);
  }

  handle(packet) {
    if (packet.type === "PUBLISH") this.take(packet);
    else if (packet.type === "CONNACK") this.accept(packet);
    else if (packet.type === "PUBREC") {
      if (packet.code >= 0x80) this.settle(packet);
      else this.send(codec.acknowledgement("PUBREL", packet.packetId));
    } else if (packet.type === "PUBREL") {
      this.received.delete(packet.packetId);
      this.send(codec.acknowledgement("PUBCOMP", packet.packetId));
    } else if (packet.type === "DISCONNECT") this.fail(reason(packet.code, packet.properties));
    else if (packet.type === "PINGRESP") this.pinged = 0;
    else if (packet.type !== "AUTH") this.settle(packet);
  }

  accept(packet) {
    if (packet.code) return this.fail(reason(packet.code, packet.properties));
    this.open = true;
    const every = packet.properties.server_keep_alive ?? this.options.keepAlive;
    if (every) this.timer = setInterval(() => this.tick(every * 1000), Math.min(every * 250, 10_000));
    return this.events.opened(packet);
  }

  tick(most) {
    const now = Date.now();
    if (this.pinged && now - this.pinged > most) this.fail("the broker does not answer");
    else if (!this.pinged && now - this.sentAt > most / 2) {
      this.pinged = now;
      this.send(codec.ping());
    }
  }

  take(packet) {
    if (packet.qos === 1) this.send(codec.acknowledgement("PUBACK", packet.packetId));
    if (packet.qos === 2) {
      this.send(codec.acknowledgement("PUBREC", packet.packetId));
      if (this.received.has(packet.packetId)) return;
      this.received.add(packet.packetId);
    }
    this.events.message(packet);
  }

  settle(packet) {
    const waiting = this.waiting.get(packet.packetId);
    if (!waiting) return;
    this.waiting.delete(packet.packetId);
    const code = packet.code ?? packet.codes[0];
    if (code >= 0x80) waiting.reject(new Error(reason(code, packet.properties)));
    else waiting.resolve(code);
  }

  // Send a packet with a packet id. Resolve to the final reason code.
  request(make) {
    if (!this.open) return Promise.reject(new Error("the client is not connected"));
    if (this.waiting.size > 1000) return Promise.reject(new Error("too many requests wait for an answer"));
    do this.lastId = (this.lastId % 65535) + 1; while (this.waiting.has(this.lastId));
    const packetId = this.lastId;
    return new Promise((resolve, reject) => {
      this.waiting.set(packetId, { resolve, reject });
      this.send(make(packetId));
    });
  }

  subscribe(filter, options) {
    return this.request((packetId) => codec.subscribe(packetId, filter, options));
  }

  unsubscribe(filter) {
    return this.request((packetId) => codec.unsubscribe(packetId, filter));
  }

  publish(message) {
    if (message.qos) return this.request((packetId) => codec.publish({ ...message, packetId }));
    if (!this.open) return Promise.reject(new Error("the client is not connected"));
    this.send(codec.publish(message));
    return Promise.resolve(0);
  }
}
