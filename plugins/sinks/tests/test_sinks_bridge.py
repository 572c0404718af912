"""Test bridges in broker processes: to and from mosquitto, and between two HookMQ brokers in both directions."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from bridging import Client, both_ways, new_properties, properties_of, sink, source, until, write
from mosquitto import Mosquitto
from paho.mqtt.packettypes import PacketTypes
from ports import free_port
from serving import serving

pytestmark = pytest.mark.slow


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Mosquitto]:
    server = Mosquitto(tmp_path / "remote")
    yield server
    server.stop()


def test_messages_come_from_mosquitto(tmp_path: Path, remote: Mosquitto) -> None:
    far = Client(remote.port, "far")
    far.publish("t/kept", "kept", retain=True)
    with serving("-c", write(tmp_path / "a", 0, sources=[source(remote.port)])) as served:
        near = Client(served.ports["tcp"], "near", "t/#", 1)
        until(lambda: near.payloads == ["kept"])
        properties = new_properties(PacketTypes.PUBLISH)
        properties.ContentType = "text/plain"
        properties.UserProperty = ("a", "b")
        far.publish("t/a", "one", 1, properties=properties)
        far.publish("t/a", "two", 2)
        far.publish("t/a", "three", 0)
        until(lambda: len(near.messages) == 4)
        assert near.payloads == ["kept", "one", "two", "three"]
        one = near.messages[1]
        assert properties_of(one).ContentType == "text/plain"
        name = f"127.0.0.1:{remote.port}"
        assert properties_of(one).UserProperty == [("a", "b"), ("hookmq-bridge-path", name)]
        near.close()
    far.close()


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_messages_go_to_mosquitto(tmp_path: Path, remote: Mosquitto, protocol: str) -> None:
    far = Client(remote.port, "far", "hq/#")
    rule = {"pattern": "#", "qos": 2, "local_prefix": "t/", "remote_prefix": "hq/plant/"}
    config = write(tmp_path / "a", 0, sinks=[sink(remote.port, protocol=protocol, rules=[rule])])
    with serving("-c", config) as served:
        near = Client(served.ports["tcp"], "near")
        for number in range(50):
            near.publish(f"t/{number % 3}", str(number), 1)
        until(lambda: len(far.messages) == 50)
        assert far.payloads == [str(number) for number in range(50)]
        assert {one.topic for one in far.messages} == {"hq/plant/0", "hq/plant/1", "hq/plant/2"}
        near.close()
    far.close()


def test_a_bridge_both_ways_makes_no_loop(tmp_path: Path, remote: Mosquitto) -> None:
    far = Client(remote.port, "far", "t/#", 1)
    with serving("-c", both_ways(tmp_path / "a", 0, remote.port, "a", "b")) as served:
        served.wait_for("sources.available")
        near = Client(served.ports["tcp"], "near", "t/#", 1)
        expected = []
        for number in range(20):
            near.publish("t/a", f"near {number}")
            far.publish("t/b", f"far {number}")
            expected += [f"near {number}", f"far {number}"]
        until(lambda: len(far.messages) >= 40 and len(near.messages) >= 40)
        near.publish("t/a", "end")
        far.publish("t/b", "end")
        until(lambda: far.payloads.count("end") == near.payloads.count("end") == 2)
        assert sorted(near.payloads) == sorted(far.payloads) == sorted([*expected, "end", "end"])
        near.close()
    far.close()


def test_two_brokers_that_send_to_each_other_make_no_loop(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    a = write(tmp_path / "a", ports[0], sinks=[sink(ports[1], "a", remote="b")])
    b = write(tmp_path / "b", ports[1], sinks=[sink(ports[0], "b", remote="a")])
    with serving("-c", a), serving("-c", b):
        near, far = Client(ports[0], "near", "t/#", 1), Client(ports[1], "far", "t/#", 1)
        for number in range(20):
            near.publish("t/a", f"near {number}")
            far.publish("t/b", f"far {number}")
        until(lambda: len(far.messages) >= 40 and len(near.messages) >= 40)
        near.publish("t/a", "end")
        far.publish("t/b", "end")
        until(lambda: far.payloads.count("end") == near.payloads.count("end") == 2)
        assert len(set(near.payloads)) == len(near.payloads) - 1 == 41
        assert sorted(near.payloads) == sorted(far.payloads)
        near.close()
        far.close()
