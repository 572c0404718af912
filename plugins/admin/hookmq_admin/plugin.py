"""Implement the `admin` plugin: a REST API for the operators of a broker."""

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from hookmq.plugin import (
    BrokerHandle,
    CommandGroup,
    Context,
    HttpRouter,
    MetricRegistry,
    Plugin,
    hookimpl,
)
from hookmq_toolkit.files import write_secret

from hookmq_admin.audit import AuditLog
from hookmq_admin.failures import FailureLimit
from hookmq_admin.history import History
from hookmq_admin.services import Services
from hookmq_admin.settings import AdminConfig
from hookmq_admin.tokens import Tokens

FIRST: Final = "first"
"""The name of the token that the plugin makes if there is none."""


class AdminPlugin(Plugin):
    """Serve the API below ``/plugins/ID/api/v1``. Without a valid token, it discloses and changes nothing."""

    Config = AdminConfig
    config: AdminConfig

    def __init__(self, config: AdminConfig, context: Context) -> None:
        super().__init__(config, context)
        self._services: Services | None = None

    @property
    def services(self) -> Services:
        """The state of the running plugin."""
        if self._services is None:
            raise RuntimeError("the plugin has not started")
        return self._services

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """Load the tokens and the audit log."""
        config = self.config
        self._services = Services(
            self.id,
            config,
            broker,
            broker.log,
            Tokens(broker.state),
            AuditLog(broker.state, config.audit_entries),
            FailureLimit(config.failures, broker.now),
            History(broker, config.history_interval, config.history_samples),
            broker.time(),
        )

    @hookimpl
    async def on_ready(self, broker: BrokerHandle) -> None:
        """Start the history, and create the first token if there is no valid token of an admin."""
        services = self.services
        services.history.start()
        if not services.tokens.admins(broker.time()):
            await self._create_first(broker)

    async def _create_first(self, broker: BrokerHandle) -> None:
        tokens = self.services.tokens
        name = tokens.unused_name(FIRST)
        token, text = await tokens.create(name, "admin", broker.time(), self.id, None, "")
        file = self.config.first_token_file
        if not file:
            print(f"hookmq: admin token, shown only once: {text}", file=sys.stderr, flush=True)
            return
        try:
            await _in_thread(broker, partial(write_secret, Path(file), text + "\n"))
        except OSError as error:
            await tokens.revoke(token.id)
            broker.log("error", "admin.first_token_failed", file=file, error=str(error))

    @hookimpl
    async def on_shutdown(self) -> None:
        """Stop the history."""
        if self._services is not None:
            self._services.history.stop()

    @hookimpl
    def register_http(self, router: HttpRouter) -> None:
        """Add the API and the console."""
        from hookmq_admin import api, pages
        from hookmq_admin.openapi import ROUTES

        api.register(router, self, ROUTES)
        pages.register(router)

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics of the API."""
        from hookmq_admin.metrics import register

        register(registry, self)

    @staticmethod
    @hookimpl
    def register_cli(group: CommandGroup) -> None:
        """Add ``hookmq admin`` and ``hookmq top``."""
        from hookmq_admin import cli, top

        cli.register(group)
        top.register(group)


def _in_thread(broker: BrokerHandle, call: Callable[[], object]) -> Awaitable[Any]:
    """Run a blocking call in a thread, and return an awaitable for its result."""
    result = broker.runtime.promise()

    def done(value: Any, error: BaseException | None) -> None:
        if not result.done():
            result.set_result(value) if error is None else result.set_exception(error)

    broker.runtime.run_blocking(call, done)
    return result
