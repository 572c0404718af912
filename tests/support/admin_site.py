"""A broker with the `admin` plugin, an HTTP listener on a free port, and tokens for the plugin's API."""

import asyncio
import json
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from hookmq.broker import Broker
from hookmq.broker.plugin_api import PluginBroker
from hookmq.hooks.manager import Hooks
from hookmq.model.settings import AuthSettings, AuthzSettings, Settings
from hookmq.plugin import (
    Accept,
    Action,
    ConfigCheck,
    Deny,
    Plugin,
    ReloadReport,
    SettingChange,
    hookimpl,
)
from hookmq.server import logs
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.event_log import ServerLog
from hookmq.server.extensions import PluginExtensions
from hookmq.server.loop import finished
from hookmq.server.server import Server
from hookmq.server.settings import HttpSettings, ListenerSettings
from hookmq_accounts.plugin import AccountsPlugin
from hookmq_admin.openapi import document
from hookmq_admin.plugin import AdminPlugin
from hookmq_ratelimit.plugin import RateLimitPlugin
from hookmq_storage.plugin import StoragePlugin
from hookmq_testing import AsyncioClient, LoopThread, PluginInstance, make_plugin
from jsonschema import Draft202012Validator

T = TypeVar("T")
DOCUMENT = document()
ACCOUNTS = {
    "unknown": "ignore",
    "anonymous": "ignore",
    "max_users": 20,
    "max_groups": 9,
    "argon2": {"memory": 1 << 20, "passes": 1, "lanes": 1},
}


class Doors(Plugin):
    """A plugin that accepts only clients that connect through listeners, and denies publishes below ``secret/``."""

    @hookimpl
    def on_connect(self, client: Any) -> Accept | Deny:
        if client.peer.transport == "plugin":
            return Deny(reason="no password")
        claims = {"groups": ["a"], "api_token": "t0p"}
        return Accept(identity=client.username, claims=claims)

    @hookimpl
    def authorize(self, client: Any, action: Action, topic: str) -> Deny | None:
        denied = action is Action.PUBLISH and topic.startswith("secret/")
        return Deny(reason=f"not for {client.identity}") if denied else None


@dataclass
class Answer:
    """A response: its status, headers and text, and the parsed value if the text is JSON."""

    status: int
    headers: Any
    text: str
    json: Any = None


def validate(value: Any, schema: dict[str, Any]) -> None:
    """Fail unless `value` matches the `schema` from the OpenAPI document."""
    whole = {**schema, "components": DOCUMENT["components"]}
    Draft202012Validator(whole).validate(value)


