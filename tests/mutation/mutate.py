"""Mutation testing: plant small faults in a module, one at a time, and report those that its tests do not detect.

    .venv/bin/python tests/mutation/mutate.py [MODULE...] [--sample N] [--seed N]

MODULE is a name in `SUITES`, such as codec.header; the default is all of them. Surviving mutants are printed with their
change. Each one either reveals a gap in the tests or has no observable effect. In the second case, add it to
equivalent.tsv with the reason. The exit code is 0 if no other mutant survived.

No file is changed. The tests are collected once. Each mutant is tried in a fork of that process, in which the module's
functions get the code of the mutant. Only the tests that run the changed lines are executed, the fastest first. Code
that only runs at import is tried in a fork that has not imported the module yet.
"""

import argparse
import contextlib
import csv
import gc
import importlib.abc
import importlib.util
import os
import pickle
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

import hypothesis
import pytest

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
sys.path[:0] = [str(ROOT / "core"), str(HERE)]

from operators import Mutant, mutants  # noqa: E402

SUITES: Final[dict[tuple[str, ...], tuple[str, ...]]] = {
    ("core/tests/mqtt", "core/tests/scenarios/codec"): (
        "mqtt.connect_packet",
        "mqtt.decoder",
        "mqtt.encoder",
        "mqtt.framing",
        "mqtt.packet_bodies",
        "mqtt.packets",
        "mqtt.primitives",
        "mqtt.properties",
        "mqtt.property_section",
    ),
    ("core/tests/mqtt/test_topics.py",): ("mqtt.topics",),
    ("core/tests/routing",): ("routing.subscription_tree",),
    ("core/tests/session", "core/tests/broker", "core/tests/scenarios"): (
        "session.inflight",
        "session.session",
        "broker.delivery.completion",
        "broker.delivery.transmit",
        "broker.delivery.queue",
        "broker.delivery.shared",
        "broker.handlers.publish",
        "broker.handlers.subscribe",
        "broker.publish.fan_out",
        "broker.sessions.due_will",
        "broker.sessions.lifecycle",
        "broker.sessions.subscriptions",
        "broker.sessions.wills",
    ),
}
"""The modules tested by each group of test files."""

PATIENCE: Final = 2.0
"""CPU seconds, added to five times the normal duration, after which a test counts as an endless loop. The mutant is
then detected.
"""
CPU_SECONDS: Final = 200.0
"""The corresponding limit for a whole run, in CPU seconds."""
MEMORY: Final = 3 << 30

Lines = dict[str, set[int]]


OUT: Final = os.fdopen(os.dup(1), "w")
"""The output for survivors, which are printed as they are found. Pytest's own output is redirected."""


def show(mutant: Mutant) -> None:
    print(f"\n{mutant.module}:{mutant.first_line} {mutant.scope}: {mutant.line}", file=OUT)
    print(f"  - {mutant.old}\n  + {mutant.new}", file=OUT, flush=True)


def path_of(module: str) -> Path:
    return ROOT / "core" / "hookmq" / (module.replace(".", "/") + ".py")


# -- forks


def in_fork(work: Callable[[], Any], cpu_seconds: float | None = None) -> Any:
    """Run `work` in a forked process and return its result, or None if the process died."""
    with tempfile.TemporaryFile() as told:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                null = os.open(os.devnull, os.O_RDWR)
                for number in (0, 1, 2):
                    os.dup2(null, number)
                if cpu_seconds is not None:
                    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
                    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_seconds)
                    signal.setitimer(signal.ITIMER_REAL, 5 * cpu_seconds)
                told.write(pickle.dumps(work()))
                told.flush()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        told.seek(0)
        answer = told.read()
    return pickle.loads(answer) if answer else None


@contextlib.contextmanager
def traced(files: frozenset[str], into: Lines) -> Iterator[None]:
    """Record which lines of `files` are executed."""

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            into.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
        return local

    def entered(frame: FrameType, event: str, _: Any) -> Any:
        return local if frame.f_code.co_filename in files else None

    sys.settrace(entered)
    try:
        yield
    finally:
        sys.settrace(None)


# -- replacing the module with a mutant


def functions_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from functions_in(constant)


