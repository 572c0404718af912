"""Repeatedly kill a HookMQ broker and its sink's process under load. Then compare the target with a ledger.

    .venv/bin/python tests/crash/sinks --kills 200
    .venv/bin/python tests/crash/sinks --kills 200 --source redis

With `--source`, it kills a source instead, and compares the published messages with the origin's entries.

The program exits with code 1 at the first broken guarantee and keeps the data. `make crash-sinks KILLS=200` runs it.
"""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from sinkkill.files import read_lines
from sinkkill.rounds import Broken, SinkKill
from sinkkill.servers import TARGETS
from sinkkill.sources import ORIGINS, SourceKill


def main() -> int:
    """Run the program. Return 0 if every guarantee was kept."""
    parser = argparse.ArgumentParser(prog="tests/crash/sinks", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="repeats the choices of a run")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--driver", choices=("file", *TARGETS), default="file")
    parser.add_argument("--source", choices=tuple(ORIGINS), help="kill a source instead of a sink")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 32)
    folder = Path(tempfile.mkdtemp(prefix="hookmq-crash-sinks-"))
    if options.source:
        return kill_source(options.source, folder, options.kills, seed)
    server = None if options.driver == "file" else TARGETS[options.driver]()
    if server is None:
        out = folder / "out"
        target = {"path": str(out), "rotate_size": "64KiB"}
        sink = {"driver": "file", "target": target, "lanes": options.lanes}
        run = SinkKill(folder, sink, lambda: read_lines(out), once=True, seed=seed)
    else:
        run = SinkKill(
            folder, {**server.sink(), "lanes": options.lanes}, server.read, server.once, seed, server.stop, server.start
        )  # fmt: skip
    try:
        run.run(options.kills, lambda line: print(line, flush=True))
    except Broken as error:
        print(f"broken: {error}\nthe data is in {folder}; seed {seed}")
        return 1
    finally:
        if server is not None:
            server.close()
    shutil.rmtree(folder)
    print(
        f"{run.broker_kills} kills of the broker, {run.sender_kills} of the sink's process, {run.target_kills} of the "
        f"target; {run.ledger.total} messages acknowledged, {len(run.stored)} stored; nothing broken; seed {seed}"
    )
    return 0


def kill_source(name: str, folder: Path, kills: int, seed: int) -> int:
    """Run the program for a source. Return 0 if every guarantee was kept."""
    origin = ORIGINS[name]()
    run = SourceKill(folder, origin, seed)
    try:
        run.run(kills, lambda line: print(line, flush=True))
    except Broken as error:
        print(f"broken: {error}\nthe data is in {folder}; seed {seed}")
        return 1
    finally:
        origin.close()
    shutil.rmtree(folder)
    print(
        f"{run.broker_kills} kills of the broker, {run.source_kills} of the source's process; "
        f"{run.ledger.total} entries, {run.repeated} published again; nothing broken; seed {seed}"
    )
    if run.acknowledged:
        print(f"{run.acknowledged} entries were acknowledged at a kill; all of them were stored")
    return 0


if __name__ == "__main__":
    sys.exit(main())
