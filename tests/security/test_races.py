"""Test races on a virtual clock: takeovers in every phase, reloads during CONNECT, and drains during a commit. Clients
also leave while plugins or the store decide.

Timing never grants a permission, nothing is acknowledged before it is safe, and no state remains.
"""

import itertools
from typing import Any

import mqttbytes as m
import pytest
from attacks import at_rest
from byteclient import ByteClient
from bytememory import in_memory
from hookmq.broker.connection_state import Phase
from hookmq.mqtt.packets import Connack, Disconnect, Puback, Publish
from hookmq.plugin import Accept, Allow, Challenge, Deny
from hookmq_testing import Harness, HookRecorder, SlowStore, will

PHASES = (
    "new",
    "deciding",
    "challenged",
    "will",
    "committing",
    "open",
    "publishing",
    "subscribing",
    "paused",
)
WAITS = {
    "deciding": "on_connect", "will": "authorize", "publishing": "on_publish", "subscribing": "on_subscribe"
}  # fmt: skip


class Stage:
    """A broker in which every step can be held back."""

    def __init__(self) -> None:
        self.store = SlowStore(slow=False)
        self.recorder = HookRecorder(
            "on_connect", "on_auth", "authorize", "on_publish", "on_subscribe"
        )
        self.harness = Harness([self.recorder], store=self.store)
        self.pending: list[Any] = []
        self.rest = at_rest(self.harness)

    def hold(self, hook: str, times: int = 1) -> None:
        """Hold back the next `times` calls to a hook."""
        held = self.harness.clock.event()
        self.pending.append(held)
        self.recorder.answer(hook, *[held] * times, None)

    def bring(self, phase: str, name: str = "same") -> ByteClient:
        """Return a client in a given phase."""
        client = in_memory(self.harness)
        durable = m.session_expiry(1000)
        will_ = ("w", b"x") if phase in ("will", "open") else None
        if phase in ("deciding", "will"):
            self.hold(WAITS[phase])
        if phase == "committing":
            self.store.slow = True
        if phase == "challenged":
            self.recorder.answer("on_auth", Challenge(b"?"), Accept())
            client.connect(name, properties=m.auth_method("x") + durable)
        elif phase != "new":
            client.connect(name, will=will_, properties=durable, clean=False)
        if phase in ("publishing", "subscribing"):
            client.take()
            self.hold(WAITS[phase])
            packet = (
                m.publish("t", b"x", 2, 1) if phase == "publishing" else m.subscribe(1, ("t", 1))
            )
            client.send(packet)
        if phase == "paused":
            client.take()
            client.wire.block()
            client.send(m.subscribe(1, ("big", 1)))
        early = {"new": Phase.NEW, "challenged": Phase.CHALLENGED}
        late = Phase.DECIDING if self.store.slow or phase in ("deciding", "will") else Phase.OPEN
        assert client.connection.phase is early.get(phase, late)
        return client

    def release(self) -> None:
        """Release everything that is held back."""
        for held in self.pending:
            held.set(None)
        self.store.slow = False
        self.store.finish()
        self.harness.advance(20)

    def end(self) -> None:
        """Disconnect all clients and assert that no state remains."""
        self.release()
        for connection in list(self.harness.broker.connections):
            connection.wire.lose()  # type: ignore[attr-defined]
        self.harness.advance(2000)
        assert at_rest(self.harness) == self.rest
        self.harness.close()


@pytest.mark.parametrize(("first", "second"), list(itertools.product(PHASES, repeat=2)))
def test_two_of_one_id_in_every_phase(first: str, second: str) -> None:
    """A takeover disconnects the old client in every phase. In the end, at most one of the two clients is connected."""
    stage = Stage()
    one = stage.bring(first)
    two = stage.bring(second)
    stage.release()
    sessions = stage.harness.broker.sessions
    online = [client for client in (one, two) if client.connection.phase is Phase.OPEN]
    assert len(online) <= 1
    for client in online:
        assert sessions["same"].connection is client.connection
    if first not in ("new", "challenged") and second not in ("new", "challenged"):
        assert len(online) == 1
        loser = two if online[0] is one else one
        loser.wire.unblock()
        stage.harness.settle()
        assert loser.wire.closed
        assert [frame[0] for frame in m.frames(loser.arrived)][-1:] in ([0xE0], [0x20], [])
    stage.end()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("how", ["reset", "disconnect", "drain", "reload", "protocol error"])
def test_the_end_in_every_phase(phase: str, how: str) -> None:
    stage = Stage()
    harness = stage.harness
    client = stage.bring(phase)
    if how == "reset":
        client.close()
    elif how == "disconnect":
        client.send(m.disconnect())
    elif how == "protocol error":
        client.send(b"\x00\x00")
    elif how == "reload":
        harness.reload({"broker": {"receive_maximum": 5}})
    else:
        told: list[bool] = []
        harness.broker.drain("", lambda: told.append(True))
        harness.settle()
        assert told == ([] if phase == "committing" else [True])
        stage.release()
        assert told == [True]
        in_memory(harness).ends()
    stage.end()


