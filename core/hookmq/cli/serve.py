"""Run the broker until SIGTERM or SIGINT (a second one ends it at once); SIGHUP reads the configuration again.

Without -c it listens on this machine only: 127.0.0.1:1883 (TCP) and 127.0.0.1:8083/mqtt (WebSocket). Where hookmq-storage
is installed it keeps sessions, queues and retained messages, in hookmq/storage of ~/.local/state or $XDG_STATE_HOME.
"""

import argparse
import asyncio
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hookmq.cli.source import add_source, config_of
from hookmq.errors import StoreError

if TYPE_CHECKING:
    from hookmq.config.model import Config
    from hookmq.hooks.manager import Hooks

EXAMPLES = """\
examples:
  hookmq serve
  hookmq serve --data-dir ./data
  hookmq serve -c hookmq.yaml
  hookmq serve -o listeners.0.bind=127.0.0.1:1884 -o log.level=debug
  hookmq serve -c hookmq.yaml --check

signals: TERM and INT stop (twice: at once), HUP reloads, USR1 logs the state
exit codes: 0 stopped, 1 failed while running, 2 configuration, 3 plugin, 4 listener address"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_source(parser)
    parser.add_argument("--log-format", choices=("auto", "text", "json"), help="as log.format")
    parser.add_argument("--loop", choices=("auto", "asyncio", "uvloop"), help="as loop")
    parser.add_argument("--check", action="store_true", help="as hookmq check: validate and leave")
    parser.set_defaults(quiet=False)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from hookmq.cli import check

    if arguments.log_format:
        arguments.option.append(f"log.format={arguments.log_format}")
    if arguments.loop:
        arguments.option.append(f"loop={arguments.loop}")
    if arguments.check:
        return check.run(arguments)

    from hookmq import logs
    from hookmq.server.loop import run as run_loop

    config = config_of(arguments)
    logs.configure(config.log.level, config.log.format)
    hooks = check.validate(config, config.loop, logs.tell)
    run_loop(serve(config, hooks, arguments), config.loop)
    return 0


async def serve(config: "Config", hooks: "Hooks", arguments: argparse.Namespace) -> None:
    """Run one broker to its end. Raises StoreError when it ended because its store failed."""
    from hookmq.broker import Broker
    from hookmq.cli.summary import notices
    from hookmq.config.live import Live, start_plugins, told
    from hookmq.server.extensions import Extensions
    from hookmq.server.node import Node
    from hookmq.server.runtime import AsyncioRuntime

    class PluginNode(Node):
        """A node whose plugins start before the store is loaded, and hear when all is open."""

        async def prepare(self) -> None:
            await start_plugins(hooks)
            self.use(Extensions(hooks, broker, self.connections, runtime.log))

        async def start(self, inherited: Mapping[str, socket.socket] | None = None) -> None:
            await super().start(inherited)
            await told(hooks.ready)
            _greet(config, hooks, self)

    runtime = AsyncioRuntime()
    broker = Broker(config.settings, runtime, hooks)

    async def reload() -> None:
        """Reload, and say what is open now that was not."""
        before = notices(live.config, live.hooks)
        await live.reread()
        for notice in notices(live.config, live.hooks):
            if notice not in before:
                runtime.log("warning", notice.event, text=notice.text, **dict(notice.fields))

    node = PluginNode(broker, config.listeners, runtime, reload=reload)
    live = Live(config, hooks, broker, node, lambda: config_of(arguments))
    try:
        await node.run()
    finally:
        await live.settle()
        seconds = broker.settings.broker.shutdown_timeout
        await told(lambda done: live.hooks.shutdown(seconds, done))
        try:
            await asyncio.wait_for(told(broker.store.close), seconds)
        except TimeoutError:
            # What waits for a disk that hangs was not acknowledged: nobody gains by waiting with it.
            raise StoreError(
                f"the store did not end within {seconds:g} s: the disk is slow, or hangs; nothing acknowledged is lost"
            ) from None
        finally:
            await runtime.close()
        # Plugins, their processes and the store have ended: the next broker may use their folders.
        if node.phase() != "starting":
            runtime.log("info", "node.stopped")


def _greet(config: "Config", hooks: "Hooks", node: object) -> None:
    """Log what the operator should know, and to people say what to try next."""
    from hookmq.cli.summary import banner, notices
    from hookmq.logs import chosen_format
    from hookmq.server.node import Node

    assert isinstance(node, Node)
    for notice in notices(config, hooks):
        node.runtime.log("warning", notice.event, text=notice.text, **dict(notice.fields))
    if chosen_format(config.log.format, sys.stderr) == "text":
        print(banner(config, hooks, node.addresses()), file=sys.stderr, flush=True)
