// A worker for a group with `settle: explicit`, with MQTT.js and MQTT 5: node worker_explicit.js URL QUEUE
// It gives a message back with a delay, and rejects what it can never process.
const mqtt = require('mqtt')

class Reject extends Error {}

// Replace this with your work. If it throws Reject, the message becomes a dead letter.
async function work (payload, properties) {
  if (payload.length === 0) throw new Reject('no picture')
  if (properties['delivery-count'] === '1') throw new Error('not yet')
  console.log(`${properties['message-id']}: ${payload}, delivery ${properties['delivery-count']}`)
}

const [url, queue] = process.argv.slice(2)
if (!queue) {
  console.error('usage: node worker_explicit.js URL QUEUE')
  process.exit(1)
}
const client = mqtt.connect(url, { protocolVersion: 5, resubscribe: false })

function settle (verb, id, more = {}) {
  const userProperties = { 'message-id': id, ...more }
  return client.publishAsync(`$queue/${queue}/$${verb}`, '', { qos: 1, properties: { userProperties } })
}

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

// MQTT.js sends PUBACK at once. The queue's `prefetch` limits how many messages come before they are settled.
client.on('message', async (topic, payload, packet) => {
  const properties = packet.properties.userProperties
  const id = properties['message-id']
  try {
    try {
      await work(payload, properties)
      await settle('ack', id)
    } catch (error) {
      const verb = error instanceof Reject ? 'reject' : 'nack'
      console.error(`${id}: ${verb}: ${error.message}`)
      await settle(verb, id, { reason: error.message, ...(verb === 'nack' && { delay: '0.1' }) })
    }
  } catch (error) {
    console.error(`${id}: not settled: ${error.message}`) // it is delivered again after visibility_timeout
  }
})

client.on('error', error => console.error(error.message))
process.on('SIGTERM', () => client.end())
