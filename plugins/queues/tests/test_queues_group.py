"""Compare a group's state with a very simple model that stores one state per message."""

from collections.abc import Hashable, Iterator

import pytest
from hookmq_queues.group import Group
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

NEW, READY, LEASED, DEFERRED, SETTLED = "new", "ready", "leased", "deferred", "settled"
TIMEOUT = 10.0


class Model:
    """Every message of a queue, with its state, its lease and its delivery count."""

    def __init__(self) -> None:
        self.state: list[str] = []
        self.count: list[int] = []
        self.unsure: set[int] = set()
        self.due: dict[int, float] = {}
        self.lease: dict[int, tuple[int, Hashable, float]] = {}

    def publish(self) -> None:
        self.state.append(NEW)
        self.count.append(0)

    def next(self) -> int | None:
        for wanted in (READY, NEW):
            if wanted in self.state:
                return self.state.index(wanted)
        return None

    def start(self, offset: int, token: int, consumer: Hashable, deadline: float) -> None:
        self.state[offset] = LEASED
        self.count[offset] += 1
        self.lease[offset] = (token, consumer, deadline)

    def settle(self, offset: int) -> bool:
        known = self.state[offset] != SETTLED
        self.state[offset] = SETTLED
        self.lease.pop(offset, None)
        self.due.pop(offset, None)
        return known

    def defer(self, offset: int, due: float) -> bool:
        if self.state[offset] == SETTLED:
            return False
        self.state[offset] = DEFERRED
        self.due[offset] = due
        self.lease.pop(offset, None)
        return True

    def wake(self, time: float) -> int:
        found = [offset for offset, due in self.due.items() if due <= time]
        for offset in found:
            self.state[offset] = READY
            del self.due[offset]
        return len(found)

    def release(self, offset: int, token: int) -> bool:
        if self.state[offset] != LEASED or self.lease[offset][0] != token:
            return False
        self.state[offset] = READY
        del self.lease[offset]
        return True

    def expire(self, now: float) -> list[int]:
        late = [offset for offset, one in self.lease.items() if one[2] <= now]
        for offset in late:
            self.release(offset, self.lease[offset][0])
        return sorted(late)

    def open(self) -> list[int]:
        return [offset for offset, state in enumerate(self.state) if state not in (NEW, SETTLED)]

    def restart(self, end_of_delivered: int, time: float, crashed: bool) -> None:
        """Lose the leases. After a crash, messages that may have been delivered count as delivered."""
        for offset, state in enumerate(self.state):
            if state == SETTLED or (state == NEW and offset >= end_of_delivered):
                continue
            if state != DEFERRED:
                self.state[offset] = READY
            if crashed and not self.count[offset] and self.due.get(offset, 0) <= time:
                self.count[offset] = 1
                self.unsure.add(offset)
        self.lease.clear()


