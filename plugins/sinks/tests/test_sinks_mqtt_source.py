"""Test the `mqtt` source against mosquitto."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from bridging import Client, new_properties
from hookmq.config_api import bind_values
from hookmq.mqtt_api import Publish, Pubrel
from hookmq.plugin import ConfigError
from hookmq_sinks.source import Incoming, SourceContext, SourceUnavailable
from hookmq_sinks.sources.mqtt import BYTES, MqttSource
from mosquitto import Mosquitto
from paho.mqtt.packettypes import PacketTypes
from ports import free_port


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Mosquitto]:
    server = Mosquitto(tmp_path / "remote", "max_inflight_messages 100")
    yield server
    server.stop()


class Marks:
    """A broker's marks, which outlive the source object."""

    def __init__(self) -> None:
        self.stored: dict[str, str] = {}
        self.forgotten: list[str] = []

    async def forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.forgotten.append(key)
            self.stored.pop(key, None)


def make(folder: Path, port: int, marks: Marks | None = None, **origin: Any) -> MqttSource:
    marks = marks or Marks()
    given = {
        "addresses": [f"127.0.0.1:{port}"], "broker": "here", "remote": "hq", "connect_timeout": "5s",
        "rules": [{"pattern": "#", "qos": 2, "local_prefix": "hq/", "remote_prefix": "t/"}], **origin,
    }  # fmt: skip
    context = SourceContext("inward", marks.stored, marks.forget, folder=folder)
    return MqttSource(bind_values(MqttSource.Settings, given), context)


async def take(
    source: MqttSource, count: int, codes: Mapping[int, int] | None = None
) -> list[Incoming]:
    """Read `count` messages and acknowledge them, as the engine would after the commit."""
    found: list[Incoming] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            messages = await source.read()
            for one in messages:
                if one.mark is not None:
                    source.context.marks[one.mark[0]] = one.mark[1]
            found += messages
            await source.acknowledge(messages, [(codes or {}).get(len(found), 0)] * len(messages))
    return found


async def send(client: Client, payload: str, qos: int = 1, topic: str = "t/a", **more: Any) -> None:
    await asyncio.to_thread(client.publish, topic, payload, qos, **more)


async def test_messages_are_renamed_stamped_and_in_order(tmp_path: Path, remote: Mosquitto) -> None:
    far = Client(remote.port, "far")
    await send(far, "kept", retain=True)
    source = make(tmp_path, remote.port)
    await source.open()
    for at in range(20):
        await send(far, str(at), at % 3)
    found = await take(source, 21)
    assert found[0].retain
    assert {one.topic for one in found} == {"hq/a"}
    assert [one.payload for one in found if one.qos == 1][1:] == [
        b"%d" % at for at in range(1, 20, 3)
    ]
    assert [one.payload for one in found if one.qos == 2] == [b"%d" % at for at in range(2, 20, 3)]
    assert all(one.properties.user_property == (("hookmq-bridge-path", "hq"),) for one in found)
    await source.close()
    far.close()


async def test_the_session_keeps_messages_while_the_bridge_is_down(
    tmp_path: Path, remote: Mosquitto
) -> None:
    far = Client(remote.port, "far")
    await send(far, "kept", retain=True)
    marks = Marks()
    source = make(tmp_path, remote.port, marks)
    await source.open()
    await take(source, 1)
    await source.close()
    for at in range(50):
        await send(far, str(at))
    again = make(tmp_path, remote.port, marks)
    await again.open()
    assert [one.payload for one in await take(again, 50)] == [b"%d" % at for at in range(50)]
    await again.close()
    far.close()


async def test_what_was_not_acknowledged_comes_again(tmp_path: Path, remote: Mosquitto) -> None:
    far = Client(remote.port, "far")
    marks = Marks()
    source = make(tmp_path, remote.port, marks)
    await source.open()
    await send(far, "one")
    await send(far, "two", 2)
    first: list[Incoming] = []
    while len(first) < 2:
        first += await source.read()
    await source._link.abort()  # type: ignore[union-attr]
    with pytest.raises(SourceUnavailable):
        await source.read()
    await source.close()
    again = make(tmp_path, remote.port, marks)
    await again.open()
    assert [one.payload for one in await take(again, 2)] == [b"one", b"two"]
    await again.close()
    far.close()


async def test_a_marked_message_is_not_read_again_and_its_mark_is_deleted_after_pubrel(
    tmp_path: Path, remote: Mosquitto
) -> None:
    far = Client(remote.port, "far")
    marks = Marks()
    source = make(tmp_path, remote.port, marks)
    await source.open()
    await send(far, "one", 2)
    (message,) = await source.read()
    assert message.mark is not None
    marks.stored[message.mark[0]] = message.mark[1]  # committed, and then the source dies
    await source._link.abort()  # type: ignore[union-attr]
    await source.close()
    again = make(tmp_path, remote.port, marks)
    await again.open()
    await send(far, "two", 2)
    assert [one.payload for one in await take(again, 1)] == [b"two"]
    assert again.metrics()["repeated"] == 1
    for _ in range(1000):
        if not marks.stored:
            break
        await asyncio.sleep(0.01)
    assert not marks.stored
    assert len(marks.forgotten) == 2
    await again.close()
    far.close()


