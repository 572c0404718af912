"""Test the source engine in broker processes, with a source that reads a file."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from bridging import Client, sink, source, until
from hookmq.config_api import bind_values
from hookmq.mqtt_api import EMPTY, Properties
from hookmq.plugin import ConfigError
from hookmq_sinks.record import Record
from hookmq_sinks.source import Incoming
from hookmq_sinks.source_config import SourceConfig, find_source
from hookmq_sinks.source_message import MessageMaker, PublishConfig
from hookmq_sinks.source_wire import decode_messages, encode_frame, encode_message, split_identity
from mosquitto import Mosquitto
from ports import free_port
from serving import serving


def test_messages_survive_the_socket() -> None:
    full = Properties(content_type="a", user_property=(("a", "b"),), message_expiry_interval=3)
    messages = [
        Incoming("t/a", b"one"),
        Incoming("t/b", b"", 2, True, full, ("7", "x=y")),
        Incoming("t/ü", b"\x00" * 100_000, 1, False, full),
    ]
    data = encode_frame(encode_message(one) for one in messages)[5:]
    one, two, three = decode_messages(data)
    assert one == ("t/a", b"one", 0, False, EMPTY)
    assert two[:4] == ("t/b", b"", 2, True)
    assert two[4].user_property == (("a", "b"), ("hookmq-source-mark", "7=x=y"))
    assert (two[4].content_type, two[4].message_expiry_interval) == ("a", 3)
    assert three == ("t/ü", b"\x00" * 100_000, 1, False, full)


def test_mistakes_are_reported() -> None:
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"name": "a/b"}, "is not a name"),
        ({"driver": "mqt"}, "did you mean mqtt?"),
        ({"origin": {"addresses": ["x"]}}, "broker"),
        ({"retry_first": 9.0, "retry_longest": 1.0}, "retry_longest: less than retry_first"),
    ]
    for given, message in mistakes:
        with pytest.raises(ConfigError) as caught:
            bind_values(SourceConfig, {**source(1), **given})
        assert message in f"{caught.value} {getattr(caught.value, 'hint', '')}"


def write(folder: Path, rules: str = "", **sinks: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "hookmq.yaml"
    plugins: list[dict[str, Any]] = [
        {"use": "storage", "config": {"path": str(folder / "data")}},
        {"use": "sinks", "config": {"path": str(folder / "sinks"), **sinks}},
    ]
    if rules:
        (folder / "acl.yaml").write_text(rules)
        plugins.append({"use": "acl_file", "config": {"path": str(folder / "acl.yaml")}})
    text = {
        "version": 1,
        "listeners": [{"name": "tcp", "bind": "127.0.0.1:0"}],
        "auth": {"default": "allow"},
        "authz": {"default": "allow"},
        "plugins": plugins,
    }
    path.write_text(json.dumps(text))
    return str(path)


@pytest.mark.slow
def test_what_rules_forbid_is_a_dead_letter_and_the_rest_arrives(tmp_path: Path) -> None:
    remote = Mosquitto(tmp_path / "remote")
    rules = """rules:
  - {deny: publish, who: {user: "source:inward"}, topic: t/secret}
  - {allow: all, topic: t/#}
"""
    far = Client(remote.port, "far")
    with serving("-c", write(tmp_path / "a", rules, sources=[source(remote.port)])) as served:
        served.wait_for("sources.available")
        near = Client(served.ports["tcp"], "near", "t/+", 1)
        far.publish("t/a", "one")
        far.publish("t/secret", "two")
        far.publish("t/secret", "three", 2)
        far.publish("t/a", "four", 2)
        until(lambda: near.payloads == ["one", "four"])
        told = served.wait_for("sources.messages_refused")
        assert told["topic"] == "t/secret"
        assert "not authorized" in told["reason"]
        folder = tmp_path / "a/sinks/inward/dead-letters"
        until(lambda: b"".join(one.read_bytes() for one in folder.glob("*")).count(b"\n") == 2)
        near.close()
    far.close()
    remote.stop()


@pytest.mark.slow
def test_messages_wait_while_a_sink_is_full(tmp_path: Path) -> None:
    """The broker's sink is full because its target is down. The remote broker holds back further messages."""
    remote = Mosquitto(tmp_path / "remote", "max_queued_messages 0", "max_inflight_messages 100")
    down = free_port()
    out = {**sink(down), "max_bytes": 1 << 16, "topics": ["t/#"]}
    far, got = Client(remote.port, "far"), None
    with serving("-c", write(tmp_path / "a", sinks=[out], sources=[source(remote.port)])) as served:
        served.wait_for("sources.available")
        for at in range(200):
            far.publish("t/a", f"{at} ".ljust(1000))
        target = Mosquitto(tmp_path / "target", port=down)
        got = Client(down, "got", "t/#", 1)
        until(lambda: len(set(got.payloads)) == 200, 60)
        order = [int(one.split()[0]) for one in dict.fromkeys(got.payloads)]
        assert order == list(range(200))
    got.close()
    target.stop()
    far.close()
    remote.stop()


@pytest.mark.parametrize("name", ["http", "kafka", "nats", "postgres", "rabbitmq", "redis"])
def test_every_setting_is_in_the_reference(name: str) -> None:
    """The reference has a table row for each setting, both in the section about each source and in the section
    `publish`.
    """
    text = (Path(__file__).parents[1] / "SOURCES-REFERENCE.md").read_text()
    sections = {one.split("\n", 1)[0]: one for one in text.split("\n## ")[1:]}
    settings: Any = find_source(name).Settings
    for title, kind in ((name, settings), ("publish", PublishConfig)):
        rows = [one for one in sections[title].splitlines() if one.startswith("| ")]
        named = {word for row in rows for word in re.findall(r"`(\w+)`", row.split("|")[1])}
        assert {one.name for one in fields(kind)} <= named


def test_a_message_that_cannot_be_encoded_is_refused() -> None:
    for message in (
        Incoming("t", b"", properties=Properties(content_type="\ud800")),
        Incoming("t", b"", properties=Properties(user_property=(("k", "v" * 70_000),))),
        Incoming("t\0", b""),
    ):
        with pytest.raises(ValueError, match="Error"):
            encode_message(message)


def test_an_origin_cannot_choose_mark_or_identity() -> None:
    pairs = (("hookmq-source-identity", "admin"), ("hookmq-source-mark", "a=b"), ("k", "v"))
    sent = Incoming("t", b"", properties=Properties(user_property=pairs))
    (one,) = decode_messages(encode_frame([encode_message(sent)])[5:])
    assert split_identity(one) == ("", one)
    assert one[4].user_property == (("k", "v"),)
    sent.identity = "erp"
    (one,) = decode_messages(encode_frame([encode_message(sent)])[5:])
    identity, bare = split_identity(one)
    assert (identity, bare[4].user_property) == ("erp", (("k", "v"),))


@pytest.mark.parametrize(
    ("topic", "filters"),
    [
        ("a/b", ["a/b"]),
        ("a/${property.x}/b", ["a/+/b"]),
        ("a/x-${key}", ["a/+"]),
        ("a/${topic}/b", ["a/#"]),
        ("${payload.topic}", ["#"]),
        ("a/${time.%Y/%m}", ["a/#"]),
    ],
)
def test_filters_match_the_topics_of_a_template(topic: str, filters: list[str]) -> None:
    assert list(PublishConfig(topic).filters()) == filters


def test_topics_are_safe() -> None:
    maker = MessageMaker(PublishConfig("a/${property.x}"))
    for value, ok in (
        ("b", True),
        ("b/c", False),
        ("", False),
        ("+", False),
        ("#", False),
        ("\0", False),
    ):
        found = maker.incoming(Record("1", 0, "s", b"", user_properties=(("x", value),)))
        assert bool(found.problem) != ok, value
    assert "no value for ${property.x}" in maker.incoming(Record("1", 0, "s", b"")).problem
    alone = MessageMaker(PublishConfig("${property.x}"))
    for value, ok in (("b/c", True), ("$SYS/a", False), ("a/#", False), ("", False)):
        found = alone.incoming(Record("1", 0, "s", b"", user_properties=(("x", value),)))
        assert bool(found.problem) != ok, value
    dollar = MessageMaker(PublishConfig("$site/${property.x}", dollar_topics=True))
    found = dollar.incoming(Record("1", 0, "s", b"", user_properties=(("x", "a"),)))
    assert (found.topic, found.problem) == ("$site/a", "")


def test_a_value_that_is_not_allowed_is_a_problem() -> None:
    maker = MessageMaker(
        PublishConfig("a", qos="${property.q}", retain="${property.r}", decode="json")
    )

    def make(payload: bytes, **values: str) -> str:
        given = tuple({"q": "1", "r": "false", **values}.items())
        return maker.incoming(Record("1", 0, "s", payload, user_properties=given)).problem

    assert make(b"1") == ""
    assert "qos: '3' is not one of" in make(b"1", q="3")
    assert "retain: 'maybe' is not one of" in make(b"1", r="maybe")
    assert "not JSON" in make(b"{")
