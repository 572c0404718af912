"""Real clients over TCP to a broker of its own: throttled, refused, shut out."""

from collections.abc import Iterator
from pathlib import Path

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
auth: {default: allow}
authz: {default: allow}
plugins:
  - use: ratelimit
    listeners: [slow]
    config: {limits: [{rate: 100/s, burst: 20}, {what: deliveries, rate: 200/s}]}
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
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path: Path = tmp_path_factory.mktemp("ratelimit") / "hookmq.yaml"
    path.write_text(CONFIG)
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
        codes = [sender.pubacks.get(timeout=10)[1] for _ in sent]
        assert codes == [0] * 60


def test_refused_and_then_shut_out(broker: Served) -> None:
    port = broker.ports["strict"]
    client = Client(port, "strict", V5)
    client.connect()
    codes = [client.publish("t", b"", 1) for _ in range(6)]
    assert codes == [0x10] * 3 + [0x97] * 3
    client.post("t", b"", 0)
    assert client.ends.get(timeout=10) == 0x96
    client.paho.loop_stop()
    again = Client(port, "strict", V5)
    assert again.connect()[0] == 0x8A
    again.paho.loop_stop()


def test_too_many_connections(broker: Served) -> None:
    port = broker.ports["door"]
    for name in ("a", "b"):
        with Client(port, name, V5):
            pass
    third = Client(port, "c", V5)
    assert third.connect()[0] == 0x9F
    third.paho.loop_stop()
