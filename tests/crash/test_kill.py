"""Twenty kills in a row under load: no acknowledged message lost, QoS 2 exactly once, sessions and retained kept."""

import os
from pathlib import Path

import pytest
from crashing import kill_and_check

KILLS = int(os.environ.get("KILLS", "20"))


@pytest.mark.slow
@pytest.mark.timeout(60 + 15 * KILLS)
def test_many_kills(tmp_path: Path) -> None:
    kill_and_check(tmp_path, KILLS)
