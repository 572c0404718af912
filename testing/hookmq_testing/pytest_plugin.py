"""The pytest plugin of the testing kit: the fixtures `harness` and `broker_harness`.

pytest loads this plugin in every project that has HookMQ installed. It imports nothing from HookMQ until a fixture is
used. Startup therefore remains fast, and coverage sees all imports.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hookmq_testing.harness import Harness

pytest.register_assert_rewrite("hookmq_testing.contracts")


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Hide pytest-asyncio's warning that a setting is missing.

    Tests that use the kit do not need the setting, because the kit runs coroutines itself. pytest restores all filters
    after this step.
    """
    message = 'The configuration option "asyncio_default_fixture_loop_scope" is unset'
    warnings.filterwarnings("ignore", message=message, category=pytest.PytestDeprecationWarning)


@pytest.fixture
def broker_harness() -> "Iterator[Callable[..., Harness]]":
    """Return ``broker_harness(plugins=[...], config={...})``, which creates a `Harness` and closes it after the
    test."""
    from hookmq_testing.harness import Harness

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
    """Return a `Harness` without plugins that allows everything. The harness is closed after the test."""
    return broker_harness()
