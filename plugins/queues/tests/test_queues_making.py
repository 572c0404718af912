"""Test creating, changing and deleting queues while the broker is running. Operators do this, and clients on
first use.
"""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt_api import Puback, Publish
from hookmq.plugin import StoreError
from hookmq_queues.plugin import QueuesPlugin
from hookmq_testing import Harness, MemoryClient
from hookmq_toolkit.queues import SERVICE, QueueError, QueueManager

Make = Callable[..., Harness]


def plugin_of(harness: Harness) -> QueuesPlugin:
    instance = harness.hooks.instance("queues")
    assert instance is not None
    assert isinstance(instance.plugin, QueuesPlugin)
    return instance.plugin


def manager_of(harness: Harness) -> QueueManager:
    found = plugin_of(harness).offered_services[SERVICE]
    assert isinstance(found, QueueManager)
    return found


def begin(harness: Harness, call: Awaitable[Any]) -> list[Any]:
    """Start awaiting a call. Return a list that will receive its result or error."""
    ended: list[Any] = []
    harness.clock.spawn(call, lambda result, error: ended.append(error or result))
    return ended


def run(harness: Harness, call: Awaitable[Any]) -> Any:
    """Await a call. Return its result, or raise its error."""
    ended = begin(harness, call)
    harness.settle()
    assert ended, "the call has not ended"
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


def refused(harness: Harness, call: Awaitable[Any]) -> tuple[str, str, str]:
    with pytest.raises(QueueError) as raised:
        run(harness, call)
    return raised.value.reason, raised.value.field, str(raised.value)


def payloads(client: MemoryClient) -> list[bytes]:
    client.harness.settle()
    found = [one.payload for one in client.unread if isinstance(one, Publish)]
    client.unread.clear()
    return found


# --- create -------------------------------------------------------------------------------------------------------------


def test_a_queue_is_created_used_and_survives_a_crash(make: Any, tmp_path: Path) -> None:
    harness = make()
    manager = manager_of(harness)
    consumer = harness.connect("c")
    assert consumer.subscribe("$queue/new", 1).codes == (0x8F,)
    publisher = harness.connect("p")
    publisher.publish("$queue/new", b"0", 1, expect=0x90)
    publisher.publish("in/1", b"0", 1, expect=0x10)
    status = run(harness, manager.create_queue("new", {"bindings": ["in/#"], "max_bytes": "1MiB"}))
    assert (status.name, status.made_by, status.max_bytes, status.messages) == (
        "new",
        "operator",
        1 << 20,
        0,
    )
    publisher.publish("$queue/new", b"1", 1, expect=0)
    publisher.publish("in/1", b"2", 1, expect=0)
    assert consumer.subscribe("$queue/new", 1).codes == (1,)
    assert payloads(consumer) == [b"1", b"2"]
    make.crash(harness)

    harness = make()
    status = manager_of(harness).show_queue("new")
    assert (status.made_by, status.settings["bindings"]) == ("operator", ["in/#"])
    consumer = harness.connect("c")
    consumer.subscribe("$queue/new", 1)
    harness.connect("p").publish("in/2", b"3", 1, expect=0)
    assert b"3" in payloads(consumer)
    files = list((tmp_path / "queues" / ".declared").iterdir())
    assert [one.name for one in files] == ["new.json"]
    assert files[0].stat().st_mode & 0o077 == 0


def test_consumers_that_subscribed_before_get_messages(make: Any) -> None:
    """A client may keep its subscription while its queue is deleted and created again."""
    harness = make()
    manager = manager_of(harness)
    run(harness, manager.create_queue("new", {}))
    consumer, publisher = harness.connect("c"), harness.connect("p")
    consumer.subscribe("$queue/new", 1)
    assert run(harness, manager.delete_queue("new", False)) == 0
    run(harness, manager.create_queue("new", {}))
    publisher.publish("$queue/new", b"1", 1, expect=0)
    assert payloads(consumer) == [b"1"]