def functions_of(file: str) -> list[FunctionType]:
    """Return the live functions defined in `file`."""
    return [
        thing
        for thing in gc.get_objects()
        if isinstance(thing, FunctionType) and thing.__code__.co_filename == file
    ]


def install(functions: list[FunctionType], original: CodeType, changed: CodeType) -> None:
    """Replace the code of a module's live functions with that of the mutant.

    Raise ValueError if that is impossible for a function, for example because it closes over fewer variables.
    """
    pairs = zip(functions_in(original), functions_in(changed), strict=True)
    by_place = {(old.co_qualname, old.co_firstlineno): new for old, new in pairs}
    for function in functions:
        code = function.__code__
        new = by_place.get((code.co_qualname, code.co_firstlineno))
        if new is not None:
            function.__code__ = new


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a mutant in place of its module."""

    def __init__(self, name: str, code: CodeType) -> None:
        self.name = name
        self.code = code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.code.co_filename, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)


# -- testing the mutants


class Trial:
    """Replaces pytest's loop over the tests. It measures each test once, then tries every mutant."""

    def __init__(self, wanted: list[Mutant], sources: dict[str, str]) -> None:
        self.wanted = wanted
        self.sources = sources
        self.functions: dict[str, list[FunctionType]] = {}
        self.survivors: list[Mutant] = []
        self.unfit: list[Mutant] = []
        """The mutants that cannot be installed in modules that are already imported."""
        self.trouble = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        files = frozenset(str(path_of(name)) for name in self.sources)
        measured = in_fork(lambda: _measure(session, files))
        if measured is None or session.testsfailed:
            self.trouble = "the tests fail before anything is changed"
            return True
        seconds, lines = measured
        self.functions = {file: functions_of(file) for file in files}
        gc.freeze()  # memory that the forks do not change remains shared
        for mutant in self.wanted:
            place = str(path_of(mutant.module))
            span = range(mutant.first_line, mutant.last_line + 1)
            tests = [n for n in seconds if not lines[n].get(place, set()).isdisjoint(span)]
            tests.sort(key=lambda n: seconds[n])
            OUT.write(".")
            OUT.flush()
            passed = self._try(session, mutant, {n: seconds[n] for n in tests})
            if passed is None:
                self.unfit.append(mutant)
            elif passed:
                show(mutant)
                self.survivors.append(mutant)
        return True

    def _try(self, session: pytest.Session, mutant: Mutant, tests: dict[int, float]) -> bool | None:
        """Return whether all `tests` (number: expected CPU seconds) pass, or None if this process cannot tell."""
        place = str(path_of(mutant.module))
        source = self.sources[mutant.module]

        def attempt() -> tuple[bool | None]:
            changed = compile(mutant.apply(source), place, "exec")
            try:
                install(self.functions[place], compile(source, place, "exec"), changed)
            except ValueError:
                return (None,)
            return (_passes(session, tests),)

        answer: tuple[bool | None] | None = in_fork(attempt, CPU_SECONDS)
        return False if answer is None else answer[0]


def _passes(session: pytest.Session, tests: dict[int, float]) -> bool:
    numbers = list(tests)
    for place, number in enumerate(numbers):
        signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE + 5 * tests[number])
        following = session.items[numbers[place + 1]] if place + 1 < len(numbers) else None
        item = session.items[number]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return False
    return True


def _measure(
    session: pytest.Session, files: frozenset[str]
) -> tuple[dict[int, float], dict[int, Lines]] | None:
    """Return the CPU seconds of each test and the lines of `files` that it executes, or None if a test fails."""
    seconds: dict[int, float] = {}
    lines: dict[int, Lines] = {}
    for number in range(len(session.items)):
        lines[number] = {}
        started = time.process_time()
        with traced(files, lines[number]):
            passes = _passes(session, {number: CPU_SECONDS})
        seconds[number] = time.process_time() - started
        if not passes:
            return None
    return seconds, lines


def run_pytest(tests: tuple[str, ...], *plugins: object, stop: bool = False) -> int:
    options = ["-q", "-s", "-m", "not slow", "-o", "timeout=0", "--rootdir", str(ROOT)]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # Hypothesis is imported here
    if stop:
        options.append("-x")
    return pytest.main(
        ["-c", str(ROOT / "pyproject.toml"), *options, *(str(ROOT / t) for t in tests)],
        plugins=list(plugins),
    )


