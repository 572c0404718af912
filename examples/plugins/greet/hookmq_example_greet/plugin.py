"""The plugin itself, which adds an HTTP route and a metric."""

from dataclasses import dataclass

from aiohttp import web
from hookmq.plugin import (
    BrokerHandle,
    ConfigError,
    HttpRouter,
    MetricRegistry,
    Plugin,
    PluginError,
    hookimpl,
    setting,
)


@dataclass(frozen=True)
class GreetConfig:
    """The greeting and where to publish it."""

    topic: str = setting("greetings", "topic below which greetings are published")
    text: str = setting("hello, {name}", "payload; must contain {name}")

    def __post_init__(self) -> None:
        if "{name}" not in self.text:
            raise ConfigError("text: expected {name} in it")


class GreetPlugin(Plugin):
    """A plugin that publishes a greeting for ``POST /plugins/ID/NAME``, and counts greetings in
    ``hookmq_greetings_total``.
    """

    Config = GreetConfig
    config: GreetConfig

    _broker: BrokerHandle | None = None
    _greetings = 0

    @hookimpl
    def on_startup(self, broker: BrokerHandle) -> None:
        """Keep the broker handle, since HTTP requests do not carry one."""
        self._broker = broker

    @hookimpl
    def register_http(self, router: HttpRouter) -> None:
        """Add the route. Requests arrive once a listener of type `http` is open."""
        router.add("POST", "/{name}", self._greet)

    async def _greet(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        assert self._broker is not None
        text = self.config.text.replace("{name}", name)
        try:
            matched = await self._broker.publish_and_wait(
                f"{self.config.topic}/{name}", text.encode(), qos=1
            )
        except PluginError as error:  # the name is not valid in a topic, or a plugin denied it
            return web.json_response({"error": error.message}, status=422)
        self._greetings += 1
        return web.json_response({"matched": matched})

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add a counter. The function that returns its value is called on every scrape."""
        registry.counter("greetings_total", "Greetings published.", lambda: self._greetings)
