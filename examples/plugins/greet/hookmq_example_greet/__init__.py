"""Add an HTTP route, a metric and a command: a plugin that registers."""

import argparse
import urllib.error
import urllib.request
from dataclasses import dataclass
from urllib.parse import quote

from aiohttp import web
from hookmq.plugin import (
    BrokerHandle,
    CommandGroup,
    ConfigError,
    HookMQError,
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
    """``POST /plugins/ID/NAME`` publishes a greeting, ``hookmq greet NAME`` asks for one, and
    ``hookmq_greetings_total`` counts them."""

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
        """Add a counter. Its function is called for each scrape."""
        registry.counter("greetings_total", "Greetings published.", lambda: self._greetings)

    @staticmethod
    @hookimpl
    def register_cli(group: CommandGroup) -> None:
        """Add the command. It has no plugin object, so it sends a request to a running broker."""
        parser = group.add_parser("greet", help="publish a greeting")
        parser.add_argument("name", help="name to greet")
        parser.add_argument(
            "--url",
            default="http://127.0.0.1:9090/plugins/example_greet",
            help="URL of the plugin (default: %(default)s)",
        )
        parser.set_defaults(run=_command)


def _command(arguments: argparse.Namespace) -> int:
    request = urllib.request.Request(f"{arguments.url}/{quote(arguments.name, '')}", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            print(response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            raise HookMQError(f"{arguments.url}: {error.code} {error.reason}") from None
    except OSError as error:
        raise HookMQError(f"{arguments.url}: {error}") from None
    return 0