class GroupMachine(RuleBasedStateMachine):
    """Apply random operations to a group and to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.group = Group()
        self.now = 0.0
        self.tokens: list[tuple[int, int]] = []

    @rule(count=st.integers(1, 5))
    def publish(self, count: int) -> None:
        for _ in range(count):
            self.model.publish()

    @rule(consumer=st.sampled_from("ab"), sent=st.booleans())
    def lease(self, consumer: str, sent: bool) -> None:
        offset = self.group.peek(len(self.model.state))
        assert offset == self.model.next()
        if offset is None:
            return
        token = self._lease(offset, consumer)
        if not sent:
            self.group.withdraw(offset, token)
            self.model.release(offset, token)
            self.model.count[offset] -= 1

    def _lease(self, offset: int, consumer: str) -> int:
        deadline = self.now + TIMEOUT
        token, count = self.group.lease(offset, consumer, deadline)
        assert count == self.model.count[offset] + 1
        self.model.start(offset, token, consumer, deadline)
        self.tokens.append((offset, token))
        return token

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        if self.tokens:
            offset, _ = data.draw(st.sampled_from(self.tokens))
            assert self.group.settle(offset) is self.model.settle(offset)

    @rule(data=st.data(), seconds=st.integers(-5, 30))
    def defer(self, data: st.DataObject, seconds: int) -> None:
        group, model = self.group, self.model
        known = range(min(group.next + 1, len(model.state)))
        if known:
            offset = data.draw(st.sampled_from(known))
            due = max(0.0, self.now + seconds)
            assert group.defer(offset, due) is model.defer(offset, due)

    @rule()
    def wake(self) -> None:
        due = self.model.due.values()
        assert self.group.next_due == (min(due) if due else None)
        assert self.group.wake(self.now) == self.model.wake(self.now)

    @rule()
    def admit(self) -> None:
        if self.group.next < len(self.model.state):
            self.model.state[self.group.admit()] = READY

    @rule(data=st.data())
    def lease_any(self, data: st.DataObject) -> None:
        ready = [offset for offset, state in enumerate(self.model.state) if state == READY]
        assert [one for one in self.group.unsettled if self.group.is_ready(one)] == ready
        if ready:
            self._lease(data.draw(st.sampled_from(ready)), "c")

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.tokens:
            offset, token = data.draw(st.sampled_from(self.tokens))
            assert self.group.release(offset, token) is self.model.release(offset, token)

    @rule(seconds=st.sampled_from([1.0, TIMEOUT]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = [one[2] for one in self.model.lease.values()]
        assert self.group.deadline == (min(due) if due else None)
        found = self.group.expire(self.now)
        assert sorted(offset for offset, _ in found) == self.model.expire(self.now)

    @rule()
    def drop_oldest(self) -> None:
        wanted = self.model.next()
        if self.model.due:
            wanted = min(one for one in (wanted, *self.model.due) if one is not None)
        assert self.group.drop_oldest(len(self.model.state)) == wanted
        if wanted is not None:
            self.model.settle(wanted)

    @rule(reserve=st.integers(0, 4))
    def restart(self, reserve: int) -> None:
        end = len(self.model.state)
        reserved = self.group.next + reserve
        self.group = Group.decode(self.group.encode(reserved), 0, end, self.now)
        self.model.restart(min(reserved, end), self.now, crashed=reserve > 0)
        self.tokens.clear()

    @invariant()
    def they_agree(self) -> None:
        model, group = self.model, self.group
        end = len(model.state)
        assert list(group.unsettled) == model.open()
        assert {o: group.unsettled[o] for o in model.open()} == {
            o: model.count[o] for o in model.open()
        }
        assert {o: (one.token, one.consumer, one.deadline) for o, one in group.leases.items()} == (
            model.lease
        )
        for offset in model.open():
            assert group.attempts(offset) == model.count[offset] - (offset in model.unsure)
            assert group.is_ready(offset) is (model.state[offset] == READY)
        assert group.backlog(end) == end - model.state.count(SETTLED)
        unsettled = [offset for offset, state in enumerate(model.state) if state != SETTLED]
        assert group.floor == (unsettled[0] if unsettled else end)


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def test_many_leases_do_not_fill_the_heap() -> None:
    group = Group()
    for offset in range(1000):
        token, _ = group.lease(offset, "a", 5.0)
        group.settle(offset)
    assert len(group._deadlines) <= 66
    assert group.deadline is None
    assert token == 1000


def test_a_log_that_lost_its_beginning_or_its_end() -> None:
    """After a restore from a backup, the log and the state may be from different times."""
    group = Group()
    for offset in range(10):
        group.lease(offset, "a", 5.0)
    stored = group.encode(10)
    found = Group.decode(stored, 4, 7)
    assert list(found.unsettled) == [4, 5, 6]
    assert found.next == 7
    found = Group.decode(stored, 20, 30)
    assert (list(found.unsettled), found.next) == ([], 20)


def test_the_heaps_do_not_grow() -> None:
    group = Group()
    for _ in range(5):
        group.admit()
    for count in range(1000):
        token, _ = group.lease(4, "a", 5.0)
        group.release(4, token)
        group.defer(3, count)
    assert len(group._ready) <= 75
    assert len(group._dues) <= 67
    assert group.take_ready() == [0, 1, 2, 4]
    assert group.take_ready() == []


class Searches(dict[int, int]):
    """Counts searches for the dict's first key. Each search takes longer with each key removed before it."""

    number = 0

    def __iter__(self) -> Iterator[int]:
        self.number += 1
        return super().__iter__()


def test_messages_that_a_consumer_has_are_trimmed_in_one_pass() -> None:
    group = Group()
    group.lease_next(1000, "a", 5.0)
    group.unsettled = found = Searches(group.unsettled)
    assert group.trim(900) == 900
    assert found.number <= 1
    assert (group.floor, len(group.leases), group.trim(1100), group.next) == (900, 100, 200, 1100)
    assert not group.unsettled


def test_reserved_messages_do_not_count_as_attempts() -> None:
    group = Group()
    group.lease(0, "a", 5.0)
    for crashes in range(3):
        group = Group.decode(group.encode(4), 0, 9)
        assert [group.unsettled[offset] for offset in range(4)] == [1, 1, 1, 1], crashes
        assert [group.attempts(offset) for offset in range(4)] == [1, 0, 0, 0], crashes
    assert group.lease(0, "a", 5.0)[1] == 2
    assert group.lease(1, "a", 5.0)[1] == 2
    assert (group.attempts(0), group.attempts(1)) == (2, 1)


def test_damaged_state_is_refused() -> None:
    stored = Group(3).encode(3)
    for damaged in (
        b"",
        stored[:-1],
        stored + b"x",
        b"\1" + stored[1:],
        b"\2" + bytes(8) + stored[9:],
    ):
        with pytest.raises(ValueError, match="not the state of a group"):
            Group.decode(damaged, 0, 3)