def lines_of_import(modules: Sequence[str]) -> Lines:
    """Return the lines of `modules` that run at import, which cannot be changed afterwards."""

    def work() -> Lines:
        found: Lines = {}
        with traced(frozenset(str(path_of(m)) for m in modules), found):
            for module in modules:
                importlib.import_module(f"hookmq.{module}")
        return found

    found: Lines = in_fork(work)
    return found


def try_suite(
    tests: tuple[str, ...], wanted: list[Mutant], sources: dict[str, str]
) -> list[Mutant]:
    """Return the mutants among `wanted` that `tests` do not detect."""
    imported = lines_of_import(sorted(sources))
    early = [
        m
        for m in wanted
        if m.at_import or m.first_line in imported.get(str(path_of(m.module)), set())
    ]
    late = [m for m in wanted if m not in early]

    def attempt_late() -> tuple[list[Mutant], list[Mutant], str]:
        trial = Trial(late, sources)
        run_pytest(tests, trial)
        return trial.survivors, trial.unfit, trial.trouble

    survivors: list[Mutant] = []
    if late:
        answer = in_fork(attempt_late)
        if answer is None or answer[2]:
            sys.exit(f"{' '.join(tests)}: {answer[2] if answer else 'no result'}")
        survivors += answer[0]
        early += answer[1]
    for mutant in early:

        def attempt(mutant: Mutant = mutant) -> bool:
            changed = mutant.apply(sources[mutant.module])
            code = compile(changed, str(path_of(mutant.module)), "exec")
            name = f"hookmq.{mutant.module}"
            sys.meta_path.insert(0, Finder(name, code))
            importlib.import_module(name)  # before pytest puts its own finder first
            return run_pytest(tests, stop=True) == 0

        if in_fork(attempt, CPU_SECONDS) is True:
            show(mutant)
            survivors.append(mutant)
    return survivors


def equivalent() -> set[tuple[str, ...]]:
    """Return the keys of the mutants that behave like the source."""
    with (HERE / "equivalent.tsv").open(newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return {tuple(row[:6]) for row in rows[1:]}


def stale() -> list[tuple[str, ...]]:
    """Return the listed keys that no longer match a mutant because their function or its code changed."""
    listed = equivalent()
    made: set[tuple[str, ...]] = set()
    for module in {key[0] for key in listed}:
        path = path_of(module)
        if path.exists():
            made |= {mutant.key() for mutant in mutants(module, path.read_text())}
    return sorted(listed - made)


def main() -> int:
    parser = argparse.ArgumentParser(description="Which faults do the tests miss?")
    parser.add_argument("modules", nargs="*", help="such as mqtt.framing; default: all")
    parser.add_argument("--sample", type=int, help="at most so many mutants of a module")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    options = parser.parse_args()
    every = [name for names in SUITES.values() for name in names]
    unknown = set(options.modules) - set(every)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(every)}")
    hypothesis.settings.register_profile(
        "mutants",
        deadline=None,
        derandomize=True,
        database=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    )
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"
    excused = equivalent()
    if gone := stale():
        sys.exit("equivalent.tsv lists mutants that no longer exist:\n" + "\n".join(map(str, gone)))
    failed = False
    for tests, names in SUITES.items():
        chosen = [name for name in names if not options.modules or name in options.modules]
        sources = {name: path_of(name).read_text() for name in chosen}
        wanted: list[Mutant] = []
        totals: dict[str, str] = {}
        for name in chosen:
            found = mutants(name, sources[name])
            made = [m for m in found if m.key() not in excused]
            totals[name] = f"{len(found)} mutants, {len(found) - len(made)} of them equivalent"
            if options.sample is not None and len(made) > options.sample:
                made = random.Random(options.seed).sample(made, options.sample)
            wanted += made
        if not wanted:
            continue
        survivors = try_suite(tests, wanted, sources)
        for name in chosen:
            tried = sum(m.module == name for m in wanted)
            left = sum(m.module == name for m in survivors)
            print(f"\n{name}: {tried - left} of {tried} found ({totals[name]})", flush=True)
        failed = failed or bool(survivors)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