class Site:
    """A running broker, with methods that tests use to talk to it."""

    def __init__(
        self, folder: Path, plugins: tuple[PluginInstance, ...] = (), **config: Any
    ) -> None:
        self.thread = LoopThread()
        self._plugins = plugins
        self._logger = logging.getLogger("hookmq")
        self._level = self._logger.level
        self.tokens: dict[str, str] = {}
        self.checks: dict[str, ConfigCheck] = {}
        """The results that the next checks will return, by document."""
        self.reloads: list[ReloadReport | Exception] = []
        self.logs: list[tuple[str, str, dict[str, Any]]] = []
        self._file = folder / "token"
        options = {"first_token_file": str(self._file), "failures": 3, **config}
        self.admin = make_plugin(AdminPlugin, options, "admin")
        self.thread.run(self._start())
        self.tokens["admin"] = self._file.read_text().strip()
        for role in ("viewer", "operator"):
            body = {"name": role, "role": role}
            self.tokens[role] = self.ask("POST", "/tokens", json=body).json["token"]

    async def _start(self) -> None:
        self.runtime = Recorded(self.logs)
        plugins = (
            make_plugin(RateLimitPlugin, {"limits": [{"what": "publishes", "rate": "1000/s"}]}, "rl", use="ratelimit"),
            self.admin,
            make_plugin(AccountsPlugin, ACCOUNTS, "accounts"),
            make_plugin(Doors),
            *self._plugins,
        )  # fmt: skip
        hooks = Hooks(plugins)
        open_ = Settings(auth=AuthSettings("deny"), authz=AuthzSettings("allow"))
        broker = self.broker = Broker(open_, self.runtime, hooks)
        broker.configuration = lambda: "version: 1\n"
        broker.check_config = lambda text: self.checks.pop(text)
        broker.event_log = self.event_log = ServerLog(self.runtime, lambda: "info")
        listeners = (
            ListenerSettings(name="tcp", bind="127.0.0.1:0"),
            ListenerSettings(
                name="http", type="http", bind="127.0.0.1:0",
                trusted_proxies=("127.0.0.0/8",), http=HttpSettings(token="of the listener", max_body=2000),
            ),
        )  # fmt: skip
        self.hooks = hooks

        async def reload() -> ReloadReport:
            found = self.reloads.pop()
            if isinstance(found, Exception):
                raise found
            return found

        class Started(Server):
            async def prepare(self) -> None:
                await finished(hooks.startup)
                self.use(PluginExtensions(hooks, broker))

        self.server = Started(broker, listeners, self.runtime, reload=reload)
        hooks.bind(self.runtime, partial(PluginBroker, broker.state))
        await self.server.start()
        await finished(hooks.ready)
        self.http = aiohttp.ClientSession()

    def close(self) -> None:
        """Stop the broker and everything else that the site started."""

        async def stop() -> None:
            await self.http.close()
            await self.server.stop()
            await finished(lambda done: self.hooks.shutdown(5, done))
            self.broker.end()
            await finished(self.broker.store.close)
            self.event_log.close()
            await self.runtime.close()

        self._logger.setLevel(self._level)
        self.thread.run(stop())
        self.thread.close()
        failed = [entry for entry in self.logs if entry[0] == "error"]
        assert not failed, failed

    def run(self, work: Awaitable[T]) -> T:
        """Run a coroutine on the broker's event loop."""

        async def running() -> T:
            return await work

        return self.thread.run(running())

    @property
    def port(self) -> int:
        """The port of the MQTT listener."""
        return int(self.server.addresses()["tcp"].rpartition(":")[2])

    @property
    def url(self) -> str:
        """The base URL of the plugin's routes."""
        return f"http://{self.server.addresses()['http']}/plugins/admin"

    def client(self, client_id: str, **options: Any) -> AsyncioClient:
        """Connect an MQTT client."""

        async def connect() -> AsyncioClient:
            return await AsyncioClient(client_id, **options).connect(self.port)

        return self.thread.run(connect())

    def ask(
        self, method: str, path: str, role: str = "admin", headers: dict[str, str] | None = None, **options: Any
    ) -> Answer:  # fmt: skip
        """Send a request to the API with the token of `role`. Send no token if `role` is empty."""
        given = {"X-Forwarded-For": "192.0.2.1", **(headers or {})}
        if role:
            given.setdefault("Authorization", f"Bearer {self.tokens[role]}")

        async def send() -> Answer:
            url = f"{self.url}/api/v1{path}"
            async with self.http.request(method, url, headers=given, **options) as found:
                text = await found.text()
                kind = found.content_type
                value: Any = json.loads(text) if kind.endswith("json") else None
                if kind == "application/problem+json":
                    validate(value, DOCUMENT["components"]["schemas"]["Problem"])
                    assert value["status"] == found.status
                return Answer(found.status, found.headers, text, value)

        return self.thread.run(send())

    @staticmethod
    def log(level: str, event: str, **fields: object) -> None:
        """Write an event to the process's log, which the API shows."""
        logs.tell(level, event, **fields)

    def audit(self) -> list[Any]:
        """Return the audit log, newest first."""
        found: Any = self.ask("GET", "/audit").json
        return list(found["items"])


def storage(folder: Path) -> PluginInstance:
    """Return a plugin that keeps the broker's state in `folder`."""
    return make_plugin(StoragePlugin, {"path": str(folder)}, "storage", use="storage")


def refuses(site: Site) -> bool:
    """Return whether the MQTT listener closes a new connection at once."""

    async def ask() -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        async with asyncio.timeout(60):
            try:
                closed = await reader.read(1) == b""
            except ConnectionError:
                closed = True
        writer.close()
        return closed

    return site.run(ask())


class Recorded(AsyncioRuntime):
    """A runtime that records the log."""

    __slots__ = ("_entries",)

    def __init__(self, entries: list[tuple[str, str, dict[str, Any]]]) -> None:
        super().__init__()
        self._entries = entries

    def log(self, level: str, event: str, /, **fields: object) -> None:
        self._entries.append((level, event, fields))


CHANGE = SettingChange("log.level", "info", "debug")
