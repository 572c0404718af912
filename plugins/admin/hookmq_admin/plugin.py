"""Implement the `admin` plugin: a REST API for the operators of a broker."""

from hookmq.plugin import (
    BrokerHandle,
    ClientInfo,
    Context,
    Dropped,
    HttpRouter,
    Message,
    MetricRegistry,
    Plugin,
    hookimpl,
)

from hookmq_admin.audit import AuditLog
from hookmq_admin.failures import FailureLimit
from hookmq_admin.first_token import create_first
from hookmq_admin.history import History
from hookmq_admin.services import Services
from hookmq_admin.settings import AdminConfig
from hookmq_admin.tokens import Tokens


class AdminPlugin(Plugin):
    """Serve the API below ``/plugins/ID/api/v1``. Without a valid token, the API reveals nothing and changes
    nothing.
    """

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
        broker.observe("on_dropped", False)

    @hookimpl
    async def on_ready(self, broker: BrokerHandle) -> None:
        """Start the history, and create the first token if there is no valid admin token."""
        services = self.services
        services.history.start()
        if not services.tokens.admins(broker.time()):
            await create_first(services, self.config.first_token_file)

    @hookimpl
    async def on_dropped(self, client: ClientInfo | None, message: Message, why: Dropped) -> None:
        """Record a dropped message. This hook is enabled only during a recording."""
        self.services.drops.record(client, message, why)

    @hookimpl
    async def on_shutdown(self) -> None:
        """Stop the history and the measurements."""
        if self._services is not None:
            self._services.history.stop()
            self._services.hot.stop()
            self._services.drops.stop()

    @hookimpl
    def register_http(self, router: HttpRouter) -> None:
        """Add the API and the console."""
        from hookmq_admin import api, pages
        from hookmq_admin.openapi import ROUTES

        api.register(router, self, ROUTES)
        pages.register(router, self)

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics of the API."""
        from hookmq_admin.metrics import register

        register(registry, self)