@pytest.mark.parametrize(
    ("name", "settings", "reason", "field", "text"),
    [
        ("a/b", {}, "invalid", "name", "'a/b' is not a name"),
        ("", {}, "invalid", "name", "'' is not a name"),
        ("..", {}, "invalid", "name", "'..' is not a name"),
        ("x", {"prefetch": 0}, "invalid", "settings", "prefetch: "),
        ("x", {"bindings": ["$queue/#"]}, "invalid", "settings", "bindings: '$queue/#' would capture"),
        ("x", {"dead_letter": "y", "delivery_limit": 1}, "invalid", "settings", "dead_letter: there is no queue 'y'"),
        ("x", {"dead_letter": "x", "delivery_limit": 1}, "invalid", "settings", "would return to it"),
        ("x", {"other": 1}, "invalid", "settings", "other: unknown key"),
        ("x", {"name": "y"}, "invalid", "settings", "cannot be renamed"),
        ("x", {"bindings": {"$file": "/etc/passwd"}}, "invalid", "settings", "$env and $file are only allowed"),
        ("jobs", {}, "conflict", "name", "the queue jobs exists already"),
        ("JOBS", {}, "conflict", "name", "the queue jobs exists already"),
        ("foreign", {}, "conflict", "name", "foreign exists already"),
    ],
)  # fmt: skip
def test_queues_that_cannot_be_created(
    make: Any, tmp_path: Path, name: str, settings: Any, reason: str, field: str, text: str
) -> None:
    harness = make()
    (tmp_path / "queues" / "foreign").mkdir()
    found = refused(harness, manager_of(harness).create_queue(name, settings))
    assert found[:2] == (reason, field)
    assert text in found[2]
    assert list(plugin_of(harness).queues) == ["jobs"]
    assert not list((tmp_path / "queues").glob(".declared/*"))


def test_the_number_of_stored_queues_is_limited(make: Any) -> None:
    harness = make(max_stored=1)
    manager = manager_of(harness)
    run(harness, manager.create_queue("one", {}))
    assert refused(harness, manager.create_queue("two", {}))[::2] == (
        "conflict",
        "1 queues were created while the broker ran: max_stored allows no more",
    )


def test_two_calls_for_one_name(make: Any) -> None:
    harness = make()
    manager = manager_of(harness)
    first = begin(harness, manager.create_queue("new", {}))
    second = begin(harness, manager.create_queue("NEW", {}))
    harness.settle()
    assert first[0].name == "new"
    assert (second[0].reason, "try again" in str(second[0])) == ("conflict", True)


def test_a_disk_error_creates_nothing(make: Any, tmp_path: Path) -> None:
    harness = make()
    (tmp_path / "queues" / ".declared").write_text("a file is in the way")
    assert refused(harness, manager_of(harness).create_queue("new", {}))[0] == "failed"
    assert list(plugin_of(harness).queues) == ["jobs"]
    harness.connect("p").publish("$queue/new", b"", 1, expect=0x90)


# --- what the configuration says ----------------------------------------------------------------------------------------


def test_the_configuration_wins(make: Any) -> None:
    harness = make()
    run(harness, manager_of(harness).create_queue("new", {"prefetch": 1}))
    make.crash(harness)
    harness = make(queues=[{"name": "jobs"}, {"name": "new", "prefetch": 2}])
    status = manager_of(harness).show_queue("new")
    assert (status.made_by, status.settings["prefetch"]) == ("configuration", 2)
    notes = plugin_of(harness).notes
    assert len(notes) == 1
    assert "queue new is configured, so its settings in" in notes[0]
    assert refused(harness, manager_of(harness).delete_queue("new", True))[0] == "conflict"
    make.crash(harness)
    assert manager_of(make()).show_queue("new").settings["prefetch"] == 1


