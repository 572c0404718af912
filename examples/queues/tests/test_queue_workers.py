"""Test that the MQTT.js and MQTT 3.1.1 workers receive, acknowledge and give back messages of a real broker."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from serving import HOOKMQ, WAIT, Served, serving
from workspace import ROOT

FOLDER = ROOT / "examples" / "queues"
MODULES = ROOT / "tests" / "interop" / "js" / "node_modules"
CONFIG = """\
version: 1
listeners: [{{name: tcp, bind: "127.0.0.1:0"}}]
auth: {{default: allow}}
authz: {{default: allow}}
plugins:
  - use: storage
    config: {{path: "{folder}/state"}}
  - use: queues
    config:
      path: "{folder}/queues"
      queues:
        - {{name: js, prefetch: 1}}
        - {{name: three, prefetch: 1}}
        - {{name: explicit, groups: [{{name: workers, settle: explicit}}], delivery_limit: 3, dead_letter: failed}}
        - {{name: failed}}
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a broker that has a queue for each kind of worker."""
    folder = tmp_path_factory.mktemp("broker")
    config = folder / "hookmq.yaml"
    config.write_text(CONFIG.format(folder=folder))
    with serving("-c", str(config)) as served:
        yield served


@pytest.fixture
def start(broker: Served) -> Iterator[Start]:
    """Return a function that starts a worker. The worker is killed after the test."""
    with ExitStack() as stack:

        def begin(kind: str, subscribed: bool = True) -> "subprocess.Popen[str]":
            words = command(kind, broker.ports["tcp"], kind)
            worker = subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**os.environ, "NODE_PATH": str(MODULES)},
            )  # fmt: skip
            stack.enter_context(worker)
            stack.callback(worker.kill)
            if subscribed:  # otherwise, a message may be printed first
                assert line(worker) == f"waiting for messages of {words[-1]}"
            return worker

        yield begin


def node() -> str:
    """Return the path of the Node.js executable."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("Node.js is not installed")
    if not (MODULES / "mqtt").is_dir():
        pytest.skip("MQTT.js is not installed (npm ci --prefix tests/interop/js)")
    return found


def command(kind: str, port: int, queue: str) -> list[str]:
    """Return the command line that starts a worker."""
    if kind == "three":
        return [sys.executable, str(FOLDER / "worker_311.py"), "127.0.0.1", str(port), queue]
    script = "worker.js" if kind == "js" else "worker_explicit.js"
    return [node(), str(FOLDER / script), f"mqtt://127.0.0.1:{port}", queue]


def line(worker: "subprocess.Popen[str]") -> str:
    """Return the next line that a worker prints."""
    assert worker.stdout is not None
    return worker.stdout.readline().rstrip("\n")


def publish(broker: Served, queue: str, *payloads: str) -> None:
    """Publish messages one after another."""
    for payload in payloads:
        words = [
            "pub",
            "-p",
            str(broker.ports["tcp"]),
            "-q",
            "1",
            "-t",
            f"$queue/{queue}",
            "-m",
            payload,
        ]
        subprocess.run([*HOOKMQ, *words], check=True, timeout=WAIT)


def test_a_worker_with_mqtt_js(broker: Served, start: Start) -> None:
    worker = start("js")
    publish(broker, "js", "cat.png", "dog.png")
    assert line(worker) == "js:0: cat.png, delivery 1"
    assert line(worker) == "js:1: dog.png, delivery 1"
    publish(broker, "js", "")
    assert line(worker) == "js:2: no picture, connecting again"
    # The message may be printed before the new subscription.
    found = {line(worker), line(worker)}
    assert found == {"waiting for messages of js", "js:2: no picture, connecting again"}
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(WAIT) == 0
    # Acknowledged messages are not delivered again.
    another = start("js", subscribed=False)
    found = {line(another), line(another)}
    assert found == {"waiting for messages of js", "js:2: no picture, connecting again"}


def test_a_worker_that_settles_explicitly(broker: Served, start: Start) -> None:
    worker = start("explicit")
    publish(broker, "explicit", "cat.png", "")
    found = {line(worker) for _ in range(3)}
    assert found == {
        "explicit:0: nack: not yet",
        "explicit:0: cat.png, delivery 2",
        "explicit:1: reject: no picture",
    }
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(WAIT) == 0
    words = ["sub", "-V", "5", "-p", str(broker.ports["tcp"]), "-q", "1", "-C", "1"]
    done = subprocess.run(
        [*HOOKMQ, *words, "-t", "$queue/failed", "-F", "%P"],
        capture_output=True, text=True, check=True, timeout=WAIT,
    )  # fmt: skip
    for expected in ("explicit:1", "rejected", "no picture"):
        assert expected in done.stdout


def test_a_worker_with_mqtt_311(broker: Served, start: Start) -> None:
    worker = start("three")
    publish(broker, "three", "cat.png", "dog.png")
    assert [line(worker), line(worker)] == ["cat.png", "dog.png"]
    publish(broker, "three", "")
    assert worker.wait(WAIT) == 1
    assert worker.stdout is not None
    assert worker.stdout.read().endswith("ValueError: no picture\n")
    another = start("three", subscribed=False)
    assert another.wait(WAIT) == 1  # it got the same message


@pytest.mark.parametrize("kind", ["js", "explicit", "three"])
def test_an_unknown_queue_is_named(broker: Served, kind: str) -> None:
    words = command(kind, broker.ports["tcp"], "nowhere")
    environ = {**os.environ, "NODE_PATH": str(MODULES)}
    done = subprocess.run(
        words, capture_output=True, text=True, env=environ, timeout=WAIT, check=False
    )
    assert done.returncode == 1
    assert "cannot consume from nowhere: " in done.stderr


@pytest.mark.parametrize("kind", ["js", "explicit", "three"])
def test_missing_arguments_print_the_usage(kind: str) -> None:
    interpreter, script, *_ = command(kind, 1883, "jobs")
    environ = {**os.environ, "NODE_PATH": str(MODULES)}
    done = subprocess.run(
        [interpreter, script],
        capture_output=True,
        text=True,
        env=environ,
        timeout=WAIT,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("usage: ")
    assert done.stderr.endswith(" QUEUE\n")


def test_an_unreachable_broker_is_named() -> None:
    words = [sys.executable, str(FOLDER / "worker_311.py"), "127.0.0.1", "1", "jobs"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("cannot connect to 127.0.0.1:1: ")
