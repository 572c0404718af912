"""Compare the plugin with a reference model (`queuemodel`) under random operations, including crashes and power cuts.

Every accepted message is delivered until it is settled, and never afterwards. New messages arrive in order. A
redelivered message has a delivery count above 1, and all limits hold.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt_api import Puback, Publish
from hookmq.plugin import ReasonCode
from hookmq_queues.plugin import QueuesPlugin
from hookmq_testing import DurableStore, Harness, MemoryClient, make_plugin
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from queuemodel import Limits, QueueModel

VISIBILITY = 10.0
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A folder in memory, where fsync takes no time."""
MOST = 3
"""Maximum number of consumers."""


class Member:
    """A connected consumer in a group, and its unacknowledged deliveries by offset."""

    def __init__(self, client: MemoryClient, number: int, group: str, window: int) -> None:
        self.client = client
        self.number = number
        self.group = group
        self.window = window
        self.held: list[tuple[int, Publish]] = []


class QueueMachine(RuleBasedStateMachine):
    """The random operations. Commits run immediately, except in a few rules that hold them back and then kill the
    broker.
    """

    members: list[Member]

    @initialize(
        groups=st.sampled_from((("a",), ("a", "b"))),
        prefetch=st.sampled_from((1, 3)),
        max_messages=st.sampled_from((1000, 5)),
        max_unacknowledged=st.sampled_from((1000, 2)),
        ttl=st.sampled_from((0.0, 25.0)),
        delivery_limit=st.sampled_from((0, 2)),
        memory=st.sampled_from((1 << 20, 0)),
        on_full=st.sampled_from(("reject", "reject", "drop_newest", "drop_oldest")),
    )
    def begin(
        self,
        groups: tuple[str, ...],
        prefetch: int,
        max_messages: int,
        max_unacknowledged: int,
        ttl: float,
        delivery_limit: int,
        memory: int,
        on_full: str,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="queues-model-", dir=MEMORY))
        self.store = DurableStore()
        self.on_full = on_full
        self.limits = Limits(
            prefetch, max_messages, max_unacknowledged, VISIBILITY, ttl, delivery_limit
        )
        self.model = QueueModel(groups, self.limits)
        jobs = {
            "name": "jobs", "bindings": ["in/#"], "groups": list(groups), "prefetch": prefetch,
            "max_messages": max_messages, "max_unacknowledged": max_unacknowledged, "memory": memory,
            "visibility_timeout": VISIBILITY, "message_ttl": ttl, "on_full": on_full,
        }  # fmt: skip
        if delivery_limit:
            jobs |= {"delivery_limit": delivery_limit, "dead_letter": "dead"}
        self.queues = [jobs, {"name": "dead"}]
        self.number = 0
        self.members = []
        self.start(0.0)

    # the broker ------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Start a broker at the virtual time `now`."""
        config = {"path": str(self.folder), "queues": self.queues}
        plugin = make_plugin(QueuesPlugin, config, "queues", use="queues")
        self.harness = Harness([plugin], store=self.store, start=False)
        self.harness.clock.advance(now)
        self.harness.start()
        self.early = self.now
        self.publisher = self.harness.connect("publisher")
        self.undertaker = self.harness.connect("undertaker")
        self.undertaker.subscribe("$queue/dead", 1)

    @property
    def now(self) -> float:
        return self.harness.clock.now()

    @property
    def plugin(self) -> QueuesPlugin:
        instance = self.harness.hooks.instance("queues")
        assert instance is not None
        assert isinstance(instance.plugin, QueuesPlugin)
        return instance.plugin

    def end(self) -> None:
        """Kill the broker's process, as SIGKILL would."""
        self.look()
        for journal in self.harness.broker.state.journals:
            journal.close()  # type: ignore[attr-defined]
        self.members.clear()
        self.model.crash()

    # what happened ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Tell the model which messages clients have received since the last call."""
        self.harness.settle()
        for member in self.members:
            for message in self.taken(member.client):
                found = dict(message.properties.user_property or ())
                offset, count = int(found["offset"]), int(found["delivery-count"])
                assert (found["message-id"], found["group"]) == (f"jobs:{offset}", member.group)
                self.model.deliver(
                    member.group,
                    member.number,
                    offset,
                    count,
                    message.payload,
                    self.early,
                    self.now,
                    sum(one.group == member.group for one in self.members) == 1,
                )
                member.held.append((offset, message))
                assert len(member.held) <= member.window
        for message in self.taken(self.undertaker):
            found = dict(message.properties.user_property or ())
            assert found["delivery-count"] == "1"
            assert found["dead-letter-queue"] == "jobs"
            offset = int(found["dead-letter-id"].partition(":")[2])
            assert message.payload == self.model.messages[offset][0]
            self.model.bury(found["dead-letter-group"], offset)
        self.early = self.now

    def taken(self, client: MemoryClient) -> list[Publish]:
        found = [one for one in client.unread if isinstance(one, Publish)]
        for one in found:
            client.unread.remove(one)
        return found

    @invariant()
    def no_message_waits_for_a_consumer_with_room(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.look()
        for name in self.model.groups:
            if any(one.group == name and len(one.held) < one.window for one in self.members):
                assert self.model.available(name, self.now) == []

    # operations ------------------------------------------------------------------------------------------------------

    def payload(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    @rule(captured=st.booleans(), expiry=st.sampled_from((0, 0, 0, 5)), count=st.integers(1, 3))
    def publish(self, captured: bool, expiry: int, count: int) -> None:
        for _ in range(count):
            self.publish_one("in/x" if captured else "$queue/jobs/x", expiry)

    def publish_one(self, topic: str, expiry: int) -> None:
        model, limit, payload = self.model, self.limits.max_messages, self.payload()
        least = max(
            sum(1 for one in model.unsettled(name) if not model.has_expired(one, self.now))
            for name in model.groups
        )
        properties: dict[str, Any] = {"message_expiry_interval": expiry} if expiry else {}
        self.publisher.publish(topic, payload, 1, **properties)
        if least < limit <= model.depth or (model.crashed and self.limits.delivery_limit):
            # Expired messages may or may not have left the queue.
            code = self.publisher.expect(Puback).code
            assert code in (0, ReasonCode.QUOTA_EXCEEDED)
            if self.on_full == "drop_newest":
                kept = self.plugin.queues["jobs"].log.end > len(model.messages)
            else:
                kept = not code
        else:
            refused = least >= limit and self.on_full == "reject"
            code = self.publisher.expect(Puback).code
            assert code == (ReasonCode.QUOTA_EXCEEDED if refused else 0)
            kept = least < limit or self.on_full == "drop_oldest"
        if kept:
            model.publish(payload, self.early, self.now, expiry)
        if self.on_full == "drop_oldest":
            self.drop_oldest()

    def drop_oldest(self) -> None:
        """If there are too many messages, drop the oldest ones that no consumer holds."""
        model = self.model
        for name in model.groups:
            group = model.groups[name]
            gone = self.plugin.queues["jobs"].dispatchers[name].group
            for offset in model.unsettled(name):
                held = group.held.get(offset)
                has_it = held is not None and self.now < held.late + VISIBILITY
                if offset < gone.next and offset not in gone.unsettled and not has_it:
                    assert len(
                        model.unsettled(name)
                    ) > self.limits.max_messages or model.has_expired(offset, self.now)
                    model.settle(name, offset, "dropped")

    @precondition(lambda self: len(self.members) < MOST)
    @rule(window=st.integers(1, 4), second=st.booleans(), durable=st.booleans())
    def subscribe(self, window: int, second: bool, durable: bool) -> None:
        group = list(self.model.groups)[-1 if second else 0]
        self.number += 1
        more: dict[str, Any] = (
            {"clean_start": False, "session_expiry_interval": 99} if durable else {}
        )
        client = self.harness.connect(
            f"consumer{self.number}", auto_ack=False, receive_maximum=window, **more
        )
        window = min(window, self.limits.prefetch)
        self.members.append(Member(client, self.number, group, window))
        assert client.subscribe(f"$share/{group}/$queue/jobs", 1).codes == (1,)

    def member(self, data: st.DataObject) -> Member:
        assume(self.members)
        return data.draw(st.sampled_from(self.members))

    def acknowledge(self, member: Member, at: int) -> None:
        offset, message = member.held.pop(at)
        self.model.settle(member.group, offset)
        member.client.ack(message)
        self.look()  # another consumer may hold the message too

    @precondition(lambda self: any(one.held for one in self.members))
    @rule(data=st.data(), count=st.integers(1, 5))
    def ack(self, data: st.DataObject, count: int) -> None:
        member = data.draw(st.sampled_from([one for one in self.members if one.held]))
        for _ in range(count):
            if member.held:
                self.acknowledge(member, data.draw(st.integers(0, len(member.held) - 1)))

    @rule(data=st.data(), how=st.sampled_from(("drop", "disconnect", "unsubscribe")))
    def leave(self, data: st.DataObject, how: str) -> None:
        member = self.member(data)
        self.members.remove(member)
        if how == "unsubscribe":  # it keeps its messages until the connection ends
            member.client.unsubscribe(f"$share/{member.group}/$queue/jobs")
        self.model.lose(member.number)
        if how == "disconnect":
            member.client.disconnect()
        else:
            member.client.drop()

    @rule(seconds=st.sampled_from((1.0, 4.0, VISIBILITY + 0.5, 30.0)))
    def wait(self, seconds: float) -> None:
        self.look()
        self.harness.advance(seconds)

    # the end of the process ------------------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        now = self.now
        self.look()
        self.members.clear()
        for group in self.model.groups.values():
            group.held.clear()
        self.harness.close()
        self.start(now)

    @rule()
    def crash(self) -> None:
        now = self.now
        self.end()
        self.start(now)

    @rule(count=st.integers(0, 3), acknowledge=st.booleans(), torn=st.booleans(), data=st.data())
    def crash_without_a_commit(
        self, count: int, acknowledge: bool, torn: bool, data: st.DataObject
    ) -> None:
        """Kill the process before a commit is stored. Publishes and acknowledgements since the last commit are lost."""
        self.look()
        now, commit, log = self.now, self.store.commit, self.plugin.queues["jobs"].log
        before = {one: one.stat().st_size for one in (self.folder / "jobs").glob("*.segment")}
        self.store.commit = lambda records, done: None  # type: ignore[method-assign]
        settled = {name: dict(group.settled) for name, group in self.model.groups.items()}
        for member in self.members:
            if member.held and acknowledge:
                self.acknowledge(member, 0)
        for _ in range(count):
            self.publisher.publish("$queue/jobs", self.payload(), 1)
        self.look()
        assert not [
            one for one in self.publisher.unread if isinstance(one, Puback) and not one.code
        ]
        assert log.visible == len(self.model.messages)
        self.end()
        for name, group in self.model.groups.items():
            group.settled = settled[name]
        if torn:  # a power cut: a part of what the store did not commit is not on the disk either
            for path in (self.folder / "jobs").glob("*.segment"):
                size = path.stat().st_size
                if path in before and size > before[path]:
                    with path.open("r+b") as file:
                        file.truncate(data.draw(st.integers(before[path], size)))
        self.store.commit = commit  # type: ignore[method-assign]
        self.start(now)

    @rule(count=st.integers(1, 3))
    def crash_after_a_commit(self, count: int) -> None:
        """Kill the process after a commit is stored but before anyone is notified. The messages must still exist."""
        self.look()
        if self.model.depth + count > self.limits.max_messages:
            return
        now, commit = self.now, self.store.commit
        held: list[Any] = []

        def once(records: Any, done: Callable[[Any], None]) -> None:
            if not held:
                commit(records, held.append)

        self.store.commit = once  # type: ignore[method-assign]
        with self.harness.together():
            for _ in range(count):
                payload = self.payload()
                self.publisher.publish("$queue/jobs", payload, 1)
                self.model.publish(payload, self.early, self.now)
        self.end()
        self.store.commit = commit  # type: ignore[method-assign]
        self.start(now)

    # the end ---------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Let consumers take all messages. Check that each message gets settled and is never delivered again."""
        if not hasattr(self, "harness"):
            return
        try:
            self.drain()
            self.harness.close()
        finally:
            shutil.rmtree(self.folder)

    def drain(self) -> None:
        self.restart()
        for second in range(len(self.model.groups)):
            self.subscribe(4, bool(second), False)
        for _ in range(1000):
            self.look()
            open = [one for one in self.members if one.held]
            if not open:
                break
            for member in open:
                if member.held:
                    self.acknowledge(member, 0)
        self.harness.advance(1.0)
        self.look()
        for name in self.model.groups:
            assert [
                one
                for one in self.model.unsettled(name)
                if not self.model.has_expired(one, self.now)
            ] == []
            assert not self.plugin.queues["jobs"].dispatchers[name].group.unsettled
        self.restart()
        for second in range(len(self.model.groups)):
            self.subscribe(4, bool(second), False)
        self.look()
        assert not [one for one in self.members if one.held]
        assert self.plugin.queues["jobs"].depth == 0


@pytest.mark.timeout(300)
def test_queues_behave_like_the_model() -> None:
    run(4, 15)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_queues_behave_like_the_model_for_long() -> None:
    run(150, 50)


def run(examples: int, steps: int) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate],  # a failure takes too long to shrink
        ),
    )  # fmt: skip
