// Run aedes for `python -m bench`: in memory, on loopback, over TCP, TLS or WebSocket.
// Usage: node broker.mjs CONFIG. CONFIG is a JSON file with the port, the kind and the certificates' folder. MODULES is
// the path of node_modules.
import { readFileSync } from 'node:fs'
import http from 'node:http'
import net from 'node:net'
import tls from 'node:tls'

const modules = process.env.MODULES
const { Aedes } = await import(`${modules}/aedes/aedes.js`)
const { port, kind, tls: folder } = JSON.parse(readFileSync(process.argv[2], 'utf8'))
const aedes = await Aedes.createBroker()

let server
if (kind === 'tls') {
  const options = { cert: readFileSync(`${folder}/cert.pem`), key: readFileSync(`${folder}/key.pem`) }
  server = tls.createServer(options, aedes.handle)
} else if (kind === 'ws') {
  const { WebSocketServer, createWebSocketStream } = await import(`${modules}/ws/wrapper.mjs`)
  server = http.createServer()
  new WebSocketServer({ server }).on('connection', (socket, request) => {
    socket._socket.setNoDelay(true)
    aedes.handle(createWebSocketStream(socket), request)
  })
} else {
  server = net.createServer(aedes.handle)
}
server.on('connection', (socket) => socket.setNoDelay(true))
server.listen({ port, host: '127.0.0.1', backlog: 4096 })
