"""Test mistakes by clients and operators. Each mistake is answered with a reason code and a text. Nothing is lost, and
other queues are not affected.
"""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hookmq.mqtt_api import Puback, Publish, Suback
from hookmq.plugin import ConfigError, PluginError, StoreError
from hookmq.storage_api import PutState
from hookmq_queues.plugin import QueuesPlugin
from hookmq_queues.queue import SeekError
from hookmq_queues.storage import MessageLog
from hookmq_testing import Harness, MemoryClient, make_plugin
from hookmq_toolkit import durable_files
from hookmq_toolkit.segment_log import log as segment_log

EXPLICIT = {"name": "a", "settle": "explicit"}
QUEUES: tuple[dict[str, Any], ...] = (
    {"name": "jobs", "groups": [EXPLICIT, {"name": "b", "settle": "explicit"}, "plain"]},
    {"name": "other"},
    {"name": "log", "type": "stream"},
)
BIG = 60_000


class Wrong(NamedTuple):
    """A client's mistake, and the code and text expected in response. The mistake is a PUBLISH, or a SUBSCRIBE if
    `subscribe` is set.
    """

    topic: str
    code: int
    text: str
    properties: tuple[tuple[str, str], ...] = ()
    subscribe: bool = False
    who: str = "consumer"


def ids(*values: str, **more: str) -> tuple[tuple[str, str], ...]:
    return (*(("message-id", one) for one in values), *more.items())


ACK = "$queue/jobs/$ack"
MISTAKES = (
    Wrong("$queue/none", 0x90, "there is no queue 'none'"),
    Wrong("$queue/none/$ack", 0x90, "there is no queue 'none'", ids("none:0")),
    Wrong("$queue/", 0x90, "there is no queue ''"),
    Wrong("$queue/jobs/$drop", 0x90, "levels of a queue's topic must not start with $"),
    Wrong("$queue/none", 0x8F, "there is no queue 'none'", subscribe=True),
    Wrong("$queue/#", 0x8F, "a subscription names one queue", subscribe=True),
    Wrong("$share/c/$queue/jobs", 0x8F, "no group 'c'", subscribe=True),
    Wrong(ACK, 0x99, "message-id is missing"),
    Wrong(ACK, 0x99, "the property message-id is 'seven'", ids("seven")),
    Wrong(ACK, 0x99, "the property message-id is 'jobs:-1'", ids("jobs:-1")),
    Wrong(ACK, 0x99, "the range ends before it begins", ids("jobs:3-2")),
    Wrong(ACK, 0x99, "is not a message of the queue jobs", ids("other:0")),
    Wrong(ACK, 0x99, "has no group 'c'", ids("jobs:0", group="c")),
    Wrong(ACK, 0x97, "too many messages", ids("jobs:0-999999999999")),
    Wrong(ACK, 0x83, "jobs:4", ids("jobs:4")),  # beyond the end
    Wrong(ACK, 0x83, "jobs:0", ids("jobs:0")),  # settled already
    Wrong(ACK, 0x87, "held by another consumer", ids("jobs:1"), who="second"),
    Wrong(ACK, 0x87, "does not consume the queue jobs in the group b", ids("jobs:1", group="b")),
    Wrong(ACK, 0x87, "does not consume the queue jobs", ids("jobs:1"), who="stranger"),
    Wrong(ACK, 0x83, "settled by PUBACK", ids("jobs:0"), who="plain"),
    Wrong("$queue/jobs/$nack", 0x99, "delay is 'soon'", ids("jobs:1", delay="soon")),
    Wrong("$queue/jobs/$nack", 0x99, "delay is '-1'", ids("jobs:1", delay="-1")),
    Wrong("$queue/jobs/$reject", 0x99, "the property reason is longer", ids("jobs:1", reason="x" * 257)),
)  # fmt: skip


def take(client: MemoryClient) -> list[Publish]:
    """Take the messages that a client has received."""
    client.harness.settle()
    found = [one for one in client.unread if isinstance(one, Publish)]
    for one in found:
        client.unread.remove(one)
    return found


def offsets(messages: list[Publish]) -> list[int]:
    return [int(dict(one.properties.user_property or ())["offset"]) for one in messages]


