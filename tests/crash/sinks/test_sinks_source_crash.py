"""Kill the broker and the process of a source under load. Each entry that the origin accepted must be published once and
in order, and the origin must not count an entry as acknowledged before the broker has stored it.
"""

from pathlib import Path

import pytest
from long_tests import skip_unless_wanted
from sinkkill.sources import ORIGINS, SourceKill

KILLS = 2
"""The number of broker kills for each origin. `make crash-sinks SOURCE=NAME` kills more often."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["http", "kafka"])
def test_each_entry_is_published_once(
    tmp_path: Path, request: pytest.FixtureRequest, name: str
) -> None:
    if name == "kafka":
        skip_unless_wanted(request, ())
    origin = ORIGINS[name]()
    try:
        run = SourceKill(tmp_path, origin, seed=7)
        run.run(KILLS)
    finally:
        origin.close()
    assert run.broker_kills == KILLS
    assert run.source_kills >= KILLS
    assert run.ledger.total > 10
    assert name != "kafka" or run.acknowledged > 0
