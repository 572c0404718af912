"""How the property tests draw their inputs: a profile of Hypothesis, chosen by HYPOTHESIS_PROFILE.

dev (the default) draws new inputs every time; ci draws the same ones every time, so that a failure comes from the change
that is tested. `make fuzz` is dev again and again.

Brokers of tests that are given no folder keep their state in one of the test run's own.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("dev"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither the checkout nor the user's home, for the processes that tests start as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("STATE_DIRECTORY", raising=False)
        yield
