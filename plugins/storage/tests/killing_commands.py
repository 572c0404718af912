"""Kill ``hookmq storage`` at each of its disk operations in turn. After each kill, print what the store contains, as
one line of JSON.

    python killing_commands.py TEMPLATE WORK data storage repair @/data

test_killed_commands runs this program. An `@` in the arguments is replaced by a copy of the folder TEMPLATE, with a new
copy for each operation. ``data`` is the store to check in that folder.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from hookmq.plugin import HookMQError
from hookmq_storage.store import SQLiteStore
from hookmq_testing import run_command
from hookmq_testing.runtime import VirtualRuntime

STEPS = frozenset(
    {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "sqlite3.connect"}
)


def run(words: list[str], steps: int | None) -> int:
    """Run the command in a child process that is killed at operation number `steps`. Return its exit code, or -9 if it
    was killed.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = steps

    def step(name: str, arguments: Any) -> None:
        nonlocal left
        if name in STEPS and left is not None:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(step)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    os._exit(run_command(words))


def found(folder: Path) -> int | str:
    """Return the number of records that a broker would load, or the error message that it would report."""
    try:
        store = SQLiteStore(folder, VirtualRuntime(seed=1))
        count = len(list(store.load()))
    except HookMQError as error:
        return str(error)
    store.close(lambda: None)
    return count


def kill_all(template: Path, work: Path, store: str, words: list[str]) -> None:
    """Kill the command at each operation in turn, until it finishes on its own."""
    run_command(
        ["storage", "export", str(template / "data"), "-o", os.devnull]
    )  # children import nothing more
    steps = 0
    code = -9
    while code == -9:
        here = work / str(steps)
        shutil.copytree(template, here)
        again = work / f"{steps}-again"
        command = [word.replace("@", str(here)) for word in words]
        code = run(command, steps)
        shutil.copytree(here, again)
        repeated = run([word.replace("@", str(again)) for word in words], None)
        files = sorted(path.name for path in (here / store).glob("*"))
        line = {"step": steps, "code": code, "files": files, "found": found(here / store)}
        print(json.dumps({**line, "again": repeated, "then": found(again / store)}), flush=True)
        steps += 1


if __name__ == "__main__":
    kill_all(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
