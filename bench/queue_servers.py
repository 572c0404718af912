"""The servers that bench.queues compares: how to start each one, and which clients talk to it.

Each server runs on a free port of 127.0.0.1 with its data in a temporary folder of the working tree, because the system's
temporary folder may be in memory. Only processes started here are stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import launch, peers
from .queue_amqp import AmqpConsumer, AmqpProducer
from .queue_client import QUEUE, Consumer, Producer
from .queue_mqtt import MqttConsumer, MqttProducer
from .queue_nats import NatsConsumer, NatsProducer, nats_queue
from .queue_redis import RedisConsumer, RedisProducer, redis_queue

DISK = "disk"
SYSTEM = "system"
NO_LIMIT = 1_000_000_000
STOP = 30.0
"""The number of seconds between SIGTERM and SIGKILL."""


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """How to start a server: its command line, and additional environment variables."""

    words: list[str]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """A server with one kind of queue.

    `durability` says what the acknowledgement of a message promises: with `DISK`, that the message was written with
    fsync; with `SYSTEM`, that the operating system has it. `command` is called with the port and the folder.
    """

    name: str
    durability: str
    program: Callable[[], str | None]
    version: Callable[[str], str]
    command: Callable[[str, int, pathlib.Path], Command]
    prepare: Callable[[int, int], None]
    producer: Callable[[int, int], Producer]
    consumer: Callable[[int, int, int], Consumer]
    where_from: str
    window: int = 30_000
    """Maximum number of unconfirmed messages per producer. A low value keeps the run short if every message needs its
    own fsync."""


@contextlib.contextmanager
def folder() -> Iterator[pathlib.Path]:
    """Create a temporary folder in the working tree."""
    parent = peers.CACHE
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix="queues-") as name:
        yield pathlib.Path(name)


@contextlib.contextmanager
def running(server: Server, where: pathlib.Path, core: int | None) -> Iterator[launch.Broker]:
    """Run a server in a folder. Raises PeerError if it does not start."""
    program = server.program()
    if program is None:
        raise peers.PeerError(f"{server.name} is not installed ({server.where_from})")
    port = launch.free_port()
    command = server.command(program, port, where)
    output = where / "output"
    with output.open("ab") as stream, launch.on_core(core):
        process = subprocess.Popen(
            command.words, cwd=where, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
            env={**os.environ, **command.environment}, start_new_session=True,
        )  # fmt: skip
    try:
        launch.await_listener(server.name, process, port, output)
        yield launch.Broker(port, process.pid)
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a server and every process that it started. All of them are in the server's session."""
    process.terminate()
    try:
        process.wait(STOP)
    except subprocess.TimeoutExpired:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _nothing(port: int, unacknowledged: int) -> None:
    pass


# HookMQ --------------------------------------------------------------------------------------------------------------


def hookmq_document(port: int, durability: str, **queue: Any) -> dict[str, Any]:
    """Return the configuration of a broker with one queue."""
    return {
        "version": 1,
        "listeners": [{"name": "tcp", "bind": f"127.0.0.1:{port}"}],
        "auth": {"default": "allow"},
        "authz": {"default": "allow"},
        "log": {"level": "warning"},
        "plugins": [
            {
                "use": "storage",
                "config": {
                    "path": "state",
                    "durability": "group" if durability == DISK else "os",
                },
            },
            {
                "use": "queues",
                "config": {
                    "path": "queues",
                    "sync": durability == DISK,
                    "queues": [
                        {
                            "name": QUEUE,
                            "max_messages": NO_LIMIT,
                            "max_bytes": "1000GiB",
                            "visibility_timeout": "10m",
                            **queue,
                        }
                    ],
                },
            },
        ],
    }


def hookmq(build: str, durability: str, level: int = 5, suffix: str = "") -> Server:
    """Return HookMQ with one of its builds."""
    peer = peers.PEERS[f"hookmq-{build}"]

    def command(program: str, port: int, where: pathlib.Path) -> Command:
        file = where / "hookmq.yaml"
        file.write_text(json.dumps(hookmq_document(port, durability)))
        return Command([program, "serve", "-c", str(file)], {"HOOKMQ_BUILD": build})

    return Server(
        f"hookmq {build}{suffix}",
        durability,
        peer.program,
        peer.version,
        command,
        _nothing,
        lambda port, number: MqttProducer(port, number, level),
        lambda port, number, prefetch: MqttConsumer(port, number, level),
        peer.where_from,
    )