def test_files_that_cannot_be_used_prevent_the_start(make: Any, tmp_path: Path) -> None:
    folder = tmp_path / "queues" / ".declared"
    folder.mkdir(parents=True)
    good = {"version": 1, "made_by": "operator", "deleting": False, "settings": {}}
    for change, text in (
        ({"version": 2}, "unknown version"),
        ({"made_by": "me"}, "is not the description of a queue: made_by"),
        ({"settings": {"prefetch": 0}}, "no longer valid: prefetch"),
        ({"settings": 5}, "is not the description of a queue"),
        (
            {"settings": {"dead_letter": "gone", "delivery_limit": 1}},
            "the queue bad.*no queue 'gone'",
        ),
    ):
        (folder / "bad.json").write_text(json.dumps({**good, **change}))
        with pytest.raises(Exception, match=text):
            make()
    (folder / "bad.json").write_text("{")
    with pytest.raises(Exception, match=r"bad\.json is not the description of a queue"):
        make()


# --- change -------------------------------------------------------------------------------------------------------------


def test_settings_change_at_once_and_are_stored(make: Any) -> None:
    harness = make()
    manager = manager_of(harness)
    run(harness, manager.create_queue("new", {"max_messages": 1, "prefetch": 1}))
    publisher, consumer = harness.connect("p"), harness.connect("c", auto_ack=False)
    publisher.publish("$queue/new", b"1", 1, expect=0)
    publisher.publish("$queue/new", b"2", 1, expect=0x97)
    publisher.publish("late/1", b"", 1, expect=0x10)
    status = run(harness, manager.change_queue("new", {"max_messages": 3, "bindings": ["late/#"]}))
    assert (status.max_messages, status.settings["bindings"], status.settings["prefetch"]) == (
        3,
        ["late/#"],
        1,
    )
    publisher.publish("$queue/new", b"2", 1, expect=0)
    publisher.publish("late/1", b"3", 1, expect=0)
    publisher.publish("late/1", b"4", 1, expect=0x97)
    consumer.subscribe("$queue/new", 1)
    assert payloads(consumer) == [b"1"]
    run(harness, manager.change_queue("new", {"prefetch": 3}))
    assert payloads(consumer) == [b"2", b"3"]
    run(harness, manager.change_queue("new", {"bindings": None}))
    publisher.publish("late/1", b"", 1, expect=0x10)
    make.crash(harness)
    settings = manager_of(make()).show_queue("new").settings
    assert (settings["prefetch"], settings["bindings"], settings["max_messages"]) == (3, [], 3)


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("new", {"groups": ["a"]}, "groups: cannot be changed while the queue exists"),
        ("new", {"type": "stream"}, "type: cannot be changed"),
        ("new", {"prefetch": "many"}, "prefetch: expected"),
        ("jobs", {"prefetch": 1}, "the queue jobs is in the configuration"),
        ("none", {"prefetch": 1}, "there is no queue 'none'"),
    ],
)
def test_changes_that_are_refused(make: Any, name: str, settings: Any, text: str) -> None:
    harness = make()
    run(harness, manager_of(harness).create_queue("new", {}))
    assert text in refused(harness, manager_of(harness).change_queue(name, settings))[2]
    assert manager_of(harness).show_queue("new").settings["prefetch"] == 100


# --- delete -------------------------------------------------------------------------------------------------------------


def test_a_queue_with_messages_is_deleted_only_by_force(make: Any, tmp_path: Path) -> None:
    harness = make()
    manager = manager_of(harness)
    run(harness, manager.create_queue("new", {}))
    publisher = harness.connect("p")
    publisher.publish("$queue/new", b"1", 1, expect=0)
    assert refused(harness, manager.delete_queue("new", False)) == (
        "conflict", "force", "the queue new has 1 unsettled messages",
    )  # fmt: skip
    publisher.publish("$queue/new", b"2", 1, expect=0)
    assert run(harness, manager.delete_queue("new", True)) == 2
    publisher.publish("$queue/new", b"3", 1, expect=0x90)
    publisher.publish("$queue/jobs", b"4", 1, expect=0)
    folders = sorted(one.name for one in (tmp_path / "queues").iterdir())
    assert folders == [".declared", ".delayed", "jobs"]
    assert not list((tmp_path / "queues" / ".declared").iterdir())
    run(harness, manager.create_queue("new", {}))
    assert manager.show_queue("new").end == 0
    make.crash(harness)
    assert manager_of(make()).show_queue("new").messages == 0