@pytest.mark.parametrize("waits", ["on_connect", "authorize"])
def test_a_reload_while_a_client_connects_grants_nothing(waits: str) -> None:
    """A late permission from a plugin that the reload removed applies only to the pending request."""
    old = HookRecorder("on_connect", "authorize", id="old")
    with Harness([old]) as harness:
        held = harness.clock.event()
        if waits == "on_connect":
            old.answer("on_connect", held)
        else:
            old.answer("authorize", held)
        raw = in_memory(harness)
        raw.connect("c", will=("w", b"x"))
        raw.send(m.subscribe(1, ("secret", 1)), m.publish("secret", b"x", 1, 2))
        new = HookRecorder("on_connect", "authorize", id="new")
        new.answer("authorize", Deny())
        harness.reload({"authz": {"default": "deny"}}, [new])
        held.set(Accept() if waits == "on_connect" else Allow())
        frames = raw.take_frames()
        assert not any(frame[0] == 0x90 and frame[-1] < 0x80 for frame in frames)
        assert not any(frame[0] == 0x40 and len(frame) == 4 for frame in frames)
        assert harness.broker.state.router.match("secret") == []
        raw.close()
        assert harness.metrics.messages_delivered == 0


def test_a_permission_that_comes_after_the_reload_is_not_kept() -> None:
    old = HookRecorder("authorize", id="old")
    with Harness([old]) as harness:
        client = harness.connect("c")
        held = harness.clock.event()
        old.answer("authorize", held)
        client.publish("t", b"1", qos=1)
        new = HookRecorder("authorize", id="new")
        new.answer("authorize", Deny())
        harness.reload(plugins=[new])
        held.set(Allow())
        for _ in range(3):
            client.publish("t", b"2", qos=1)
        codes = [one.code for one in client.received if isinstance(one, Puback)]
        assert codes[1:] == [0x87] * 3


@pytest.mark.parametrize("kind", ["publish", "subscribe", "connect"])
@pytest.mark.parametrize("end", ["finish", "fail", "never"])
def test_a_drain_while_a_commit_runs(kind: str, end: str) -> None:
    """Nothing is acknowledged before it is safe, even while the broker is draining."""
    store = SlowStore(slow=False)
    harness = Harness(store=store)
    keeper = harness.connect("keeper", session_expiry_interval=100)
    keeper.subscribe("t", 1)
    client = harness.connect("c", session_expiry_interval=100)
    store.slow = True
    if kind == "publish":
        client.publish("t", b"x", qos=1)
    elif kind == "subscribe":
        client.send_subscribe("s", 1)
    else:
        client = harness.connect("late", session_expiry_interval=100, expect=None)
    told: list[bool] = []
    harness.broker.drain("", lambda: told.append(True))
    harness.settle()
    answers = [one for one in client.received if not isinstance(one, Connack | Disconnect)]
    if kind == "connect":
        assert all(one.code for one in client.received if isinstance(one, Connack))
    assert answers == []
    assert told == []
    if end == "finish":
        store.finish()
        harness.settle()
        assert told == [True]
    elif end == "fail":
        store.fail()
        harness.settle()
        assert harness.logged("store.failed")
    assert [one for one in client.received if not isinstance(one, Connack | Disconnect)] == []
    store.slow = False
    store.finish()
    harness.close()


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_will_and_a_takeover_at_once(moment: str) -> None:
    """A will whose delay ends in the turn in which its client reconnects is published once or not
    at all.
    """
    with Harness() as harness:
        witness = harness.connect("witness")
        witness.subscribe("w", 1)
        client = harness.connect("c", will=will("w", b"x", delay=10), session_expiry_interval=100)
        client.drop()
        harness.advance(9 if moment == "before" else 11 if moment == "after" else 9.999999)
        with harness.together():
            back = harness.connect("c", clean_start=False, session_expiry_interval=100, expect=None)
            if moment == "during":
                harness.clock.advance(0.000002)
        harness.advance(100)
        count = sum(isinstance(one, Publish) for one in witness.received)
        assert count == {"before": 0, "after": 1}.get(moment, count)
        assert count <= 1
        back.drop()
        harness.advance(100)
        assert sum(isinstance(one, Publish) for one in witness.received) == count


def test_many_at_once_for_one_id() -> None:
    """If a hundred clients connect with the same id in one turn, one remains. A flapping id is delayed."""
    with Harness() as harness:
        with harness.together():
            clients = [harness.connect("same", expect=None) for _ in range(100)]
        harness.advance(200)
        alive = [client for client in clients if not client.wire.closed]
        assert len(alive) == 1
        assert harness.broker.sessions["same"].connection is alive[0].connection
        alive[0].ping()
        assert len(harness.broker.connections) == 1
