"""Test a broker process with real clients. A revoked permission ends the subscriptions granted
under it.
"""

import signal
from pathlib import Path

import pytest
from paho.mqtt.client import MQTTMessage
from recording import V5, V311, WAIT, Client
from serving import Served, serving

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


def content(message: MQTTMessage) -> tuple[str, bytes]:
    return message.topic, bytes(message.payload)


def client(served: Served, name: str, version: int, will: str = "") -> Client:
    return Client(
        served.ports["tcp"],
        name,
        V5 if version == 5 else V311,
        will=(will, b"gone", 1, False) if will else None,
        username=name,
    )


@pytest.mark.parametrize("version", [4, 5])
def test_revoked_rights_end_what_was_granted(folder: Path, version: int) -> None:
    with serving("-c", str(folder / "hookmq.yaml")) as served:
        ann = client(served, "ann", version, "secret/will")
        with ann, client(served, "pub", 5) as pub:
            assert pub.subscribe("secret/will", 1) == 1
            assert ann.subscribe("secret/+", 1) == 1
            assert pub.publish("secret/1", b"retained", 1, True) == 0
            assert content(ann.message()) == ("secret/1", b"retained")
            write(folder, AFTER)
            served.wait_for("acl.loaded")
            code = ann.ends.get(timeout=WAIT)
            assert code == 0x87 or version == 4
            assert served.wait_for("authz.denied")["rule"] == "acl: acl.yaml:2"
            with client(served, "ann", version) as again:
                # nothing: no retained message, and no will came to `pub`
                refused = again.subscribe("secret/1", 1)
                assert refused == (0x87 if version == 5 else 0x80)
                assert again.subscribe("#", 1) == refused
                assert again.subscribe("open/#", 1) == 1
                assert pub.publish("secret/1", b"x", 1) == 0x10
                assert pub.publish("open/1", b"y", 1) == 0
                assert content(again.message()) == ("open/1", b"y")
            assert pub.publish("secret/will", b"mine", 1) == 0
            assert content(pub.message()) == ("secret/will", b"mine")


def test_a_signal_takes_the_new_file_at_once(folder: Path) -> None:
    config = folder / "hookmq.yaml"
    config.write_text(config.read_text().replace("100ms", "0"))
    with serving("-c", str(config)) as served, client(served, "ann", 5) as ann:
        assert ann.publish("secret/1", b"x", 1) == 0x10
        write(folder, AFTER)
        served.signal(signal.SIGHUP)
        served.wait_for("acl.loaded")
        assert ann.publish("secret/1", b"x", 1) == 0x87
