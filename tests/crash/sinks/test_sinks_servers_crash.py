"""Kill the broker, the sink's process and the target itself under load. The target must have every acknowledged message
once, in order for each key.
"""

from pathlib import Path

import pytest
from sinkkill.rounds import SinkKill
from sinkkill.servers import TARGETS

KILLS = 2
"""The number of broker kills for each target. `make crash-sinks` kills more often, and all kinds of targets."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["nats", "postgres", "redis", "s3"])
def test_a_server_has_each_message_once(tmp_path: Path, name: str) -> None:
    target, kills = TARGETS[name](), KILLS
    try:
        run = SinkKill(
            tmp_path, target.sink(), target.read, once=target.once, seed=7,
            stop_target=target.stop, start_target=target.start,
        )  # fmt: skip
        run.run(kills)
    finally:
        target.close()
    assert run.broker_kills == kills
    assert run.sender_kills >= 1
    assert run.target_kills >= 1
    assert run.ledger.total > 10 * kills
