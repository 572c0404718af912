// What test_mqttjs.py runs: node roundtrip.js URL VERSION TOPIC [CA]. Prints one line of JSON, or fails.
"use strict";
const fs = require("fs");
const mqtt = require("mqtt");

const [url, version, topic, ca] = process.argv.slice(2);
const options = {
  protocolVersion: Number(version),
  protocolId: version === "3" ? "MQIsdp" : "MQTT",
  reconnectPeriod: 0,
  connectTimeout: 10000,
  clientId: `js-${process.pid}-${version}`,
};
if (ca) options.ca = fs.readFileSync(ca);

async function main() {
  const client = await mqtt.connectAsync(url, options);
  const got = [];
  const all = new Promise((resolve) => {
    client.on("message", (name, payload, packet) => {
      got.push({ topic: name, payload: payload.toString(), qos: packet.qos, retain: packet.retain });
      if (name === `${topic}/end`) resolve();
    });
  });
  await client.publishAsync(`${topic}/kept`, "retained", { qos: 1, retain: true });
  const granted = await client.subscribeAsync(`${topic}/#`, { qos: 2 });
  for (const qos of [0, 1, 2]) await client.publishAsync(`${topic}/${qos}`, `at ${qos}`, { qos });
  await client.publishAsync(`${topic}/large`, "x".repeat(300000), { qos: 1 });
  await client.publishAsync(`${topic}/kept`, "", { qos: 1, retain: true });
  await client.publishAsync(`${topic}/end`, "end", { qos: 1 });
  await all;
  const sizes = got.map((m) => ({ ...m, topic: m.topic.slice(topic.length), payload: m.payload.length > 100 ? m.payload.length : m.payload }));
  await client.endAsync();
  console.log(JSON.stringify({ granted: granted.map((g) => g.qos), got: sizes }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
