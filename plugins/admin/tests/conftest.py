"""One broker for all tests of a module."""

from collections.abc import Iterator

import pytest
from admin_site import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("admin"))
    yield made
    made.close()
