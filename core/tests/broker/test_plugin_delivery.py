"""Test how a plugin client acknowledges its messages: once, with any code, in the batch of the
turn.
"""

from collections.abc import Callable

import pytest
from hookmq.plugin import ClientHandle, ClientRequest, Delivery, DropReason, PluginError, ReasonCode
from hookmq.storage.records import Dequeue, PutState
from hookmq_testing import DurableStore, Harness, HookRecorder, SlowStore

Make = Callable[..., Harness]


class Subscriber:
    """A plugin client that keeps the messages it gets."""

    def __init__(self, harness: Harness, filter: str, qos: int, expiry: int = 0) -> None:
        request = ClientRequest("subscriber", session_expiry=expiry)
        self.handle: ClientHandle = harness.clock.run(harness.handle("gw").connect(request))
        self.got: list[Delivery] = []
        self.handle.on_message = self.got.append
        assert harness.clock.run(self.handle.subscribe(filter, qos)) == qos
        self.session = harness.broker.sessions["subscriber"]


@pytest.fixture
def recorder() -> HookRecorder:
    return HookRecorder("on_dropped", "on_delivered", id="gw")


@pytest.mark.parametrize("qos", [1, 2])
def test_it_is_in_flight_until_it_is_acknowledged(
    broker_harness: Make, recorder: HookRecorder, qos: int
) -> None:
    harness = broker_harness([recorder])
    subscriber = Subscriber(harness, "a", qos)
    harness.connect("publisher").publish("a", b"x", qos)
    harness.settle()
    (one,) = subscriber.got
    assert (one.message.payload, one.qos, one.retain, one.dup, one.identifiers) == (
        b"x", qos, False, False, (),
    )  # fmt: skip
    assert len(subscriber.session.inflight) == 1
    assert recorder.calls("on_delivered") == []
    one.acknowledge()
    assert not subscriber.session.inflight
    one.acknowledge()
    harness.settle()
    assert len(recorder.calls("on_delivered")) == 1


def test_a_second_acknowledgement_does_not_take_another_message(
    broker_harness: Make, recorder: HookRecorder
) -> None:
    """A second acknowledgement does not acknowledge another message, although the packet id may be
    in use again.
    """
    harness = broker_harness([recorder])
    subscriber = Subscriber(harness, "a", 1)
    publisher = harness.connect("publisher")
    publisher.publish("a", b"1", 1)
    harness.settle()
    subscriber.got[0].acknowledge()
    subscriber.session.last_packet_id = 0
    publisher.publish("a", b"2", 1)
    harness.settle()
    assert list(subscriber.session.inflight) == [1]
    subscriber.got[0].acknowledge()
    assert list(subscriber.session.inflight) == [1]
    subscriber.got[1].acknowledge()
    assert not subscriber.session.inflight


def test_a_refusal_is_a_drop(broker_harness: Make, recorder: HookRecorder) -> None:
    harness = broker_harness([recorder])
    subscriber = Subscriber(harness, "a", 2)
    harness.connect("publisher").publish("a", b"x", 2)
    harness.settle()
    subscriber.got[0].acknowledge(ReasonCode.QUOTA_EXCEEDED)
    harness.settle()
    (call,) = recorder.calls("on_dropped")
    assert (call.why.reason, call.why.detail) == (DropReason.REFUSED, "0x97")
    assert recorder.calls("on_delivered") == []
    assert not subscriber.session.inflight


def test_after_the_end_it_does_nothing(broker_harness: Make, recorder: HookRecorder) -> None:
    harness = broker_harness([recorder])
    subscriber = Subscriber(harness, "a", 1, expiry=60)
    harness.connect("publisher").publish("a", b"x", 1)
    harness.settle()
    subscriber.handle.disconnect()
    harness.settle()
    subscriber.got[0].acknowledge()
    assert len(subscriber.session.inflight) == 1, "the message will be sent again"


def test_at_qos_0_it_does_nothing(broker_harness: Make, recorder: HookRecorder) -> None:
    harness = broker_harness([recorder])
    subscriber = Subscriber(harness, "a", 0)
    harness.connect("publisher").publish("a", b"x")
    harness.settle()
    subscriber.got[0].acknowledge()
    assert harness.metrics.messages_delivered == 1


def test_a_thread_may_not_acknowledge(broker_harness: Make, recorder: HookRecorder) -> None:
    harness = broker_harness([recorder])
    subscriber = Subscriber(harness, "a", 1)
    harness.connect("publisher").publish("a", b"x", 1)
    harness.settle()
    outcome: list[BaseException | None] = []
    harness.clock.run_blocking(
        subscriber.got[0].acknowledge, lambda result, error: outcome.append(error)
    )
    harness.settle()
    (error,) = outcome
    assert isinstance(error, PluginError)
    assert "acknowledge() is for the event loop" in str(error)
    assert len(subscriber.session.inflight) == 1


def test_it_joins_the_batch_of_its_turn(broker_harness: Make, recorder: HookRecorder) -> None:
    """An acknowledgement joins the batch of its turn. Other records that the plugin makes in this
    turn are committed together with it.
    """
    store = SlowStore(DurableStore(), slow=False)
    harness = broker_harness([recorder], store=store)
    subscriber = Subscriber(harness, "a", 2, expiry=60)
    publisher = harness.connect("publisher")
    for payload in (b"1", b"2"):
        publisher.publish("a", payload, 2)
    harness.settle()
    store.slow = True
    state = harness.handle("gw").state

    def take() -> None:
        for one in subscriber.got:
            one.acknowledge()
        state.put("last", subscriber.got[-1].message.payload)

    harness.clock.call_soon(take)
    harness.settle()
    assert store.committing is not None
    kinds = [type(record) for record in store.committing]
    assert kinds == [Dequeue, Dequeue, PutState]
    assert not subscriber.session.inflight
    store.finish()
