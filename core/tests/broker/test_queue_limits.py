"""Test that copies of the queue limits follow the settings, even after a reload."""

from collections.abc import Callable

from hookmq.broker.queue_limits import QueueLimits
from hookmq.model.settings import BrokerSettings, SessionSettings, Settings
from hookmq_testing import Harness

SETTINGS = Settings(
    session=SessionSettings(
        inflight_overflow="backpressure", queue_bytes=1, queue_drop="oldest", queue_page=2
    ),
    broker=BrokerSettings(max_queue_bytes=3, queue_memory=4),
)


def values(limits: QueueLimits) -> tuple[object, ...]:
    return (
        limits.back_pressure, limits.queue_bytes, limits.queue_drop, limits.queue_page, limits.max_queue_bytes,
        limits.queue_memory,
    )  # fmt: skip


def test_a_reload_replaces_the_limits(broker_harness: Callable[..., Harness]) -> None:
    harness = broker_harness()
    state = harness.broker.state
    assert values(state.queue_limits) == values(QueueLimits(state.settings))
    state.use(SETTINGS, state.hooks)
    assert values(state.queue_limits) == (True, 1, "oldest", 2, 3, 4)