# RabbitMQ ------------------------------------------------------------------------------------------------------------


def _rabbitmq_program() -> str | None:
    # The one in /usr/sbin changes the user and runs with that user's settings.
    return shutil.which("rabbitmq-server", path="/usr/lib/rabbitmq/bin:/usr/local/lib/rabbitmq/bin")


def _rabbitmq_version(program: str) -> str:
    folders = glob.glob("/usr/lib/rabbitmq/lib/rabbitmq_server-*")
    return folders[0].rpartition("-")[2] if folders else "unknown"


def _rabbitmq(kind: str, durability: str) -> Server:
    def command(program: str, port: int, where: pathlib.Path) -> Command:
        (where / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{port}\n"
            "log.console = true\nlog.console.level = warning\nlog.file = false\n"
        )
        (where / "plugins").write_text("[].\n")
        (where / "advanced.config").write_text("[].\n")
        return Command(
            [program],
            {
                "HOME": str(where),
                "RABBITMQ_NODENAME": f"bench{port}@localhost",
                "RABBITMQ_CONFIG_FILE": str(where / "rabbitmq"),
                "RABBITMQ_CONF_ENV_FILE": str(where / "none"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(where / "plugins"),
                "RABBITMQ_MNESIA_BASE": str(where / "data"),
                "RABBITMQ_LOG_BASE": str(where / "log"),
                "RABBITMQ_PID_FILE": str(where / "pid"),
                "RABBITMQ_DIST_PORT": str(launch.free_port()),
                "ERL_EPMD_PORT": str(launch.free_port()),
                "ERL_EPMD_ADDRESS": "127.0.0.1",
            },
        )

    return Server(
        f"rabbitmq {kind}",
        durability,
        _rabbitmq_program,
        _rabbitmq_version,
        command,
        _nothing,
        lambda port, number: AmqpProducer(port, number, kind),
        lambda port, number, prefetch: AmqpConsumer(port, number, kind, prefetch),
        "Debian: apt install rabbitmq-server",
    )


# NATS JetStream ------------------------------------------------------------------------------------------------------


def _jetstream(durability: str) -> Server:
    peer = peers.PEERS["nats"]
    sync = "always" if durability == DISK else '"2m"'

    def command(program: str, port: int, where: pathlib.Path) -> Command:
        file = where / "nats.conf"
        file.write_text(
            f'server_name: bench\nlisten: "127.0.0.1:{port}"\n'
            f'jetstream {{ store_dir: "{where}/store", sync_interval: {sync} }}\n'
        )
        return Command([program, "-c", str(file)])

    return Server(
        "nats jetstream",
        durability,
        peer.program,
        peer.version,
        command,
        nats_queue,
        NatsProducer,
        NatsConsumer,
        peer.where_from,
        10 if durability == DISK else 30_000,
    )


# Redis Streams -------------------------------------------------------------------------------------------------------


def _redis_version(program: str) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return said.stdout.partition("v=")[2].partition(" ")[0]


def _redis(durability: str) -> Server:
    sync = "always" if durability == DISK else "everysec"

    def command(program: str, port: int, where: pathlib.Path) -> Command:
        return Command(
            [
                program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(where), "--save", "",
                "--appendonly", "yes", "--appendfsync", sync, "--auto-aof-rewrite-percentage", "0",
            ]
        )  # fmt: skip

    return Server(
        "redis streams",
        durability,
        lambda: shutil.which("redis-server"),
        _redis_version,
        command,
        lambda port, unacknowledged: redis_queue(port),
        RedisProducer,
        RedisConsumer,
        "Debian: apt install redis-server",
    )


SERVERS: tuple[Server, ...] = (
    hookmq("compiled", DISK),
    hookmq("pure", DISK),
    _rabbitmq("quorum", DISK),
    _jetstream(DISK),
    _redis(DISK),
    hookmq("compiled", SYSTEM),
    hookmq("compiled", SYSTEM, 4, ", MQTT 3.1.1"),
    hookmq("pure", SYSTEM),
    _rabbitmq("classic", SYSTEM),
    _jetstream(SYSTEM),
    _redis(SYSTEM),
)
