"""The `admin` plugin's console in a real browser: a broker with clients, tokens, and Chromium tabs."""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.request import Request, urlopen

from hookmq_testing import AsyncioClient, LoopThread
from playwright.sync_api import Browser, ConsoleMessage, Locator, expect
from serving import Served, serving

WAIT = 60_000
"""Milliseconds to wait for a condition. Only failing tests wait this long."""
AXE = Path(__file__).parents[1] / "console" / "js" / "node_modules" / "axe-core" / "axe.min.js"
CONFIG = """\
version: 1
listeners:
  - {{name: tcp, bind: "127.0.0.1:{tcp}"}}
  - {{name: ws, type: ws, bind: "127.0.0.1:{ws}"}}
  - {{name: http, type: http, bind: "127.0.0.1:{http}"}}
auth: {{default: allow}}
authz: {{default: allow}}
log: {{level: info}}
plugins:
  - use: storage
    config: {{path: {folder}/data}}
  - use: ratelimit
    config: {{limits: []}}
  - use: queues
    config:
      path: {folder}/queues
      queues:
        - {{name: jobs, groups: [work, audit], delivery_limit: 1, dead_letter: failed, prefetch: 2}}
        - {{name: failed}}
{accounts}  - use: admin
    config:
      first_token_file: {folder}/admin.token
      backup_folder: {folder}/backups
      history_interval: 1s
      tail_rate: 1000
      failures: 1000
"""
ACCOUNTS = """\
  - use: spark_sink
    config:
      path: {folder}/streams
      streams: [{{name: meters, topics: ["meter/#"], partitions: 2, consumers: [plant.bronze]}}]
  - use: sinks
    config:
      path: {folder}/sinks
      sinks:
        - name: plant
          topics: ["line/#"]
          decode: json
          lanes: 2
          key: "${{topic.2}}"
          driver: file
          target: {{path: {folder}/exported}}
  - use: webhook
    id: erp
    config:
      url: "http://127.0.0.1:9/hook"
      events: [message.published]
      filters: {{topics: ["hook/#"]}}
      sign: {{secret: whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}}
  - use: accounts
    config: {{unknown: ignore, anonymous: ignore, argon2: {{memory: 1MiB, passes: 1, lanes: 1}}}}
"""
PORTS = {"tcp": 0, "ws": 0, "http": 0}


def chromium() -> str | None:
    """Return the path of Debian's Chromium, or None if it is not installed."""
    return shutil.which("chromium")


class Operated:
    """A running broker with tokens for each role. Its methods let tests use the broker without a browser."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served = served
        self.folder = folder
        self.thread = LoopThread()
        self.tokens = {"admin": (folder / "admin.token").read_text().strip()}
        self.clients: list[AsyncioClient] = []

    @property
    def url(self) -> str:
        """The console's address."""
        return f"http://127.0.0.1:{self.served.ports['http']}/plugins/admin/"

    def ask(self, method: str, path: str, body: Any = None, role: str = "admin") -> Any:
        """Send a request to the API, and return its response."""
        headers = {
            "Authorization": f"Bearer {self.tokens[role]}",
            "Content-Type": "application/json",
        }
        data = None if body is None else json.dumps(body).encode()
        with urlopen(
            Request(f"{self.url}api/v1{path}", data, headers, method=method), timeout=60
        ) as answer:
            return json.load(answer)

    def token(self, role: str, **options: Any) -> Any:
        """Create a token, named after its role unless `options` contains a name."""
        made = self.ask("POST", "/tokens", {"name": role, "role": role, **options})
        self.tokens[made["name"]] = made["token"]
        return made

    def client(self, client_id: str, **options: Any) -> AsyncioClient:
        """Connect an MQTT client."""

        async def connect() -> AsyncioClient:
            return await AsyncioClient(client_id, **options).connect(self.served.ports["tcp"])

        made = self.thread.run(connect())
        self.clients.append(made)
        return made

    def close(self) -> None:
        """Close the connections of all clients."""

        async def leave() -> None:
            for client in self.clients:
                if not client.closed:
                    client.drop()
            for client in self.clients:
                await client.wait_closed()

        self.thread.run(leave())
        self.thread.close()

    def offline(self, client_id: str, *filters: str) -> None:
        """Create a durable session with QoS 1 subscriptions to `filters`, and leave it offline."""
        client = self.client(client_id, session_expiry_interval=3600)
        self.thread.run(client.subscribe(list(filters), 1))
        self.thread.call(client.disconnect)
        self.thread.run(client.wait_closed())

    def publish(self, topic: str, payload: bytes, qos: int = 1, retain: bool = False) -> None:
        """Publish a message and wait for its acknowledgement."""
        publisher = self.client("")

        async def send() -> None:
            await publisher.publish(topic, payload, qos, retain, expect=None)
            publisher.disconnect()
            await publisher.wait_closed()

        self.thread.run(send())

    def burst(self, topic: str, count: int) -> None:
        """Publish `count` messages at QoS 0 as fast as the broker reads them."""
        self.thread.run(self.sending(topic, count), 120)

    async def sending(self, topic: str, count: int) -> None:
        """Publish as `burst` does, on the event loop of `thread`."""
        publisher = await AsyncioClient("").connect(self.served.ports["tcp"])
        for number in range(count):
            publisher.send_publish(topic, b'{"number": %d}' % number)
            if number % 100 == 99:
                await publisher.drain()
        await publisher.ping()
        publisher.disconnect()
        await publisher.wait_closed()


