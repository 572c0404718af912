"""Compile and run the load generator, which is in C: load/*.c."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE / "load"
BUILD = HERE.parent / "build" / "bench"
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")


class GeneratorError(Exception):
    """The generator cannot be built, or it gave up; the text says why."""


def find_compiler() -> str | None:
    """The C compiler: $CC, else the first of cc, gcc, clang that is installed; None if there is none."""
    wanted = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next((path for name in wanted if (path := shutil.which(name))), None)


def build() -> pathlib.Path:
    """The compiled generator; compiles when source or flags have changed since the last time.

    Raises GeneratorError without a C compiler or when it reports an error.
    """
    compiler = find_compiler()
    if compiler is None:
        raise GeneratorError("no C compiler (cc, gcc or clang; or set CC): the load generator is C")
    files = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(" ".join((compiler, *FLAGS)).encode())
    for file in files:
        digest.update(file.read_bytes())
    binary = BUILD / f"load-{digest.hexdigest()[:16]}"
    if not binary.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        fresh = BUILD / f"{binary.name}.{os.getpid()}"
        command = [compiler, *FLAGS, "-o", str(fresh), *map(str, SOURCES.glob("*.c")), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise GeneratorError(f"{' '.join(command)} failed:\n{done.stderr}")
        # Renamed when complete: two runs may compile at the same time.
        fresh.replace(binary)
        for old in BUILD.glob("load-*"):
            if old != binary and "." not in old.name:
                old.unlink(missing_ok=True)
    return binary


def run(
    words: Mapping[str, str], *, port: int, pids: Iterable[int], timeout: float = 120.0
) -> dict[str, Any]:
    """Run one load against the broker on 127.0.0.1:`port` and return what it printed.

    `words` are its keys (arguments.c), `pids` the broker's processes, whose CPU time it reads at both ends of
    the measured interval. Blocks. Raises GeneratorError when the generator reports an error: the
    broker refused, closed a connection, answered against the protocol, or did not answer for
    `timeout` seconds.
    """
    command = [str(build()), f"port={port}", *(f"pid={pid}" for pid in pids)]
    command += [f"{key}={value}" for key, value in words.items()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise GeneratorError(f"no result after {timeout:g} s") from None
    try:
        result = json.loads(done.stdout)
    except ValueError:
        raise GeneratorError(f"exit code {done.returncode}: {done.stderr.strip()}") from None
    if not isinstance(result, dict):
        raise GeneratorError(f"not a JSON object: {done.stdout!r}")
    if "error" in result:
        raise GeneratorError(str(result["error"]))
    return result
