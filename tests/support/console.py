"""Run the commands that the manual shows at a prompt, and compare their output with the manual.

A line that begins with ``$`` is a command. The lines up to the next command are its output, in which ``...`` matches
anything. A command without output in the manual must succeed, but may print anything. The supported commands are
`hookmq` with all its subcommands, `hookmq-worker`, `python`, `cat`, `cd`, `pip install -e .`, `pytest`, `curl`, `export`
and `make`. For `make`, only the existence of the target is checked.

``hookmq serve`` keeps running in the background, on ports that the kernel chooses. Later commands are redirected from
the port in the manual, or the default port, to the real one. A worker also runs in the background, and must exit with
code 0. ``cat`` waits until its output matches, because workers write files at any time.
"""

import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hookmq.config.model import Config, default_config, load
from serving import WAIT, Served, serving
from workspace import ROOT

HOOKMQ = [sys.executable, "-m", "hookmq.cli"]
CLIENTS = ("pub", "sub", "rr")


@dataclass(frozen=True)
class Step:
    """A command and the expected output, or None if the manual shows no output."""

    command: str
    output: str | None


def steps(text: str) -> list[Step]:
    """Return the steps in a block."""
    found: list[Step] = []
    command = ""
    output: list[str] = []
    for line in [*text.splitlines(), "$ "]:
        if line.startswith("$ "):
            if command:
                found.append(Step(command, "\n".join(output) if output else None))
            command, output = line[2:], []
        elif command.endswith("\\"):
            command = command[:-1] + line.strip()
        elif not command:
            raise ValueError(f"output before the first command: {line!r}")
        else:
            output.append(line)
    return found


def like(shown: str, printed: str) -> bool:
    """Return whether `printed` matches `shown`, where ``...`` stands for any text."""
    pattern = ".*".join(re.escape(part) for part in shown.strip().split("..."))
    return re.fullmatch(pattern, printed.strip(), re.S) is not None


