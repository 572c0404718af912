"""The pytest marks for the conformance tests. See `statements` in tests/support and docs/reference/conformance.md."""

from collections.abc import Callable, Iterator

import pytest
from cluster_front import cluster_harness, nodes_wanted
from hookmq_testing import Harness


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "statement(*ids): normative statements that a test covers")
    config.addinivalue_line("markers", "edge(*numbers): edge cases that a test covers")
    config.addinivalue_line("markers", "one_broker(reason): the test cannot run on a cluster")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if nodes_wanted() else ():
        mark = item.get_closest_marker("one_broker")
        if mark is not None:
            item.add_marker(pytest.mark.skip(reason=f"one broker only: {mark.args[0]}"))


if nodes_wanted():

    @pytest.fixture
    def broker_harness() -> Iterator[Callable[..., Harness]]:
        """Create clusters whose nodes together are one broker; see `cluster_front`."""
        made: list[Harness] = []

        def make(*args: object, **options: object) -> Harness:
            made.append(cluster_harness(*args, **options))
            return made[-1]

        yield make
        for one in made:
            one.close()
