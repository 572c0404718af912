"""Test that plugins responding to each other's messages do not loop forever."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hookmq.model.errors import PluginError
from hookmq.model.events import Direction, DropReason
from hookmq.model.message import Message
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]


@pytest.fixture
def mine() -> HookRecorder:
    return HookRecorder("on_publish", id="mine")


@pytest.fixture
def other() -> HookRecorder:
    return HookRecorder("on_publish", "authorize", "on_published", "on_dropped", id="other")


@pytest.fixture
def harness(broker_harness: Make, mine: HookRecorder, other: HookRecorder) -> Harness:
    return broker_harness(plugins=[mine, other])


class Told:
    """Records the result of an awaitable."""

    def __init__(self, harness: Harness, awaitable: Awaitable[Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.cancel = harness.clock.spawn(awaitable, self._told)

    def _told(self, result: Any, error: BaseException | None) -> None:
        self.done, self.result, self.error = True, result, error


@pytest.mark.parametrize("depth", [1, 4])
def test_plugins_that_answer_each_other_come_to_an_end(
    broker_harness: Make, mine: HookRecorder, depth: int
) -> None:
    other = HookRecorder("on_publish", "on_dropped", id="other")
    harness = broker_harness(plugins=[mine, other], config={"broker": {"publish_depth": depth}})
    for plugin, name in ((mine, "mine"), (other, "other")):
        plugin.answer("on_publish", answering(harness, name))
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t")
    pub.publish("t", b"x")
    # Both plugins respond to the first message. After that, each responds to the other's messages.
    assert len(sub.messages) == 1 + 2 * depth
    harness.settle()
    dropped = other.calls("on_dropped")
    assert [call.why.reason for call in dropped] == [DropReason.DEPTH] * 2
    assert {call.why.direction for call in dropped} == {Direction.IN}
    assert {fields["plugin"] for fields in harness.logged("publish.too_deep")} == {"mine", "other"}
    pub.publish("t", b"y")  # the next message starts at depth 0
    assert len(sub.messages) == 2 * (1 + 2 * depth)


def answering(harness: Harness, name: str) -> Callable[[Message], None]:
    def answer(message: Message) -> None:
        harness.handle(name).publish(message.topic, message.payload)

    return answer


@pytest.mark.parametrize("hook", ["on_publish", "on_published"])
def test_a_loop_ends_though_answers_take_their_time(broker_harness: Make, hook: str) -> None:
    """A loop between plugins ends even if their responses take time, because coroutines and observers also pass on the
    depth.
    """
    pair = [HookRecorder(hook, id="mine"), HookRecorder(hook, id="other")]
    harness = broker_harness(plugins=pair, config={"broker": {"publish_depth": 3}})

    def slowly(name: str) -> Callable[[Message], Any]:
        async def answer(message: Message) -> None:
            await harness.clock.sleep(0.5)
            harness.handle(name).publish(message.topic, message.payload)

        # Observers also observe their own messages, so a single one that responds to them causes a loop.
        return answer

    for plugin in pair:
        plugin.answer(hook, slowly(plugin.id))
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t")
    pub.publish("t", b"x")
    harness.clock.advance(120)
    harness.settle()
    heard = len(sub.messages)
    assert heard == (1 + 2 * 3 if hook == "on_publish" else 1 + 2 + 4 + 8)
    assert harness.metrics.dropped["depth", "in"] == (2 if hook == "on_publish" else 16)
    harness.clock.advance(600)
    harness.settle()
    assert len(sub.messages) == heard
    pub.publish("t", b"y")  # the next message starts at depth 0
    harness.clock.advance(120)
    harness.settle()
    assert len(sub.messages) == 2 * heard


def test_a_loop_ends_for_who_waits_too(broker_harness: Make, mine: HookRecorder) -> None:
    other = HookRecorder("on_publish", id="other")
    harness = broker_harness(plugins=[mine, other], config={"broker": {"publish_depth": 1}})
    waits: list[Told] = []

    def answer(message: Message) -> None:
        waits.append(Told(harness, harness.handle("other").publish_and_wait("t", b"")))

    other.answer("on_publish", answer)
    harness.handle("mine").publish("t", b"")
    harness.settle()
    (told,) = waits
    assert isinstance(told.error, PluginError)
