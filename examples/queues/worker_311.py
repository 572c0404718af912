"""A worker for a HookMQ queue, with MQTT 3.1.1 and paho-mqtt: python worker_311.py HOST PORT QUEUE

It takes one message at a time, and acknowledges it when `work` has returned. If `work` raises an exception, the program
ends and the broker gives the message to another worker.
"""

import signal
import sys
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion


def work(payload: bytes) -> None:
    """Replace this with your own work."""
    if not payload:
        raise ValueError("no picture")
    print(payload.decode(), flush=True)


def main(host: str, port: int, queue: str) -> None:
    client = paho.Client(
        CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv311, manual_ack=True
    )

    def connected(client: paho.Client, _u: Any, _f: Any, code: Any, _p: Any) -> None:
        if code.is_failure:
            raise SystemExit(f"the broker refused the connection: {code}")
        client.subscribe(f"$queue/{queue}", 1)  # again after each reconnection

    def subscribed(_c: paho.Client, _u: Any, _m: int, codes: list[Any], _p: Any) -> None:
        if codes[0].is_failure:
            raise SystemExit(f"cannot consume from {queue}: {codes[0]}")
        print(f"waiting for messages of {queue}", file=sys.stderr, flush=True)

    def received(client: paho.Client, _u: Any, message: paho.MQTTMessage) -> None:
        work(bytes(message.payload))
        client.ack(message.mid, message.qos)  # sends PUBACK

    client.on_connect = connected
    client.on_subscribe = subscribed
    client.on_message = received
    signal.signal(signal.SIGTERM, lambda *_: client.disconnect())
    try:
        client.connect(host, port)
    except OSError as error:
        raise SystemExit(f"cannot connect to {host}:{port}: {error}") from None
    client.loop_forever()


if __name__ == "__main__":
    if len(sys.argv) != 4 or not sys.argv[2].isdecimal():
        raise SystemExit("usage: python worker_311.py HOST PORT QUEUE")
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
