"""The pytest plugin of the testing kit: the fixtures `harness` and `broker_harness`.

It is loaded in every run of every project that has HookMQ installed, so it imports nothing of HookMQ until a fixture is
used: else the start would be slow, and coverage would miss what was imported before it began.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hookmq.testing.harness import Harness

pytest.register_assert_rewrite("hookmq.testing.contracts")


@pytest.fixture
def broker_harness() -> "Iterator[Callable[..., Harness]]":
    """``broker_harness(plugins=[...], config={...})``: a `hookmq.testing.Harness`, closed after the test."""
    from hookmq.testing.harness import Harness

    made: list[Harness] = []

    def make(*args: Any, **options: Any) -> Harness:
        harness = Harness(*args, **options)
        made.append(harness)
        return harness

    yield make
    for harness in reversed(made):
        harness.close()


@pytest.fixture
def harness(broker_harness: "Callable[..., Harness]") -> "Harness":
    """A `hookmq.testing.Harness` without plugins that allows everything, closed after the test."""
    return broker_harness()
