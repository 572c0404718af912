"""Test real clients over TCP that a broker throttles, refuses or bans."""

import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from signal import SIGHUP

import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from recording import V5, V31, V311, Client
from serving import Served, serving

CONFIG = """\
version: 1
listeners:
  - {name: slow, bind: "127.0.0.1:0"}
  - {name: strict, bind: "127.0.0.1:0"}
  - {name: door, bind: "127.0.0.1:0"}
  - {name: http, type: http, bind: "127.0.0.1:0"}
auth: {default: allow}
authz: {default: allow}
plugins:
  - use: ratelimit
    listeners: [slow]
    config: {limits: [{rate: 400/s, burst: 20}, {what: deliveries, rate: 500/s}]}
  - use: ratelimit
    id: strict
    listeners: [strict]
    config: {limits: [{rate: 3/h, mode: reject}], ban: {after: 3/h}}
  - use: ratelimit
    id: door
    listeners: [door]
    config: {limits: [{what: connections, rate: 2/h}]}
"""
VERSIONS = [pytest.param(V31, id="3.1"), pytest.param(V311, id="3.1.1"), pytest.param(V5, id="5")]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("ratelimit") / "hookmq.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def broker(file: Path) -> Iterator[Served]:
    path = file
    with serving("-c", str(path)) as served:
        yield served


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_throttled_clients_lose_nothing(
    broker: Served, version: MQTTProtocolVersion, qos: int
) -> None:
    port = broker.ports["slow"]
    with (
        Client(port, f"r{version}{qos}") as receiver,
        Client(port, f"s{version}{qos}", version) as sender,
    ):
        receiver.subscribe(f"t/{version}/{qos}", 2)
        sent = [b"%d" % number for number in range(60)]
        for payload in sent:
            sender.post(f"t/{version}/{qos}", payload, qos)
        assert receiver.payloads(60) == sent
        codes = [sender.pubacks.get(timeout=60)[1] for _ in sent]
        assert codes == [0] * 60


def test_more_than_is_held_stays_on_the_wire(broker: Served) -> None:
    port = broker.ports["slow"]
    with Client(port, "big-r") as receiver, Client(port, "big-s") as sender:
        receiver.subscribe("big", 0)
        sent = [
            b"%d" % number + bytes(4000) for number in range(200)
        ]  # thrice `max_held_inbound_bytes`
        for payload in sent:
            sender.post("big", payload)
        sender.disconnect()  # said behind them, and heard when its turn comes
        assert receiver.payloads(200) == sent


def ask(broker: Served, method: str, path: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", broker.ports["http"], timeout=60)
    with closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_refused_and_then_shut_out(broker: Served) -> None:
    port = broker.ports["strict"]
    client = Client(port, "strict", V5)
    client.connect()
    codes = [client.publish("t", b"", 1) for _ in range(6)]
    assert codes == [0x10] * 3 + [0x97] * 3
    # The answer may be there, and the connection closed, before paho says what became of the message.
    client.paho.publish("t", b"", 0)
    assert client.ends.get(timeout=60) == 0x96
    client.paho.loop_stop()
    again = Client(port, "strict", V5)
    assert again.connect()[0] == 0x8A
    again.paho.loop_stop()
    status, body = ask(broker, "GET", "/plugins/strict/bans")
    (ban,) = json.loads(body)["bans"]
    assert (status, ban["kind"], ban["name"]) == (200, "client", "strict")
    assert ask(broker, "DELETE", f"/plugins/strict/bans/{ban['id']}")[0] == 204
    assert ask(broker, "DELETE", f"/plugins/strict/bans/{ban['id']}")[0] == 404
    with Client(port, "strict", V5) as client:  # and what was used up still is
        assert client.publish("t", b"", 1) == 0x97
    metrics = ask(broker, "GET", "/metrics")[1].decode()
    assert 'outcome="rejected",plugin="strict"} 4' in metrics


def test_a_reload_forgets_nothing(broker: Served, file: Path) -> None:
    with Client(broker.ports["strict"], "reload", V5) as client:
        for _ in range(3):
            assert client.publish("t", b"", 1) == 0x10
        file.write_text(CONFIG.replace("{rate: 3/h, mode", "{rate: 30/h, mode"))
        broker.signal(SIGHUP)
        broker.wait_for("config.reloaded")
        assert client.publish("t", b"", 1) == 0x97  # all of it was used, and all of it is
        file.write_text(CONFIG.replace("3/h, mode: reject", "30/s"))
        broker.signal(SIGHUP)
        broker.wait_for("config.reloaded")
        # Another kind of limit may not go by another name: of an hour's use a second's is left.
        assert client.publish("t", b"", 1) == 0x10


def test_too_many_connections(broker: Served) -> None:
    port = broker.ports["door"]
    for name in ("a", "b"):
        with Client(port, name, V5):
            pass
    third = Client(port, "c", V5)
    assert third.connect()[0] == 0x9F
    third.paho.loop_stop()
