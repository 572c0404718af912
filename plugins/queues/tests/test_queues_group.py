"""Test the state of a group against a model that is too simple to be wrong: one state for every message."""

from collections.abc import Hashable

import pytest
from hookmq_queues.group import Group
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

NEW, READY, LEASED, SETTLED = "new", "ready", "leased", "settled"
TIMEOUT = 10.0


class Model:
    """Every message of a queue, with its state, its lease and the number of its deliveries."""

    def __init__(self) -> None:
        self.state: list[str] = []
        self.count: list[int] = []
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
        return known

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
        return [offset for offset, state in enumerate(self.state) if state in (READY, LEASED)]

    def crash(self, end_of_delivered: int) -> None:
        """Lose everything but what is settled. Messages that were reserved count as delivered."""
        for offset, state in enumerate(self.state):
            if state != SETTLED and (state != NEW or offset < end_of_delivered):
                self.state[offset] = READY
                self.count[offset] = max(1, self.count[offset])
        self.lease.clear()


class GroupMachine(RuleBasedStateMachine):
    """Random operations on a group and on the model."""

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
        deadline = self.now + TIMEOUT
        token, count = self.group.lease(offset, consumer, deadline)
        assert count == self.model.count[offset] + 1
        self.model.start(offset, token, consumer, deadline)
        self.tokens.append((offset, token))
        if not sent:
            self.group.withdraw(offset, token)
            self.model.release(offset, token)
            self.model.count[offset] -= 1

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        if self.tokens:
            offset, _ = data.draw(st.sampled_from(self.tokens))
            assert self.group.settle(offset) is self.model.settle(offset)

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
        assert self.group.drop_oldest(len(self.model.state)) == wanted
        if wanted is not None:
            self.model.settle(wanted)

    @rule(reserve=st.integers(0, 4))
    def restart(self, reserve: int) -> None:
        end = len(self.model.state)
        reserved = self.group.next + reserve
        self.group = Group.decode(self.group.encode(reserved), 0, end)
        self.model.crash(min(reserved, end))
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
    """After a restore, the log and the state may be of different times."""
    group = Group()
    for offset in range(10):
        group.lease(offset, "a", 5.0)
    stored = group.encode(10)
    found = Group.decode(stored, 4, 7)
    assert list(found.unsettled) == [4, 5, 6]
    assert found.next == 7
    found = Group.decode(stored, 20, 30)
    assert (list(found.unsettled), found.next) == ([], 20)


def test_damaged_state_is_refused() -> None:
    stored = Group(3).encode(3)
    for damaged in (b"", stored[:-1], stored + b"x", b"\2" + stored[1:]):
        with pytest.raises(ValueError, match="not the state of a group"):
            Group.decode(damaged, 0, 3)