def test_a_deletion_does_not_touch_other_queues(make: Any) -> None:
    harness = make(queues=[{"name": "jobs", "bindings": ["a/#"]}])
    manager = manager_of(harness)
    run(harness, manager.create_queue("new", {"bindings": ["a/#"]}))
    publisher, consumer = harness.connect("p"), harness.connect("c", auto_ack=False)
    consumer.subscribe("$queue/new", 1)
    publisher.publish("a/1", b"1", 1, expect=0)
    harness.settle()
    (delivery,) = (one for one in consumer.unread if isinstance(one, Publish))
    run(harness, manager.delete_queue("new", True))
    consumer.ack(delivery)  # too late
    consumer.unread.clear()
    publisher.publish("a/1", b"2", 1, expect=0)
    consumer.subscribe("$queue/jobs", 1)
    assert payloads(consumer) == [b"1", b"2"]


@pytest.mark.parametrize("version", [3, 4])
def test_publishers_that_wait_for_a_full_queue_are_acknowledged_when_it_is_deleted(
    make: Any, version: int
) -> None:
    harness = make()
    manager = manager_of(harness)
    run(harness, manager.create_queue("new", {"max_messages": 1}))
    publisher = harness.connect("p", version)
    publisher.publish("$queue/new", b"1", 1, expect=0)
    publisher.publish("$queue/new", b"2", 1)
    publisher.expect_nothing()
    run(harness, manager.delete_queue("new", True))
    harness.advance(1)
    publisher.expect(Puback)


def test_a_crash_during_a_deletion(make: Any, tmp_path: Path) -> None:
    """If the broker crashes during a deletion, the next start finishes it."""
    harness = make()
    manager = manager_of(harness)
    run(harness, manager.create_queue("new", {}))
    harness.connect("p").publish("$queue/new", b"1", 1, expect=0)
    make.crash(harness)
    path = tmp_path / "queues" / ".declared" / "new.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "deleting": True}))
    harness = make()
    assert list(plugin_of(harness).queues) == ["jobs"]
    assert not path.exists()
    assert not (tmp_path / "queues" / "new").exists()
    assert [one["key"] for one in harness.logged("queue.group_removed")] in (
        [],
        ["group/new/default"],
    )


def test_a_queue_for_dead_letters_is_not_deleted(make: Any) -> None:
    harness = make()
    manager = manager_of(harness)
    run(harness, manager.create_queue("failed", {}))
    run(harness, manager.create_queue("work", {"dead_letter": "failed", "delivery_limit": 1}))
    assert refused(harness, manager.delete_queue("failed", True))[2] == (
        "the dead letters of work go to failed"
    )
    run(harness, manager.delete_queue("work", False))
    run(harness, manager.delete_queue("failed", False))


