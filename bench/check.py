"""`python -m bench.check`: count the system calls per message, and check that a broken build is detected.

strace counts the calls while the generator runs, so neither the clock nor other work on the machine matters. The limits
verify batching: at W20, all packets that a connection sends in one turn of the event loop leave in one call. Under the
same load, `bench.broken`, which writes every packet separately, must exceed every limit. Otherwise, the limit would
prove nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from hookmq_bench import native

from . import launch, peers, report, scenarios

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITES = ("write", "writev", "sendto", "sendmsg")
READS = ("read", "readv", "recvfrom", "recvmsg")
LIMITS = {"fanin-q0-w20": 0.05, "pairs-q0-w20": 0.21, "fanout-q0-w10": 0.3, "pairs-q1-w20": 0.42}
"""The maximum number of write calls per delivered message, by scenario. At QoS 1, each message is also acknowledged."""


class CheckError(Exception):
    """The calls could not be counted. The message gives the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """System calls per delivered message, counted from the first CONNECT to the last message."""

    writes: float
    reads: float
    all: float


def broken() -> peers.Peer:
    """Return the altered HookMQ that writes each packet separately."""
    hookmq = peers.PEERS["hookmq"]
    path = f"{peers.HERE.parent}:{hookmq.environment['PYTHONPATH']}"
    return dataclasses.replace(
        hookmq,
        name="broken",
        program=lambda: sys.executable,
        arguments=("-m", "bench.broken", *hookmq.arguments),
        environment={**hookmq.environment, "PYTHONPATH": path},
    )


@contextlib.contextmanager
def traced(pid: int, output: pathlib.Path) -> Iterator[None]:
    """Count the system calls made by a process and its threads while the block runs. Raises CheckError."""
    strace = shutil.which("strace")
    if strace is None:
        raise CheckError("strace is not installed")
    command = [strace, "-f", "-c", "-p", str(pid), "-o", str(output)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()  # "Process N attached", or the reason why not
            if "attached" not in said:
                raise CheckError(f"strace: {said.strip()}")
            yield
        finally:
            process.send_signal(signal.SIGINT)


def tally(text: str) -> dict[str, int]:
    """Parse the output of `strace -c` into call counts by name."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 5 and words[3].isdigit() and words[-1] != "total":
            found[words[-1]] = found.get(words[-1], 0) + int(words[3])
    return found


def count(peer: peers.Peer, scenario: scenarios.Scenario, seconds: float) -> Counts:
    """Run a scenario against a peer and return its system calls. Raises CheckError if the run is void."""
    words = scenario.arguments(payload=64, level=4, seconds=seconds, warmup=0.0)
    with tempfile.TemporaryDirectory(prefix="hookmq-bench-check-") as name:
        folder = pathlib.Path(name)
        program, config = peer.program_or_error(), peer.configs["plain"]
        with launch.configured(peer, program, config, folder, None) as broker:
            time.sleep(0.2)  # keep the broker's startup out of the counts
            with traced(broker.pid, folder / "calls"):
                raw = native.run(words, port=broker.port, pids=broker.pids())
        calls = tally((folder / "calls").read_text())
    defects = report.Run(scenario, peer.name, raw).defects()
    if defects:
        raise CheckError(f"{scenario.name} against {peer.name} is void: {defects}")
    delivered = int(raw["delivered_total"])

    def of(names: tuple[str, ...]) -> float:
        return sum(calls.get(name, 0) for name in names) / delivered

    return Counts(of(WRITES), of(READS), sum(calls.values()) / delivered)


def main() -> int:
    """Print the table. Return 0, 1 if HookMQ exceeds a limit or the broken build does not, or 2 if counting is
    impossible."""
    summary, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="python -m bench.check", description=summary)
    parser.add_argument("--scenarios", default=",".join(LIMITS), metavar="NAMES")
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    good = True
    print("system calls for each delivered message\n")
    print(f"{'scenario':16}{'build':10}{'writes':>9}{'reads':>9}{'all':>9}   limit of writes")
    try:
        for scenario in scenarios.select(options.scenarios):
            for peer in (peers.PEERS["hookmq"], broken()):
                found = count(peer, scenario, options.seconds)
                limit = LIMITS[scenario.name]
                above = found.writes > limit
                wrong = above != (peer.name == "broken")
                good = good and not wrong
                verdict = "above, as it must be" if peer.name == "broken" else "kept"
                if wrong:
                    verdict = "NOT NOTICED" if peer.name == "broken" else "MISSED"
                print(
                    f"{scenario.name:16}{peer.name:10}{found.writes:9.3f}{found.reads:9.3f}{found.all:9.3f}"
                    f"   {limit:g} {verdict}",
                    flush=True,
                )
    except (CheckError, KeyError, peers.PeerError, native.NativeError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
