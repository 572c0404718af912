"""A broker process with one sink, and methods to operate it and to publish messages."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from hookmq_testing import AsyncioClient, LoopThread
from serving import Served, serving


def until(true: Callable[[], Any], what: str = "it") -> Any:
    """Wait until `true` returns a true value, and return that value. `what` describes the condition in the error."""
    for _ in range(3000):
        if found := true():
            return found
        threading.Event().wait(0.01)
    raise AssertionError(f"{what} did not happen within 30 seconds")


class SinkBroker:
    """A broker whose sink `plant` stores the messages on `t/#`. `served` is the broker's process."""

    def __init__(self, folder: Path, served: Served) -> None:
        self.folder = folder
        self.served = served
        self.thread = LoopThread()
        self.client = self.thread.run(AsyncioClient("dev").connect(served.ports["tcp"]))
        self.base = f"http://127.0.0.1:{served.ports['http']}/plugins/admin/api/v1"

    @property
    def token(self) -> str:
        """Return an administrator's API token."""
        return (self.folder / "token").read_text().strip()

    def publish(self, payload: bytes, topic: str = "t/a", **options: Any) -> None:
        """Publish at QoS 1 and wait for the acknowledgement."""
        self.thread.run(self.client.publish(topic, payload, 1, **{"expect": 0, **options}))

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the admin API. Return the response, or the status code if it is an error."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(
                Request(self.base + path, data, headers, method=method), timeout=30
            ) as found:
                return json.load(found)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    def status(self) -> Any:
        """Return the sink's status."""
        return self.ask("GET", "/sinks/plant")

    def until_state(self, word: str) -> Any:
        """Wait until the sink is in the state `word`. Return the sink's status."""
        until(lambda: self.status()["state"] == word, f"the state {word}")
        return self.status()

    def metrics(self) -> str:
        """Return the broker's metrics."""
        with urlopen(f"http://127.0.0.1:{self.served.ports['http']}/metrics") as answer:
            text: str = answer.read().decode()
        return text

    def accept_errors(self, *events: str) -> None:
        """Remove these events from the log, so that they do not fail the test as unexpected errors."""
        log = self.served.log
        log[:] = [one for one in log if one["event"] not in events]

    @property
    def senders(self) -> list[int]:
        """The pids of the sink's processes."""
        return senders_of(self.served.process.pid)


def senders_of(pid: int) -> list[int]:
    """Return the pids of the processes that run the sinks of the broker with the given `pid`."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in path.read_text().split():
                with suppress(OSError):
                    if b"hookmq_sinks.sender" in Path(f"/proc/{child}/cmdline").read_bytes():
                        found.append(int(child))
    return found


def write_config(folder: Path, **sink: Any) -> str:
    """Write the configuration of a broker with the sink `plant`, and return its path. Two options do not belong to the
    sink: `sources` adds sources, and `rules` adds a file of access rules.
    """
    path = folder / "hookmq.yaml"
    sources, rules = sink.pop("sources", []), sink.pop("rules", "")
    one = {
        "name": "plant",
        "topics": ["t/#"],
        "decode": "json",
        "driver": "file",
        "target": {"path": str(folder / "out")},
        "batch": {"age": "10ms"},
        "retry": {"first": "50ms", "longest": "200ms"},
        **sink,
    }
    text: dict[str, Any] = {
        "version": 1,
        "listeners": [
            {"name": "tcp", "bind": "127.0.0.1:0"},
            {"name": "http", "type": "http", "bind": "127.0.0.1:0"},
        ],
        "auth": {"default": "allow"},
        "authz": {"default": "allow"},
        "plugins": [
            {"use": "storage", "config": {"path": str(folder / "data")}},
            {
                "use": "sinks",
                "config": {"path": str(folder / "sinks"), "sinks": [one], "sources": sources},
            },
            {"use": "admin", "config": {"first_token_file": str(folder / "token")}},
        ],
    }
    if rules:
        (folder / "rules.yaml").write_text(rules)
        text["plugins"].append({"use": "acl_file", "config": {"path": str(folder / "rules.yaml")}})
    path.write_text(json.dumps(text))
    return str(path)


@contextmanager
def sink_broker(folder: Path, **sink: Any) -> Iterator[SinkBroker]:
    """Run a broker with the sink `plant` until the block ends."""
    with serving("-c", write_config(folder, **sink)) as served:
        broker = SinkBroker(folder, served)
        try:
            yield broker
        finally:
            broker.thread.call(broker.client.disconnect)
            broker.thread.close()


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the complete lines that the `file` driver has written to ``out`` in `folder`."""
    data = b"".join(path.read_bytes() for path in sorted((folder / "out").glob("*.jsonl*")))
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