async def test_a_lost_session_makes_marks_void(tmp_path: Path, remote: Mosquitto) -> None:
    marks = Marks()
    marks.stored["1"] = "1"
    source = make(tmp_path, remote.port, marks)
    await source.open()
    assert marks.stored == {}
    far = Client(remote.port, "far")
    await send(far, "one", 2)  # has the packet id 1
    (message,) = await take(source, 1)
    assert message.mark == ("1", "1")
    await source.close()
    far.close()


async def test_pubcomp_waits_until_the_mark_is_deleted(tmp_path: Path, remote: Mosquitto) -> None:
    marks = Marks()
    source = make(tmp_path, remote.port, marks)
    await source.open()
    marks.stored["7"] = "1"
    sent: asyncio.Queue[bytes] = asyncio.Queue()
    assert source._link is not None
    source._link.send_bytes = sent.put_nowait  # type: ignore[method-assign, assignment]
    deleted = asyncio.Event()
    order: list[str] = []

    async def slow(keys: Iterable[str]) -> None:
        await deleted.wait()
        order.extend(keys)

    object.__setattr__(source.context, "forget", slow)
    source._take(Pubrel(7))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sent.empty()
    deleted.set()
    assert await sent.get() == b"\x70\x02\x00\x07"
    assert order == ["7"]
    await source.close()


async def test_a_message_that_has_been_here_is_dropped(tmp_path: Path, remote: Mosquitto) -> None:
    far = Client(remote.port, "far")
    source = make(tmp_path, remote.port)
    await source.open()
    properties = new_properties(PacketTypes.PUBLISH)
    properties.UserProperty = ("hookmq-bridge-path", "here,hq")
    for qos in (1, 2):
        await send(far, "loop", qos, properties=properties)
    await send(far, "end")
    assert [one.payload for one in await take(source, 1)] == [b"end"]
    assert source.metrics()["loops"] == 2
    await source.close()
    far.close()


async def test_memory_is_bounded_while_nothing_is_read(tmp_path: Path, remote: Mosquitto) -> None:
    far = Client(remote.port, "far")
    source = make(tmp_path, remote.port)
    await source.open()
    for at in range(300):
        await send(far, f"{at} ".ljust(20_000), 0)  # 6 MB
    for _ in range(200):
        if not source._link._reading:  # type: ignore[union-attr]
            break
        await asyncio.sleep(0.01)
    assert not source._link._reading  # type: ignore[union-attr]
    assert source._bytes < 2 * BYTES
    found = await take(source, 60)
    assert [int(one.payload.split()[0]) for one in found] == list(range(len(found)))
    await source.close()
    far.close()


async def test_a_filter_that_is_removed_is_unsubscribed(tmp_path: Path, remote: Mosquitto) -> None:
    far = Client(remote.port, "far")
    marks = Marks()
    source = make(tmp_path, remote.port, marks, rules=[{"pattern": "t/#"}, {"pattern": "u/#"}])
    await source.open()
    await source.close()
    again = make(tmp_path, remote.port, marks, rules=[{"pattern": "t/#"}])
    await again.open()
    await again.close()
    await send(far, "gone", topic="u/a")
    await send(far, "here")
    third = make(tmp_path, remote.port, marks, rules=[{"pattern": "t/#"}])
    await third.open()
    assert [one.payload for one in await take(third, 1)] == [b"here"]
    assert third.metrics()["unwanted"] == 0
    await third.close()
    far.close()


async def test_mqtt_311_uses_the_bridge_bit(tmp_path: Path, remote: Mosquitto) -> None:
    far = Client(remote.port, "far")
    source = make(tmp_path, remote.port, protocol="3.1.1")
    await source.open()
    assert source._link is not None
    source._link.send(Publish("t/own", b"own", 1, False, False, 9))  # not sent back to a bridge
    await send(far, "other", retain=True)
    (one,) = await take(source, 1)
    assert (one.payload, one.retain) == (b"other", True)
    await source.close()
    far.close()


async def test_a_forbidden_filter_and_a_missing_broker_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="connection refused"):
        await make(tmp_path, free_port()).open()
    server = Mosquitto(tmp_path / "remote", anonymous=False)
    source = make(tmp_path, server.port)
    with pytest.raises(SourceUnavailable, match="not authorized") as caught:
        await source.open()
    assert caught.value.permanent
    await source.close()
    server.stop()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rules": []}, "rules: empty"),
        ({"rules": [{"pattern": "a/#"}, {"pattern": "a/b"}]}, "rules: a/# and a/b overlap"),
        ({"addresses": []}, "addresses: empty"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_mistakes_in_settings_are_reported(given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_values(
            MqttSource.Settings,
            {"addresses": ["x"], "broker": "b", "rules": [{"pattern": "t"}], **given},
        )
    assert message in str(caught.value)