def test_a_deletion_that_cannot_be_stored_changes_nothing(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = make()
    manager = manager_of(harness)
    run(harness, manager.create_queue("new", {"bindings": ["a"]}))

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hookmq_queues.registry.write_atomically", full)
    assert refused(harness, manager.delete_queue("new", False))[0] == "failed"
    harness.connect("p").publish("a", b"1", 1, expect=0)
    assert manager.show_queue("new").messages == 1


# --- first use ----------------------------------------------------------------------------------------------------------

FIRST: Any = [{"pattern": "tasks-*", "maximum": 2, "prefetch": 7, "groups": ["work"]}]


def test_a_publisher_makes_a_queue(make: Any) -> None:
    harness = make(on_first_use=FIRST)
    publisher = harness.connect("p")
    publisher.publish("$queue/tasks-1", b"1", 1, expect=0)
    status = manager_of(harness).show_queue("tasks-1")
    assert (status.made_by, status.messages, status.settings["prefetch"]) == ("first_use", 1, 7)
    make.crash(harness)
    harness = make()  # it stays, although the pattern is gone
    consumer = harness.connect("c")
    consumer.subscribe("$share/work/$queue/tasks-1", 1)
    assert payloads(consumer) == [b"1"]


def test_a_burst_of_publishes_makes_one_queue(make: Any) -> None:
    harness = make(on_first_use=FIRST)
    clients = [harness.connect(f"c{number}") for number in range(3)]
    with harness.together():
        for number, client in enumerate(clients):
            for part in range(3):
                client.publish("$queue/tasks-1", b"%d.%d" % (number, part), 1)
    harness.settle()
    for client in clients:
        assert [client.expect(Puback).code for _ in range(3)] == [0, 0, 0]
    consumer = harness.connect("c")
    consumer.subscribe("$queue/tasks-1", 1)
    found = payloads(consumer)
    assert len(found) == 9
    for number in range(3):
        assert [one for one in found if one.startswith(b"%d." % number)] == [
            b"%d.%d" % (number, part) for part in range(3)
        ]
    assert len(harness.logged("queue.created")) == 1


def test_a_subscriber_makes_a_queue(make: Any) -> None:
    harness = make(on_first_use=FIRST)
    consumer = harness.connect("c")
    assert consumer.subscribe("$queue/tasks-1", 1).codes == (1,)
    harness.connect("p").publish("$queue/tasks-1", b"1", 1, expect=0)
    assert payloads(consumer) == [b"1"]


def test_limits_of_first_use(make: Any) -> None:
    harness = make(on_first_use=FIRST)
    publisher = harness.connect("p")
    with harness.together():
        for number in range(5):
            publisher.publish(f"$queue/tasks-{number}", b"", 1)
    harness.settle()
    assert [publisher.expect(Puback).code for _ in range(5)] == [0, 0, 0x97, 0x97, 0x97]
    publisher.publish("$queue/tasks-0", b"", 1, expect=0)
    for other in ("tasks", "other", "tasks-a b", "TASKS-1", "tasks-+", "tasks-é"):
        if "+" not in other:
            publisher.publish(f"$queue/{other}", b"", 1, expect=0x90)
    assert publisher.subscribe("$queue/tasks-9", 1).codes == (0x97,)
    assert publisher.subscribe("$queue/other", 1).codes == (0x8F,)
    assert publisher.subscribe("$queue/+", 1).codes == (0x8F,)
    refusals = harness.logged("queue.not_created")
    assert "2 queues were created for tasks-*, which is the maximum" in str(refusals[0]["error"])


def test_a_denied_client_makes_no_queue(make: Any) -> None:
    from hookmq.plugin import Action, Context, Deny, Plugin, hookimpl

    class Nobody(Plugin):
        def __init__(self) -> None:
            super().__init__(None, Context("nobody"))

        @hookimpl
        def authorize(self, topic: str, action: Action) -> Deny:
            return Deny()

    harness = make(Nobody(), on_first_use=FIRST)
    client = harness.connect("p")
    client.publish("$queue/tasks-1", b"", 1, expect=0x87)
    assert client.subscribe("$queue/tasks-2", 1).codes == (0x87,)
    assert list(plugin_of(harness).queues) == ["jobs"]


def test_store_errors_name_the_file(tmp_path: Path) -> None:
    from hookmq_queues.registry import Registry

    registry = Registry(tmp_path)
    assert registry.load(set()) == []
    (tmp_path / ".declared").mkdir()
    (tmp_path / ".declared" / "a.json").mkdir()
    with pytest.raises(StoreError, match=r"a\.json: Is a directory"):
        registry.load(set())
