"""Run the broker until SIGTERM or SIGINT; a second signal stops it at once. SIGHUP reloads the configuration.

Without -c, the broker listens on this machine only: 127.0.0.1:1883 (TCP) and 127.0.0.1:8083/mqtt (WebSocket).
If hookmq-storage is installed, it keeps sessions, queues and retained messages in hookmq/storage, in the folder
~/.local/state or $XDG_STATE_HOME.

With a plugin that joins several processes to one broker, such as cluster, the broker may run as several workers. They
share the listeners of type tcp, tls, ws, wss and unix. Worker n opens an HTTP listener on its port plus n.
"""

import argparse
import asyncio
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hookmq.cli.config_args import add_source
from hookmq.model.errors import StoreError

if TYPE_CHECKING:
    from hookmq.cli.summary import StartupNotice
    from hookmq.config.model import Config
    from hookmq.hooks.manager import Hooks
    from hookmq.model.reload_report import ReloadReport
    from hookmq.server.workers import WorkerIdentity

EXAMPLES = """\
examples:
  hookmq serve
  hookmq serve --data-dir ./data
  hookmq serve -c hookmq.yaml
  hookmq serve -o listeners.0.bind=127.0.0.1:1884 -o log.level=debug
  hookmq serve -c hookmq.yaml --check

signals: TERM and INT stop the broker (a second one: at once), HUP reloads, USR1 logs the state
exit codes: 0 stopped, 1 failure, 2 configuration, 3 plugin, 4 listener address"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add_source(parser)
    add = parser.add_argument
    add("--log-format", choices=("auto", "text", "json"), help="override log.format")
    add("--loop", choices=("auto", "asyncio", "uvloop"), help="override loop")
    add(
        "--workers",
        metavar="N",
        help="run N worker processes, or auto: one for each CPU; needs a plugin such as cluster",
    )
    add("--check", action="store_true", help="validate and exit, like `hookmq check`")
    parser.set_defaults(quiet=False)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal stops the broker."""
    from hookmq.cli import check

    if arguments.log_format:
        arguments.option.append(f"log.format={arguments.log_format}")
    if arguments.loop:
        arguments.option.append(f"loop={arguments.loop}")
    if arguments.check:
        return check.run(arguments)

    from hookmq.cli.workers import planned, supervise, worker_config
    from hookmq.server import logs
    from hookmq.server.loop import run as run_loop
    from hookmq.server.workers import take_identity

    worker = take_identity()
    config = worker_config(arguments, worker)
    logs.configure(config.log.level, config.log.format)
    hooks = check.validate(config, config.loop, logs.tell)
    if worker is None:
        wanted = planned(arguments.workers, hooks)
        if wanted is not None:
            return asyncio.run(supervise(config, wanted, arguments))
    run_loop(serve(config, hooks, arguments, worker), config.loop)
    return 0


def _shows_banner(config: "Config", worker: "WorkerIdentity | None") -> bool:
    """Return whether to print how to try the broker: on a terminal, once for all workers."""
    from hookmq.server.logs import chosen_format

    first = worker is None or worker.number == 0
    return first and chosen_format(config.log.format, sys.stderr) == "text"


async def serve(
    config: "Config",
    hooks: "Hooks",
    arguments: argparse.Namespace,
    worker: "WorkerIdentity | None" = None,
) -> None:
    """Run a broker, or one of its workers, until it stops. Raises StoreError if its store failed."""
    from hookmq.broker import Broker
    from hookmq.cli.summary import banner, notices
    from hookmq.cli.workers import stop_with_supervisor, worker_config
    from hookmq.config.config_check import ConfigChecker
    from hookmq.config.hot_reload import HotReload
    from hookmq.config.show import show
    from hookmq.server.asyncio_runtime import AsyncioRuntime
    from hookmq.server.event_log import ServerLog
    from hookmq.server.extensions import PluginExtensions
    from hookmq.server.loop import finished
    from hookmq.server.server import Server

    class PluginServer(Server):
        """A server that starts plugins once the store is loaded, and calls `on_ready` once all listeners are open."""

        async def prepare(self) -> None:
            await finished(hooks.startup)
            self.use(PluginExtensions(hooks, broker, runtime.log))

        async def start(self, inherited: Mapping[str, socket.socket] | None = None) -> None:
            await super().start(inherited)
            await finished(hooks.ready)
            warn(notices(config, hooks))
            if _shows_banner(config, worker):
                print(banner(config, hooks, self.addresses()), file=sys.stderr, flush=True)

    def warn(found: "list[StartupNotice]") -> None:
        for notice in found:
            runtime.log("warning", notice.event, text=notice.text, **dict(notice.fields))

    async def reload() -> "ReloadReport":
        """Reload the configuration, and log notices that are new."""
        before = notices(live.config, live.hooks)
        report = await live.reread()
        warn([one for one in notices(live.config, live.hooks) if one not in before])
        return report

    async def close(started: bool) -> None:
        if started:
            await finished(broker.commit)  # the state that plugins kept in `on_shutdown`
        broker.end()
        await finished(broker.store.close)

    runtime = AsyncioRuntime()
    broker = Broker(config.settings, runtime, hooks)
    server = PluginServer(broker, config.listeners, runtime, reload=reload)
    live = HotReload(config, hooks, broker, server, lambda: worker_config(arguments, worker))
    broker.configuration = lambda: show(live.config, origins=False)
    broker.check_config = ConfigChecker(
        lambda given: worker_config(arguments, worker, given), lambda: live.config
    )
    event_log = broker.event_log = ServerLog(runtime, lambda: live.config.log.level)
    if worker is not None:
        stop_with_supervisor(worker, server, runtime)
    try:
        await server.run(None if worker is None else worker.open_sockets())
    finally:
        await live.settle()
        seconds = broker.settings.broker.shutdown_timeout
        await finished(lambda done: live.hooks.shutdown(seconds, done))
        try:
            await asyncio.wait_for(close(server.phase() != "starting"), seconds)
        except TimeoutError:
            # Changes that a hanging disk has not committed were not acknowledged, so waiting longer is pointless.
            raise StoreError(
                f"the store did not close within {seconds:g} s: the disk is slow or hangs; nothing acknowledged is lost"
            ) from None
        finally:
            event_log.close()
            await runtime.close()
        # The plugins, their processes and the store have ended, so another broker may use their folders.
        if server.phase() != "starting":
            runtime.log("info", "node.stopped")
