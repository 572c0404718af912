"""A real mosquitto and a real HookMQ with equivalent configurations."""

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from differential.playing import Script, Step, play
from ports import free_port
from serving import WAIT, serving

LIMITS = {
    "broker.receive_maximum": 20,
    "broker.topic_alias_maximum": 10,
    "session.max_inflight": 20,
    "session.queue_messages": 1000,
}
CONFIG = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
sys_interval 0
set_tcp_nodelay true
max_packet_size 1048576
log_dest stderr
"""
OURS = """\
version: 1
listeners: [{name: tcp, type: tcp, bind: "127.0.0.1:0"}]
auth: {default: allow}
authz: {default: allow}
"""


def mosquitto() -> str | None:
    """Return the path of mosquitto 2.0, or None if it is not installed."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def version(program: str) -> str:
    """Return the version that mosquitto prints, such as 2.0.11."""
    told = subprocess.run([program, "-h"], capture_output=True, text=True, check=False).stdout
    return told.partition("\n")[0].rpartition(" ")[2]


@contextmanager
def _mosquitto(program: str, folder: Path) -> Iterator[int]:
    port = free_port()
    config = folder / "mosquitto.conf"
    config.write_text(CONFIG.format(port=port))
    process = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    log: list[str] = []
    try:
        for line in process.stderr:
            log.append(line)
            if "running" in line:
                break
        else:
            raise AssertionError(f"mosquitto did not start: {log}")
        with ThreadPoolExecutor(1) as reader:
            reader.submit(process.stderr.read)
            try:
                yield port
            finally:
                process.terminate()
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(WAIT)
        process.stderr.close()


class Brokers:
    """Both brokers. Scripts are played against them at the same time."""

    def __init__(self, theirs: int, ours: int) -> None:
        self.theirs = theirs
        self.ours = ours
        self._pool = ThreadPoolExecutor(1)

    def both(self, script: Script) -> tuple[list[Step], list[Step]]:
        """Play a script against both brokers. Return mosquitto's steps, then HookMQ's steps."""
        theirs: Future[list[Step]] = self._pool.submit(play, script, self.theirs)
        try:
            ours = play(script, self.ours)
        finally:
            found = theirs.exception()
        if found is not None:
            raise found
        return theirs.result(), ours


@contextmanager
def brokers(program: str, folder: Path) -> Iterator[Brokers]:
    """Run both brokers until the block ends."""
    (folder / "hookmq.yaml").write_text(OURS)
    words = [word for item in LIMITS.items() for word in ("-o", "{}={}".format(*item))]
    with (
        _mosquitto(program, folder) as theirs,
        serving("-c", str(folder / "hookmq.yaml"), *words) as served,
    ):
        yield Brokers(theirs, served.ports["tcp"])
