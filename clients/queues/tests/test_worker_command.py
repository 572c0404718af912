"""Test the command ``hookmq-worker`` as a process."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hookmq_queues_client import Backoff, Client
from hookmq_queues_client.cli import make_worker, parser
from hookmq_queues_client.worker import BACKOFF
from serving import WAIT

WORKER = (sys.executable, "-m", "hookmq_queues_client.cli")
TASKS = """\
import asyncio

from pathlib import Path

number = 7


def write(message):
    Path("done").open("a").write(message.payload.decode() + "\\n")


async def hang(message):
    Path("started").touch()
    await asyncio.sleep(3600)


class Tasks:
    @staticmethod
    def write(message):
        write(message)
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Return a folder with the module `tasks`."""
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


def start(tasks: Path, *words: str) -> "subprocess.Popen[str]":
    """Start a worker."""
    return subprocess.Popen(
        [*WORKER, *words], cwd=tasks, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def wait_for(worker: "subprocess.Popen[str]", text: str) -> list[str]:
    """Return the log lines up to the one that contains `text`."""
    assert worker.stderr is not None
    lines: list[str] = []
    for line in worker.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"the worker ended without {text!r}: {lines}")


def end(worker: "subprocess.Popen[str]", number: signal.Signals) -> tuple[int, str]:
    """Send a signal, and return the exit code and the rest of the log."""
    worker.send_signal(number)
    _, log = worker.communicate(timeout=WAIT)
    return worker.returncode, log


@pytest.mark.parametrize("function", ["tasks:write", "tasks:Tasks.write"])
async def test_it_works_until_sigterm(
    url: str, name: str, tasks: Path, connect: Callable[..., Client], function: str
) -> None:
    queue = connect().queue(name)
    for number in range(3):
        await queue.publish(str(number))
    worker = start(tasks, function, "--queue", name, "--url", url)
    lines = wait_for(worker, f"message {name}:2: done")
    assert [line for line in lines if "connected to 127.0.0.1" in line]
    assert end(worker, signal.SIGTERM) == (0, "")
    assert (tasks / "done").read_text() == "0\n1\n2\n"


async def test_the_messages_of_a_killed_worker_go_to_another(
    url: str, name: str, tasks: Path, connect: Callable[..., Client]
) -> None:
    queue = connect().queue(name)
    for number in range(3):
        await queue.publish(str(number))
    killed = start(tasks, "tasks:hang", "--queue", name, "--url", url, "--concurrency", "2")
    wait_for(killed, "connected")
    other = start(tasks, "tasks:write", "--queue", name, "--url", url)
    wait_for(other, f"message {name}:2: done")
    assert end(killed, signal.SIGKILL)[0] == -signal.SIGKILL
    for _ in range(2):
        wait_for(other, ": done")
    assert end(other, signal.SIGTERM)[0] == 0
    done = (tasks / "done").read_text().split()
    assert done[0] == "2"
    assert sorted(done[1:]) == ["0", "1"]


async def test_a_handler_that_does_not_finish_is_an_error(
    url: str, name: str, tasks: Path, connect: Callable[..., Client]
) -> None:
    await connect().queue(name).publish("x")
    worker = start(tasks, "tasks:hang", "--queue", name, "--url", url, "--grace", "0.1")
    wait_for(worker, "connected")
    while not (tasks / "started").exists():
        os.sched_yield()
    code, log = end(worker, signal.SIGTERM)
    assert code == 1
    assert f"message {name}:0: cancelled, it goes back to the queue" in log


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["tasks"], 2, "'tasks' is not of the form MODULE:FUNCTION, such as tasks:resize"),
        (["nothing:write"], 2, "there is no module 'nothing' in "),
        (["tasks:nothing"], 2, "the module 'tasks' has no 'nothing'"),
        (["tasks:number"], 2, "tasks:number is not a function: int"),
        (["tasks:write", "--url", "broker"], 2, "invalid URL: the scheme is ''"),
        (["tasks:write", "--queue", "a/b"], 2, "a queue's name has no /, + or #"),
        (["tasks:write", "--concurrency", "0"], 2, "concurrency must be at least 1, not 0"),
        (
            ["tasks:write", "--backoff", "301"],
            2,
            "expected seconds from 0 to 300 or group, not '301'",
        ),
        (["tasks:write", "--timeout", "3"], 2, "timeout needs a handler that is async def"),
        (["tasks:write", "--key", "a.pem"], 2, "--key needs --cert"),
        (["tasks:write", "--cafile", "no.pem"], 2, "no.pem: [Errno 2] No such file or directory"),
        (["tasks:write", "--password-file", "no"], 2, "[Errno 2] No such file or directory: 'no'"),
        (["tasks:write", "--password-file", "empty"], 2, "empty is empty"),
        (["tasks:write", "--queue", "nowhere"], 1, "there is no queue 'nowhere'"),
    ],
)
async def test_a_wrong_option_is_explained(
    url: str, tasks: Path, words: list[str], code: int, text: str
) -> None:
    (tasks / "empty").touch()
    worker = start(tasks, *(["--url", url] if code == 1 else []), "--queue", "jobs", *words)
    _, log = worker.communicate(timeout=WAIT)
    assert worker.returncode == code
    [line] = [line for line in log.splitlines() if line.startswith("hookmq-worker: ")]
    assert text in line
    assert "Traceback" not in log


@pytest.mark.parametrize(("words", "backoff"), [([], BACKOFF), (["--backoff", "group"], None)])
def test_the_backoff_can_be_that_of_the_group(
    tasks: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], backoff: Backoff | None
) -> None:
    monkeypatch.chdir(tasks)
    options = parser().parse_args(["builtins:print", "--queue", "jobs", *words])
    assert make_worker(options)[1]._backoff == backoff


def test_help_lists_the_options(tasks: Path) -> None:
    done = subprocess.run([*WORKER, "--help"], capture_output=True, text=True, check=True)
    for option in (
        "--queue",
        "--group",
        "--concurrency",
        "--url",
        "--retries",
        "--grace",
        "--cafile",
    ):
        assert f"  {option}" in done.stdout
    assert "hookmq-worker tasks:resize --queue jobs" in done.stdout
