"""A broker process and real clients: rights that are taken away end what was granted."""

import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from serving import Served, serving

WAIT = 60.0
BEFORE = """\
rules:
  - {allow: [publish, subscribe], who: {user: [ann, pub]}, topic: "#"}
"""
AFTER = """\
rules:
  - {deny: all, who: {user: ann}, topic: secret/#}
  - {allow: [publish, subscribe], who: {user: [ann, pub]}, topic: "#"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "acl.yaml").write_text(BEFORE)
    (tmp_path / "hookmq.yaml").write_text(
        "version: 1\n"
        "listeners: [{name: tcp, bind: '127.0.0.1:0'}]\n"
        "auth: {default: allow}\n"
        f"plugins: [{{use: acl_file, id: acl, config: {{path: {tmp_path}/acl.yaml, reload_interval: 100ms}}}}]\n"
    )
    return tmp_path


def write(folder: Path, text: str) -> None:
    new = folder / "new"
    new.write_text(text)
    new.replace(folder / "acl.yaml")


class Client:
    """A paho client whose callbacks can be waited for."""

    def __init__(self, served: Served, name: str, version: int, will: str = "") -> None:
        protocol = mqtt.MQTTv5 if version == 5 else mqtt.MQTTv311
        self.told: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        made = mqtt.Client(CallbackAPIVersion.VERSION2, name, protocol=protocol)
        if will:
            made.will_set(will, b"gone", 1)
        made.username_pw_set(name)
        made.reconnect_delay_set(3600, 3600)
        told = self.told
        made.on_connect = lambda c, u, f, code, p: told.put(("connect", code.value))
        made.on_disconnect = lambda c, u, f, code, p: told.put(("disconnect", code.value))
        made.on_message = lambda c, u, m: told.put(("message", (m.topic, m.payload)))
        made.on_subscribe = lambda c, u, m, codes, p: told.put(
            ("subscribe", [x.value for x in codes])
        )
        made.on_publish = lambda c, u, m, code, p: told.put(("publish", code.value))
        self.mqtt = made
        made.connect("127.0.0.1", served.ports["tcp"])
        made.loop_start()
        assert self.next("connect") == 0

    def next(self, kind: str) -> Any:
        """What the next callback told, which must be of that kind."""
        found, value = self.told.get(timeout=WAIT)
        assert found == kind, (found, value)
        return value

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> int:
        self.mqtt.publish(topic, payload, 1, retain)
        code: int = self.next("publish")
        return code

    def subscribe(self, filter: str) -> list[int]:
        self.mqtt.subscribe(filter, 1)
        codes: list[int] = self.next("subscribe")
        return codes

    def stop(self) -> None:
        self.mqtt.disconnect()
        self.mqtt.loop_stop()


@contextmanager
def connected(*clients: Client) -> Iterator[None]:
    try:
        yield
    finally:
        for client in clients:
            client.stop()


@pytest.mark.parametrize("version", [4, 5])
def test_revoked_rights_end_what_was_granted(folder: Path, version: int) -> None:
    with serving("-c", str(folder / "hookmq.yaml")) as served:
        ann = Client(served, "ann", version, "secret/will")
        pub = Client(served, "pub", 5)
        with connected(ann, pub):
            assert pub.subscribe("secret/will") == [1]
            assert ann.subscribe("secret/+") == [1]
            assert pub.publish("secret/1", b"retained", True) == 0
            assert ann.next("message") == ("secret/1", b"retained")
            write(folder, AFTER)
            served.wait_for("acl.loaded")
            code = ann.next("disconnect")
            assert code == 0x87 or version == 4
            assert served.wait_for("authz.denied")["rule"] == "acl: acl.yaml:2"
            again = Client(served, "ann", version)
            with connected(again):
                # nothing: no retained message, and no will came to `pub`
                refused = again.subscribe("secret/1")
                assert refused == [0x87 if version == 5 else 0x80]
                assert again.subscribe("#") == refused
                assert again.subscribe("open/#") == [1]
                assert pub.publish("secret/1", b"x") == 0x10
                assert pub.publish("open/1", b"y") == 0
                assert again.next("message") == ("open/1", b"y")
            pub.mqtt.publish("secret/will", b"mine", 1)
            told = {pub.told.get(timeout=WAIT) for _ in range(2)}
            assert told == {("publish", 0), ("message", ("secret/will", b"mine"))}


def test_a_signal_takes_the_new_file_at_once(folder: Path) -> None:
    config = folder / "hookmq.yaml"
    config.write_text(config.read_text().replace("100ms", "0"))
    with serving("-c", str(config)) as served:
        ann = Client(served, "ann", 5)
        with connected(ann):
            assert ann.publish("secret/1", b"x") == 0x10
            write(folder, AFTER)
            served.signal(signal.SIGHUP)
            served.wait_for("acl.loaded")
            assert ann.publish("secret/1", b"x") == 0x87
