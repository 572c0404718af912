"""Tests that take too long for each run of CI. Run them with `make test-sources`."""

import os
from collections.abc import Collection

import pytest

VARIABLE = "HOOKMQ_LONG_TESTS"


def skip_unless_wanted(request: pytest.FixtureRequest, always: Collection[str] = ()) -> None:
    """Skip a test unless the environment variable is set or the test's name is in `always`."""
    if not os.environ.get(VARIABLE) and request.node.name not in always:
        pytest.skip(f"takes long: set {VARIABLE}=1, as make test-sources does")
