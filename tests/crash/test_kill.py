"""Test twenty kills under load.

No acknowledged message is lost, QoS 2 messages arrive exactly once, and the order, sessions,
retained messages and wills are kept. `make crash KILLS=1000` runs more kills. SEED repeats the
choices of a run.
"""

import asyncio
from dataclasses import fields
from pathlib import Path

import pytest
from killing.brokers import HookMQ, Mosquitto, mosquitto
from killing.ledger import BROKEN, Counts, Ledger, Seen
from killing.rounds import Broken, Run, kill_and_check

KILLS = 20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_kills(tmp_path: Path) -> None:
    counts = kill_and_check(tmp_path, KILLS)
    assert counts.kills == KILLS + 1
    assert not counts.broken()
    # The broker was busy when it was killed, and everything that is checked could have been lost.
    assert counts.acknowledged == counts.published > 100 * KILLS
    assert counts.due > 3 * counts.acknowledged / 2
    assert counts.returns > 5 * KILLS
    assert counts.retained_checks > 4 * KILLS
    assert counts.wills > KILLS


@pytest.mark.slow
def test_a_broker_that_keeps_nothing_is_found_out(tmp_path: Path) -> None:
    """The checks detect the messages lost by a broker without persistence."""
    counts = asyncio.run(Run(HookMQ(tmp_path, "memory"), 1, 0.5, False).run(3))
    broken = counts.broken()
    assert {"lost", "sessions_lost", "retained_wrong", "wills_lost"} <= set(broken)
    assert set(broken) <= BROKEN


@pytest.mark.slow
def test_mosquitto_is_judged_by_the_same(tmp_path: Path) -> None:
    if mosquitto() is None:
        pytest.skip("mosquitto is not installed (apt install mosquitto)")
    counts = asyncio.run(Run(Mosquitto(tmp_path, "default"), 1, 0.5, False).run(3))
    assert {"lost", "sessions_lost"} <= set(counts.broken())
    assert not counts.corrupt


def test_every_breach_is_counted() -> None:
    """The ledger distinguishes lost, late and duplicate messages from correct ones."""
    ledger = Ledger()
    stream = ledger.stream("t", 2)
    early = Seen(stream)
    for _ in range(6):
        stream.next()
    late = Seen(stream)
    for number in (1, 2, 3, 5):
        stream.acknowledge(number)
    for number in (1, 3, 2, 3, 6):
        early.take(number)
    assert early.lost() == 1  # 5; the broker did not acknowledge 4
    assert early.again() == 1  # 3
    assert early.reordered == 1  # 2 after 3
    assert list(early.due()) == [1, 2, 3, 5]
    assert late.lost() == 0
    stream.acknowledge(stream.next())
    assert (early.lost(), late.lost()) == (2, 1)
    late.take(7)
    assert late.lost() == 0


def test_a_count_is_a_promise_or_is_not() -> None:
    names = {field.name for field in fields(Counts)}
    assert names >= BROKEN >= {"lost", "duplicated", "reordered", "sessions_lost", "wills_wrong"}
    for name in names:
        assert bool(Counts(**{name: 1}).broken()) == (name in BROKEN)


EARLY = """\
import sys
if "serve" in sys.argv:
    import asyncio
    from hookmq.storage.records import CommitId
    from hookmq_storage.store import SQLiteStore

    wait = SQLiteStore.commit

    def commit(self, records, done):
        later = asyncio.get_running_loop().call_later
        later(0.5, lambda: wait(self, records, lambda result: None))
        done(CommitId(self.identity, self._number + 1))

    SQLiteStore.commit = commit
"""


@pytest.mark.slow
def test_an_acknowledgement_before_the_commit_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killing the broker reveals a planted bug that sends PUBACK before the commit is complete. The
    disk is so slow that a kill hits this interval.
    """
    folder = tmp_path / "planted"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(EARLY)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    with pytest.raises(Broken, match=r"lost|retained_wrong"):
        kill_and_check(tmp_path, 5, seed=1, patience=3.0)
