"""Run the broker as several worker processes: the number of workers and the command line of each."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hookmq.cli.config_args import config_of
from hookmq.config.model import Config
from hookmq.config.overrides import PREFIX
from hookmq.hooks.manager import Hooks
from hookmq.model.errors import ConfigError
from hookmq.server import logs
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.server import Server
from hookmq.server.supervisor import Supervisor
from hookmq.server.workers import (
    PlannedWorkers,
    WorkerIdentity,
    WorkerPlans,
    parse_count,
    resolve_count,
)


def planned(option: str | None, hooks: Hooks) -> PlannedWorkers | None:
    """Return the workers to run, or None to run the broker in this process. `option` is the value of ``--workers``,
    which overrides the plugin's number, or None. Raises ConfigError if no plugin can join workers.
    """
    plans = WorkerPlans()
    hooks.register("register_workers", plans.of)
    if option is None:
        return plans.found
    try:
        count = parse_count(option)
    except ValueError as error:
        raise ConfigError(f"option --workers: {error}") from None
    if plans.found is None:
        raise ConfigError(
            "option --workers: no plugin joins several processes to one broker",
            hint="plugins: [{use: cluster}]",
        )
    return plans.found._replace(wanted=count)


def command_of(worker: str, config: Config, arguments: argparse.Namespace) -> Sequence[str]:
    """Return the command line of `worker`. It chooses the same configuration as that of this process."""
    # The script `hookmq` does not find modules in the working directory, and -m does.
    safe = () if sys.path[0] in ("", os.getcwd()) else ("-P",)
    words = [sys.executable, *safe, "-m", "hookmq.cli", "serve"]
    if arguments.config is not None:
        words += ["-c", arguments.config]
    if arguments.data_dir is not None:
        words += ["--data-dir", str(Path(arguments.data_dir, worker))]
    # A worker's stderr is never a terminal.
    log_format = logs.chosen_format(config.log.format, sys.stderr)
    options = [*arguments.option, f"log.format={log_format}"]
    for option in options:
        words += ["-o", option]
    return words


def environ_of(worker: str, config: Config, planned: PlannedWorkers) -> Mapping[str, str]:
    """Return the environment variables with the plan's settings for `worker`. A command line would show secrets."""
    place = next(n for n, entry in config.active if entry.id == planned.plugin)
    return {
        f"{PREFIX}PLUGINS__{place}__CONFIG__{key.replace('.', '__').upper()}": value
        for key, value in planned.plan.settings(worker).items()
    }


async def supervise(config: Config, planned: PlannedWorkers, arguments: argparse.Namespace) -> int:
    """Run the workers of a broker until they stop, and return the exit code."""
    supervisor = Supervisor(
        resolve_count(planned.wanted),
        planned.plan,
        config.listeners,
        lambda worker: command_of(worker, config, arguments),
        lambda worker: environ_of(worker, config, planned),
        config.broker.shutdown_timeout,
        logs.tell,
    )
    return await supervisor.run()


def worker_config(
    arguments: argparse.Namespace, worker: WorkerIdentity | None, text: str | None = None
) -> Config:
    """Return the configuration of this process, which may be a worker."""
    config = config_of(arguments, text)
    if worker is None:
        return config
    return replace(config, listeners=worker.listeners(config.listeners))


def stop_with_supervisor(worker: WorkerIdentity, server: Server, runtime: AsyncioRuntime) -> None:
    """Stop the worker when its supervisor has ended, because nothing else would stop it."""

    def orphaned() -> None:
        runtime.loop.remove_reader(worker.alive)
        runtime.log("error", "worker.orphaned")
        server.request_stop()

    runtime.loop.add_reader(worker.alive, orphaned)
