"""Provide one broker for all tests in a module."""

from collections.abc import Iterator

import pytest
from admin_site import Site
from hookmq_queues.plugin import QueuesPlugin
from hookmq_testing import make_plugin


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("admin")
    queues = [{"name": "jobs"}, {"name": "events", "type": "stream"}]
    config = {"path": folder / "queues", "queues": queues, "sync": False}
    made = Site(folder, (make_plugin(QueuesPlugin, config, "queues"),))
    yield made
    made.close()
