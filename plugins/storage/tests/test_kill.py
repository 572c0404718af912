"""Test that a real broker keeps acknowledged data when it is killed. tests/crash runs twenty more kills."""

import os
import resource
import signal
from pathlib import Path

import crashing as support
import pytest
from crashing import Client, crashing
from killing.rounds import kill_and_check
from serving import WAIT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("durability", ["group", "os"])
@pytest.mark.slow
def test_kills(tmp_path: Path, durability: str) -> None:
    kill_and_check(tmp_path, kills=2 if durability == "group" else 1, durability=durability)


def test_a_slow_disk_slows_acknowledgements_only(tmp_path: Path) -> None:
    with crashing(tmp_path) as broker:
        one, two = Client(broker, "one"), Client(broker, "two")
        one.subscribe("live", 0)
        one.subscribe("kept", 1)
        writer = broker.writer()
        os.kill(writer, signal.SIGSTOP)  # a disk that takes its time
        two.publish(1, "kept", 1)
        two.publish(2, "live", 0)
        one.wait(lambda: any(topic == "live" for topic, _, _ in one.got))
        for number in range(3, 20):
            one.publish(number, "live", 0)
        one.wait(lambda: len([1 for topic, _, _ in one.got if topic == "live"]) == 18)
        assert 1 not in two.acked
        os.kill(writer, signal.SIGCONT)
        two.wait(lambda: 1 in two.acked)
        one.wait(lambda: any(topic == "kept" for topic, _, _ in one.got))
        one.close()
        two.close()
        assert broker.stop() == 0


def test_a_writer_that_dies_ends_the_broker(tmp_path: Path) -> None:
    with crashing(tmp_path) as broker:
        one = Client(broker, "one")
        one.subscribe("kept", 1)
        os.kill(broker.writer(), signal.SIGKILL)
        one.publish(1, "kept", 1)
        assert broker.served is not None
        failed = broker.served.wait_for("store.failed")
        assert failed["reason"] == "the writer process was killed by signal 9"
        assert broker.ended() == 1
        assert one.acked == []
        one.close()
        broker.start()
        again = Client(broker, "one")
        assert again.present == [True]
        again.close()
        assert broker.stop() == 0


def test_a_disk_that_hangs_does_not_keep_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = support.CONFIG
    monkeypatch.setattr(support, "CONFIG", usual + "broker: {{shutdown_timeout: 300ms}}\n")
    with crashing(tmp_path) as broker:
        one = Client(broker, "one")
        one.publish(1, "kept", 1, retain=True)
        one.wait(lambda: one.acked == [1])
        writer = broker.writer()
        os.kill(writer, signal.SIGSTOP)
        one.publish(2, "kept", 1, retain=True)
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(WAIT) == 1
        os.kill(writer, signal.SIGKILL)
        assert broker.ended() == 1
        assert broker.served is not None
        assert (
            "the store did not close within 0.3 s: the disk is slow or hangs"
            in broker.served.errors[-1]
        )
        assert one.acked == [1]
        monkeypatch.setattr(support, "CONFIG", usual)
        broker.start()
        one.wait(lambda: one.acked == [1, 2])
        one.close()
        assert broker.stop() == 0


def test_signals_are_for_the_broker(tmp_path: Path) -> None:
    """The writer ignores signals sent to the whole process group, for example by Ctrl-C. It keeps running until the
    last commit.
    """
    with crashing(tmp_path) as broker:
        one = Client(broker, "one")
        writer = broker.writer()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(writer, number)
        one.subscribe("kept", 1)
        one.publish(1, "kept", 1)
        one.wait(lambda: one.acked == [1])
        one.close()
        assert broker.stop() == 0


def test_a_full_disk_ends_the_broker(tmp_path: Path) -> None:
    with crashing(tmp_path) as broker:
        reader = Client(broker, "reader")
        reader.subscribe("kept", 1)
        reader.close()
        sender = Client(broker, "sender")
        for number in range(20):
            sender.publish(number, "kept", 1)
        sender.wait(lambda: len(sender.acked) == 20)
        # No file may grow any more, as on a full disk.
        resource.prlimit(broker.writer(), resource.RLIMIT_FSIZE, (4096, 4096))
        for number in range(20, 40):
            sender.publish(number, "kept", 1)
        assert broker.served is not None
        failed = broker.served.wait_for("store.failed")
        assert str(tmp_path / "data") in failed["reason"]
        assert broker.ended() == 1
        acked = list(sender.acked)
        assert acked[:20] == list(range(20))
        broker.start()
        sender.wait(lambda: len(sender.acked) == 40)
        sender.close()
        reader = Client(broker, "reader")
        reader.wait(lambda: len({payload for _, payload, _ in reader.got}) == 40)
        assert reader.present == [True]
        reader.close()
        assert broker.stop() == 0
