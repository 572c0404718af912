// A worker for a queue of HookMQ with MQTT.js: node worker.js URL QUEUE
// It takes one message at a time, and acknowledges it when `work` has finished.
const mqtt = require('mqtt')

// Replace this with your work. If it throws, the message is delivered again.
async function work (payload, properties) {
  if (payload.length === 0) throw new Error('no picture')
  console.log(`${properties['message-id']}: ${payload}, delivery ${properties['delivery-count']}`)
}

const [url, queue] = process.argv.slice(2)
if (!queue) {
  console.error('usage: node worker.js URL QUEUE')
  process.exit(1)
}
const client = mqtt.connect(url, {
  protocolVersion: 5,
  properties: { receiveMaximum: 1 }, // the broker sends one message, and keeps the others for other workers
  reconnectPeriod: 1000,
  resubscribe: false
})

client.on('connect', async () => {
  try {
    await client.subscribeAsync(`$queue/${queue}`, { qos: 1 })
    console.error(`waiting for messages of ${queue}`)
  } catch (error) {
    console.error(`cannot consume from ${queue}: ${error.message}`)
    process.exitCode = 1
    client.end()
  }
})

// MQTT.js sends PUBACK when `done` is called. Its event `message` comes too early for this.
client.handleMessage = (packet, done) => {
  const properties = packet.properties.userProperties
  work(packet.payload, properties).then(() => done(), error => {
    console.error(`${properties['message-id']}: ${error.message}, connecting again`)
    client.stream.destroy() // the broker delivers the message again once the connection has ended
  })
}

client.on('error', error => console.error(error.message))
process.on('SIGTERM', () => client.end())