def test_every_mistake_of_a_client_is_refused_and_changes_nothing(make: Any) -> None:
    harness: Harness = make(queues=QUEUES)
    clients = {
        name: harness.connect(name)
        for name in ("publisher", "consumer", "second", "stranger", "plain")
    }
    filters = {"consumer": "$share/a/$queue/jobs", "plain": "$share/plain/$queue/jobs"}
    for name, filter in filters.items():
        assert clients[name].subscribe(filter, 1).codes == (1,)
    publisher, consumer = clients["publisher"], clients["consumer"]
    for number in range(4):
        publisher.publish("$queue/jobs", b"%d" % number, 1, expect=0)
    publisher.publish("$queue/other", b"kept", 1, expect=0)
    assert offsets(take(consumer)) == [0, 1, 2, 3]
    assert clients["second"].subscribe("$share/a/$queue/jobs", 1).codes == (1,)
    consumer.publish(ACK, b"", 1, user_property=ids("jobs:0"), expect=0)
    instance = harness.hooks.instance("queues")
    assert instance is not None
    assert isinstance(instance.plugin, QueuesPlugin)
    queues = instance.plugin.queues
    before = {name: (one.depth, one.log.end) for name, one in queues.items()}
    for wrong in MISTAKES:
        client = clients[wrong.who]
        if wrong.subscribe:
            client.send_subscribe(wrong.topic, 1)
            answer: Any = client.expect(Suback)
            found = (answer.codes[0], answer.properties.reason_string or "")
        else:
            client.publish(wrong.topic, b"", 1, user_property=wrong.properties or None)
            answer = client.expect(Puback)
            found = (answer.code, answer.properties.reason_string or "")
        assert found[0] == wrong.code, (wrong, found)
        assert wrong.text in found[1], (wrong, found)
        assert {name: (one.depth, one.log.end) for name, one in queues.items()} == before
    consumer.drop()
    harness.settle()
    assert offsets(take(clients["second"])) == [1, 2, 3]
    assert clients["stranger"].subscribe("$queue/other", 1).codes == (1,)
    assert [one.payload for one in take(clients["stranger"])] == [b"kept"]


def test_an_old_client_is_refused_without_a_text(make: Any) -> None:
    harness: Harness = make(queues=QUEUES)
    old = harness.connect("old", 4)
    old.send_subscribe("$queue/none", 1)
    assert old.expect(Suback).codes == (0x80,)


@pytest.mark.parametrize(
    ("position", "text"),
    [
        ("2", "offset 2 is beyond the end of log: the offset of the next message is 1"),
        ("-1", "'-1' is not a position"),
        ("99999999999999999999", "'99999999999999999999' is not a position"),
        ("soon", "'soon' is not a position"),
        ("@99999999999", "the position is a time in the future"),
    ],
)
def test_a_group_cannot_be_moved_to_a_wrong_position(make: Any, position: str, text: str) -> None:
    harness: Harness = make(queues=QUEUES)
    harness.connect("p").publish("$queue/log", b"", 1, expect=0)
    instance = harness.hooks.instance("queues")
    assert instance is not None
    plugin: Any = instance.plugin
    with pytest.raises(SeekError, match=text):
        harness.clock.run(plugin.queues["log"].seek("default", position))
    with pytest.raises(SeekError, match="no group 'x'"):
        harness.clock.run(plugin.queues["log"].seek("x", "first"))
    with pytest.raises(SeekError, match="jobs is not a stream"):
        harness.clock.run(plugin.queues["jobs"].seek("a", "first"))