@contextmanager
def operated(
    folder: Path, ports: Mapping[str, int] = PORTS, accounts: bool = False
) -> Iterator[Operated]:
    """Run a broker until the block ends, optionally with `accounts` and a stream. By default, the kernel chooses
    its ports.
    """
    file = folder / "hookmq.yaml"
    more = ACCOUNTS.format(folder=folder) if accounts else ""
    file.write_text(CONFIG.format(folder=folder, accounts=more, **ports))
    with serving("-c", str(file)) as served:
        site = Operated(served, folder)
        try:
            yield site
        finally:
            site.close()


class Address(Protocol):
    """A console's address, and its tokens keyed by name."""

    tokens: dict[str, str]

    @property
    def url(self) -> str: ...


class View:
    """One browser tab. It collects everything that the page writes to the browser's console."""

    def __init__(self, browser: Browser, site: Address, **options: Any) -> None:
        self.site = site
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(WAIT)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def close(self, *expected: str) -> None:
        """Close the tab. Fail if the page has reported an error that does not match one of the patterns `expected`."""
        self.context.close()
        left = [text for text in self.errors if not any(re.search(one, text) for one in expected)]
        assert not left, left

    def sign_in(self, role: str = "admin", page: str = "") -> "View":
        """Open the console, and sign in with the token of `role`."""
        self.page.goto(f"{self.site.url}{page}")
        self.page.get_by_label("Token").fill(self.site.tokens[role])
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.locator("main h2")).not_to_have_text("Sign in", timeout=WAIT)
        return self

    def go(self, name: str, title: str) -> None:
        """Open the page `name`, and wait until `title` appears."""
        self.page.goto(f"{self.site.url}#/{name}")
        self.sees(self.page.locator("h2", has_text=title))

    def press(self, name: str) -> None:
        """Press the button with exactly this name."""
        self.page.get_by_role("button", name=name, exact=True).click()

    def confirm(self, name: str, **fields: str) -> None:
        """Fill in the dialog's fields, which are found by label, and press its button."""
        dialog = self.page.get_by_role("dialog")
        for label, value in fields.items():
            dialog.get_by_label(label).fill(value)
        dialog.get_by_role("button", name=name, exact=True).click()
        expect(dialog).to_have_count(0, timeout=WAIT)

    def submit(self, form: str, button: str, **fields: str) -> None:
        """Fill in the form that contains `button`, and press the button. `form` is the label of the form or its
        section.
        """
        part = self.page.get_by_label(form, exact=True).first
        for label, value in fields.items():
            part.get_by_label(label.replace("_", " "), exact=True).fill(value)
        part.get_by_role("button", name=button, exact=True).click()

    def says(self, text: str) -> None:
        """Wait until the status line contains `text`."""
        expect(self.page.locator("#status")).to_contain_text(text, timeout=WAIT)

    def sees(self, what: Locator) -> None:
        """Wait until an element is visible."""
        expect(what).to_be_visible(timeout=WAIT)

    def rows(self, region: str) -> Locator:
        """Return the table rows in the region with this label."""
        return self.page.get_by_role("region", name=region, exact=True).locator("tbody tr")

    def count(self, region: str, number: int) -> None:
        """Wait until a table has `number` rows."""
        expect(self.rows(region)).to_have_count(number, timeout=WAIT)

    def until(self, script: str, argument: Any = None) -> None:
        """Wait until a JavaScript expression is true."""
        self.page.wait_for_function(script, arg=argument, timeout=WAIT)

    def violations(self, options: Mapping[str, Any]) -> list[str]:
        """Return the serious accessibility violations that axe finds on the page. `options` selects the rules."""
        if not self.page.evaluate("() => Boolean(window.axe)"):
            self.page.evaluate(
                AXE.read_text("utf-8")
            )  # the policy of the page forbids a script element
        given = {"resultTypes": ["violations"], **options}
        script = "async options => (await axe.run(document, options)).violations"
        found = self.page.evaluate(script, given)
        return [
            f"{one['id']}: {part['target']} {part['failureSummary']}"
            for one in found
            if one["impact"] in ("serious", "critical")
            for part in one["nodes"]
        ]


Open = Callable[..., View]
"""Opens a tab. Takes the arguments of `View` that follow the browser and the broker."""