@dataclass
class Console:
    """A shell prompt in `folder`, used as a reader of the manual would use it."""

    folder: Path
    stack: ExitStack
    environ: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    broker: Served | None = None

    def run(self, step: Step) -> None:
        """Run a step. Raise AssertionError if it fails or its output does not match."""
        words = shlex.split(step.command)
        program, arguments = words[0], words[1:]
        if program == "export":
            for word in arguments:
                name, _, value = word.partition("=")
                self.environ[name] = self._moved(value)
            return
        if program == "cd":
            [folder] = arguments
            self.folder = self.folder / folder
            assert self.folder.is_dir(), step.command
            return
        if program == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
            assert set(arguments) <= set(targets), step.command
            return
        if words[:4] == ["pip", "install", "-e", "."]:
            self._install()
            return
        if program == "curl":
            code, printed = 0, self._fetch(arguments)
        elif program == "pytest":
            options = [
                "-m",
                "pytest",
                "-q",
                "-c",
                os.devnull,
                "--rootdir",
                ".",
                "-p",
                "no:cacheprovider",
            ]
            options += ["-p", "no:xdist", "-o", "asyncio_default_fixture_loop_scope=function"]
            code, printed = self._call([sys.executable, *options, *arguments])
        elif program == "hookmq-worker":
            self._work(arguments)
            return
        elif program == "python":
            script = self.folder / arguments[0]
            script.write_text(self._moved(script.read_text()))
            code, printed = self._call([sys.executable, *arguments])
        elif program == "cat":
            code, printed = self._read(arguments[0], step.output or "")
        elif program == "hookmq" and arguments[:1] == ["serve"]:
            self._serve(arguments[1:])
            return
        elif program == "hookmq":
            code, printed = self._hookmq(arguments)
        else:
            raise AssertionError(
                f"{program!r} is no program of the manual's prompts: {step.command}"
            )
        if step.output is None:
            assert code == 0, f"{step.command}\n{printed}"
        else:
            assert like(step.output, printed), f"{step.command}\n{printed}"

    def _call(self, words: list[str]) -> tuple[int, str]:
        done = subprocess.run(
            words, cwd=self.folder, env={**os.environ, **self.environ}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def _hookmq(self, arguments: list[str]) -> tuple[int, str]:
        redirect = ""
        if ">" in arguments:
            at = arguments.index(">")
            arguments, redirect = arguments[:at], arguments[at + 1]
        if arguments[0] in CLIENTS:
            port = arguments[arguments.index("-p") + 1] if "-p" in arguments else "1883"
            arguments = [*arguments, "-p", str(self.ports.get(port, port))]
        code, printed = self._call([*HOOKMQ, *map(self._moved, arguments)])
        if redirect:
            (self.folder / redirect).write_text(printed)
            printed = ""
        return code, printed

    def _moved(self, word: str) -> str:
        """Return `word`, with the port of any URL in it replaced by the real port."""
        return re.sub(r"(?<=//127\.0\.0\.1:)\d+", lambda m: str(self.ports.get(m[0], m[0])), word)

    def _work(self, arguments: list[str]) -> None:
        """Start a worker. It must still be running at the end of the page, and then exit with code 0."""
        words = [*arguments, "--url", self._moved("mqtt://127.0.0.1:1883")]
        worker = subprocess.Popen(
            [sys.executable, "-m", "hookmq_queues_client.cli", *words],
            cwd=self.folder, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert worker.stderr is not None
        printed = worker.stderr.readline()

        def end() -> None:
            worker.terminate()
            _, rest = worker.communicate(timeout=WAIT)
            assert worker.returncode == 0, printed + rest

        self.stack.callback(end)
        assert "connected to" in printed, printed

    def _read(self, name: str, shown: str) -> tuple[int, str]:
        deadline = time.monotonic() + WAIT
        path = self.folder / name
        while True:
            printed = path.read_text() if path.exists() else ""
            if like(shown, printed) or time.monotonic() > deadline:
                return int(not path.exists()), printed
            time.sleep(0.02)

    def _fetch(self, arguments: list[str]) -> str:
        method = arguments[arguments.index("-X") + 1] if "-X" in arguments else "GET"
        headers = dict(
            [arguments[arguments.index("-H") + 1].split(": ", 1)] if "-H" in arguments else []
        )
        request = urllib.request.Request(self._moved(arguments[-1]), method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                text: str = response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode()
        return text

    def _serve(self, arguments: list[str]) -> None:
        if self.broker is not None:
            assert self.broker.stop() == 0
        config = self._config(arguments)
        anywhere = [
            word
            for index, listener in enumerate(config.listeners)
            if listener.type != "unix"
            for word in ("-o", f"listeners[{index}].bind=127.0.0.1:0")
        ]
        environ = dict(self.environ)
        started = serving(*arguments, *anywhere, cwd=self.folder, environ=environ)
        self.broker = self.stack.enter_context(started)
        self.ports = {
            listener.bind.rpartition(":")[2]: self.broker.ports[listener.name]
            for listener in config.listeners
        }

    def _config(self, arguments: list[str]) -> Config:
        if "-c" not in arguments:
            return default_config()
        return load(
            self.folder / arguments[arguments.index("-c") + 1],
            environ={**os.environ, **self.environ},
        )

    def _install(self) -> None:
        """Install the project's modules and entry points as ``pip install -e .`` would, but without building it."""
        project = tomllib.loads((self.folder / "pyproject.toml").read_text())["project"]
        info = self.folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir(exist_ok=True)
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {project['name']}",
            f"Version: {project['version']}",
            "",
        ]
        (info / "METADATA").write_text("\n".join(lines))
        points = []
        for group, entries in project.get("entry-points", {}).items():
            points += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
        (info / "entry_points.txt").write_text("\n".join([*points, ""]))
        self.environ["PYTHONPATH"] = str(self.folder)


@contextmanager
def console(folder: Path) -> Iterator[Console]:
    """Open a prompt in `folder`. On exit, end all processes that were started from it."""
    with ExitStack() as stack:
        yield Console(folder, stack)