@pytest.mark.parametrize(
    ("queue", "text"),
    [
        ({"bindings": ["$queue/#"]}, "would capture messages of queues"),
        ({"bindings": ["$queue/other/#"]}, "would capture messages of queues"),
        ({"bindings": ["a/#/b"]}, "is not a topic filter"),
        ({"bindings": ["$share/g/a"]}, "cannot use a shared subscription"),
        ({"groups": ["a/b"]}, "a/b"),
        ({"type": "fast"}, "fast"),
        ({"dead_letter": "none", "delivery_limit": 2}, "queues: jobs: dead_letter: there is no queue 'none'"),
        ({"dead_letter": "jobs", "delivery_limit": 2}, "queues: jobs: dead_letter: messages of jobs would return to it"),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_refused(tmp_path: Path, queue: Any, text: str) -> None:
    config = {"path": str(tmp_path), "queues": [{"name": "jobs", **queue}]}
    with pytest.raises(ConfigError, match=text):
        make_plugin(QueuesPlugin, config, "queues")


# --- the disk --------------------------------------------------------------------------------------------------------


def start(make: Any, count: int = 0, **queue: Any) -> tuple[Harness, MemoryClient]:
    """Start a broker with the queues `jobs` and `other`, and publish `count` large messages to the first."""
    harness: Harness = make(queues=[{"name": "jobs", **queue}, {"name": "other"}])
    publisher = harness.connect("publisher")
    for number in range(count):
        publisher.publish("$queue/jobs", b"%d " % number + bytes(BIG), 1, expect=0)
    return harness, publisher


def everything(harness: Harness, queue: str = "jobs") -> list[bytes]:
    """Return the beginnings of all messages in a queue."""
    client = harness.connect(f"{queue}-reader")
    client.subscribe(f"$queue/{queue}", 1)
    harness.advance(5)
    return [one.payload[:1] for one in take(client)]


def test_a_full_disk_loses_nothing(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk is full, the broker stops. After a restart, it still has all acknowledged messages."""
    harness, publisher = start(make, 2)
    publisher.publish("$queue/other", b"o", 1, expect=0)

    def full(file: int, data: bytes) -> None:
        write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    write = durable_files.write_all
    with monkeypatch.context() as patched:
        patched.setattr(segment_log, "write_all", full)
        publisher.publish("$queue/jobs", b"2", 1)
        harness.settle()
        harness.advance(1)
        assert not [one for one in publisher.unread if isinstance(one, Puback) and not one.code]
        assert "No space left on device" in str(harness.broker.state.failed)
    make.crash(harness)
    harness, publisher = start(make)
    assert everything(harness) == [b"0", b"1"]
    assert everything(harness, "other") == [b"o"]
    publisher.publish("$queue/jobs", b"3", 1, expect=0)


def refuses_to_start(make: Any, text: str) -> None:
    """Check that a broker refuses to start, and why. Then release its folders, as happens when a process ends."""
    config = {"path": str(make.path), "queues": [{"name": "jobs"}, {"name": "other"}]}
    harness = Harness([make_plugin(QueuesPlugin, config, "queues")], store=make.store, start=False)
    with pytest.raises((StoreError, PluginError), match=text):
        harness.start()
    for journal in harness.broker.state.journals:
        assert isinstance(journal, MessageLog)
        journal.close()


def flip(path: Path, at: int) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def segments(make: Any, queue: str = "jobs") -> list[Path]:
    return sorted((make.path / queue).glob("*.segment"))


def test_a_damaged_segment_stops_one_queue_until_it_is_restored(make: Any) -> None:
    harness, _ = start(make, 4, memory=0, max_bytes=1 << 20)
    make.crash(harness)
    first, *others = segments(make)
    assert others
    flip(first, 1000)
    harness, publisher = start(make, memory=0, max_bytes=1 << 20)
    publisher.publish("$queue/other", b"o", 1, expect=0)
    assert everything(harness, "other") == [b"o"]
    assert everything(harness) == []
    (logged,) = harness.logged("queue.unreadable")
    assert (logged["queue"], logged["group"], logged["offset"]) == ("jobs", "default", 0)
    assert "damaged" in str(logged["error"])
    publisher.publish("$queue/jobs", b"4", 1, expect=0)
    flip(first, 1000)
    client = harness.connect("jobs-reader")
    client.subscribe("$queue/jobs", 1)
    harness.advance(5)
    assert [one.payload[:1] for one in take(client)] == [b"0", b"1", b"2", b"3", b"4"]


def test_damage_in_the_last_segment_is_refused_at_the_start(make: Any) -> None:
    harness, _ = start(make, 1)
    publisher = harness.connect("p")
    for _ in range(3):
        publisher.publish("$queue/jobs", b"x" * 500, 1, expect=0)
    make.crash(harness)
    (path,) = segments(make)
    flip(path, 1000)
    refuses_to_start(make, f"{path.name}.*damaged")
    flip(path, 1000)
    assert everything(start(make)[0]) == [b"0", b"x", b"x", b"x"]


@pytest.mark.parametrize("how", ["shorter", "longer", "version", "garbage", "empty"])
def test_a_damaged_state_of_a_group_is_refused_at_the_start(make: Any, how: str) -> None:
    harness, _ = start(make, 2)
    client = harness.connect("c", auto_ack=False)
    client.subscribe("$queue/jobs", 1)
    harness.settle()
    make.crash(harness)
    [place] = [one for one in make.store.plugin_state if one[1] == "group/jobs/default"]
    good: PutState = make.store.plugin_state[place]
    bad: dict[str, Callable[[bytes], bytes]] = {
        "shorter": lambda data: data[:-1],
        "longer": lambda data: data + b"\0",
        "version": lambda data: b"\xff" + data[1:],
        "garbage": lambda data: bytes(range(len(data))),
        "empty": lambda data: b"",
    }
    make.store.plugin_state[place] = good._replace(value=bad[how](good.value))
    refuses_to_start(make, "queue jobs, group default: .*hookmq storage state")
    make.store.plugin_state[place] = good
    assert everything(start(make)[0]) == [b"0", b"1"]


def test_two_brokers_cannot_share_a_folder(make: Any) -> None:
    harness, publisher = start(make, 1)
    config = {"path": str(make.path), "queues": [{"name": "jobs"}, {"name": "other"}]}
    with pytest.raises(StoreError, match=f"{make.path}.* is in use by another process"):
        Harness([make_plugin(QueuesPlugin, config, "queues")])
    publisher.publish("$queue/jobs", b"1", 1, expect=0)
    assert everything(harness) == [b"0", b"1"]
