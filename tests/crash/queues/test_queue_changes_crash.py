"""Kill a broker while an operator creates and deletes queues and clients publish to them.

After each restart, every queue whose creation was confirmed exists, with every message that was acknowledged. Every
queue whose deletion was confirmed is gone.
"""

import json
import random
import threading
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
from hookmq_testing import AsyncioClient, LoopThread
from serving import Served, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROUNDS = 8
CONFIG = """\
version: 1
listeners:
  - {{name: tcp, bind: "127.0.0.1:0"}}
  - {{name: http, type: http, bind: "127.0.0.1:0"}}
auth: {{default: allow}}
authz: {{default: allow}}
plugins:
  - {{use: storage, config: {{path: "{folder}/store"}}}}
  - use: queues
    config:
      path: "{folder}/queues"
      queues: [{{name: fixed, bindings: ["in/#"]}}]
      on_first_use: [{{pattern: "first-*", maximum: 1000}}]
  - {{use: admin, config: {{first_token_file: "{folder}/token"}}}}
"""


class Killed(Exception):
    """Raised to leave the block of a killed broker."""


class Ledger:
    """The changes and messages that have been confirmed. `open` is a queue whose creation or deletion may or may not
    have taken effect."""

    def __init__(self) -> None:
        self.messages: dict[str, list[str]] = {"fixed": []}
        """The payloads that each queue must contain."""
        self.gone: set[str] = set()
        self.open = ""
        self.number = 0


class Operator:
    """Creates and deletes queues on one broker, and publishes to them."""

    def __init__(self, served: Served, folder: Path, ledger: Ledger) -> None:
        self.token = (folder / "token").read_text().strip()
        self.base = f"http://127.0.0.1:{served.ports['http']}/plugins/admin/api/v1"
        self.ledger = ledger
        self.thread = LoopThread()
        self.port = served.ports["tcp"]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.base + path, data, headers, method=method), timeout=30) as found:
            return json.load(found)

    def check(self) -> None:
        """Compare the queues with the ledger. Accept either state of the `open` queue."""
        ledger = self.ledger
        names = {one["name"] for one in self.ask("GET", "/queues")["items"]}
        if ledger.open:
            if ledger.open in names:
                ledger.messages.setdefault(ledger.open, [])
            else:
                ledger.messages.pop(ledger.open, None)
            ledger.open = ""
        assert names == set(ledger.messages)
        assert not names & ledger.gone
        for name, wanted in ledger.messages.items():
            found = self.payloads(name)
            assert len(set(found)) == len(found)
            assert set(wanted) <= set(found), name
            assert [one for one in found if one in set(wanted)] == wanted

    def payloads(self, name: str) -> list[str]:
        found: list[str] = []
        after = ""
        while True:
            page = self.ask("GET", f"/queues/{name}/messages?limit=100{after}")
            found += [one["payload"]["text"] for one in page["items"]]
            if page["after"] is None:
                return found
            after = f"&after={page['after']}"

    def work(self, dice: random.Random) -> None:
        """Create, use and delete queues until the broker is gone."""
        client = self.thread.run(self._connected())
        ledger = self.ledger
        while True:
            ledger.number += 1
            first_use = dice.random() < 0.3
            name = f"{'first' if first_use else 'made'}-{ledger.number}"
            ledger.open = name
            if first_use:
                self.publish(client, f"$queue/{name}", name, create=True)
            else:
                self.ask("POST", "/queues", {"name": name, "settings": {"bindings": ["in/#"]}})
                ledger.messages[name] = []
            ledger.open = ""
            for _ in range(dice.randrange(4)):
                self.publish(client, f"$queue/{name}", name)
            self.publish(client, "in/1", "")
            if len(ledger.messages) > 4:
                doomed = dice.choice([one for one in ledger.messages if one != "fixed"])
                kept = ledger.messages.pop(doomed)
                ledger.open = doomed
                self.ask("DELETE", f"/queues/{doomed}?force=true")
                ledger.open = ""
                ledger.gone.add(doomed)
                del kept

    async def _connected(self) -> AsyncioClient:
        return await AsyncioClient("").connect(self.port)

    def publish(self, client: AsyncioClient, topic: str, name: str, create: bool = False) -> None:
        """Publish a new message. Once the message is acknowledged, it must be in the queue `name` or, if `name` is
        empty, in every queue that captures its topic.
        """
        ledger = self.ledger
        ledger.number += 1
        payload = str(ledger.number)
        self.thread.run(client.publish(topic, payload.encode(), 1, expect=0))
        if create:
            ledger.messages[name] = []
        for one, wanted in ledger.messages.items():
            if one == name or (not name and not one.startswith("first-")):
                wanted.append(payload)


def run_until_killed(config: Path, folder: Path, ledger: Ledger, dice: random.Random) -> None:
    """Run a broker, check its queues, and kill it while it works. Raises Killed."""
    with serving("-c", str(config)) as served:
        operator = Operator(served, folder, ledger)
        try:
            operator.check()
            threading.Timer(dice.uniform(0.05, 0.6), served.process.kill).start()
            try:
                operator.work(dice)
            except (URLError, OSError, AssertionError, TimeoutError) as error:
                if isinstance(error, HTTPError) or "expected code" in str(error):
                    raise  # a refusal
                served.process.wait(30)
                raise Killed from None
        finally:
            operator.thread.close()


@pytest.mark.parametrize("seed", [1])
def test_queues_survive_kills_during_their_creation_and_deletion(tmp_path: Path, seed: int) -> None:
    config = tmp_path / "hookmq.yaml"
    config.write_text(CONFIG.format(folder=tmp_path))
    dice = random.Random(seed)
    ledger = Ledger()
    for _ in range(ROUNDS):
        with pytest.raises(Killed):
            run_until_killed(config, tmp_path, ledger, dice)
    with serving("-c", str(config)) as served:
        operator = Operator(served, tmp_path, ledger)
        operator.check()
        operator.thread.close()
    assert ledger.number > ROUNDS
    assert ledger.gone
