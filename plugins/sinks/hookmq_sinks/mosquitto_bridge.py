"""Convert the bridges in a mosquitto.conf to entries for the `sinks` plugin."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hookmq.plugin import ConfigError

_LEFT_OUT: Final = {
    "bridge_psk": "PSK is not supported; use certificates",
    "bridge_identity": "PSK is not supported; use certificates",
    "bridge_insecure": "host names are always verified",
    "bridge_alpn": "ALPN is not supported",
    "bridge_capath": "name one file with `ca_file`",
    "bridge_require_ocsp": "OCSP is not supported",
    "bridge_tls_version": "TLS 1.2 or newer is always required",
    "bridge_ciphers": "the default ciphers are used",
    "bridge_ciphers_tls1.3": "the default ciphers are used",
    "bridge_bind_address": "the system chooses the address",
    "bridge_tcp_keepalive": "`keep_alive` finds a dead connection",
    "bridge_tcp_user_timeout": "`keep_alive` finds a dead connection",
    "bridge_reload_type": "a changed bridge needs a restart of the broker",
    "bridge_attempt_unsubscribe": "not needed: only filters that are removed are unsubscribed",
    "bridge_max_topic_alias": "topic aliases are not used",
    "threshold": "a bridge is always connected",
    "idle_timeout": "a bridge is always connected",
    "local_cleansession": "messages for the remote broker are always stored",
    "local_password": "messages are published here without a login; set `identity` for access rules",
    "local_clientid": "set `identity` for access rules",
    "notifications_local_only": "see the state of the entry with `hookmq sinks list`",
    "try_private": "it is tried with MQTT 3.1.1, as mosquitto does by default",
    "bridge_receive_maximum": "set `window`",
}  # fmt: skip
"""Keys that have no counterpart, and what to do instead."""
_ALIASES: Final = {
    "addresses": "address", "username": "remote_username", "password": "remote_password", "clientid": "remote_clientid",
}  # fmt: skip
_VERSIONS: Final = {"mqttv31": "3.1.1", "mqttv311": "3.1.1", "mqttv50": "5"}
_KNOWN: Final = frozenset(
    {
        "address", "remote_username", "remote_password", "remote_clientid", "cleansession", "keepalive_interval",
        "round_robin", "bridge_protocol_version", "bridge_cafile", "bridge_certfile", "bridge_keyfile", "start_type",
        "restart_timeout", "notifications", "notification_topic", "bridge_outgoing_retain", "bridge_max_packet_size",
        "bridge_session_expiry_interval", "local_username", "bridge_tls_use_os_certs",
    }
)  # fmt: skip
_NUMBERS: Final = ("keepalive_interval", "bridge_max_packet_size", "bridge_session_expiry_interval")
_END: Final = ("listener", "connection", "per_listener_settings")


@dataclass
class _Topic:
    pattern: str
    direction: str
    qos: int
    local: str
    remote: str


@dataclass
class _Bridge:
    name: str
    line: int
    values: dict[str, str] = field(default_factory=dict)
    topics: list[_Topic] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def convert(text: str, broker: str, source: str = "mosquitto.conf") -> str:
    """Convert the bridges in `text` to YAML. `broker` is the name that this broker adds to the path of a message.

    Comments in the YAML list the omitted keys and the reasons. Raises ConfigError for a mistake, with its line number,
    or if `text` contains no bridge.
    """
    bridges = _parse(text, source)
    if not bridges:
        raise ConfigError(
            "no bridge: there is no line that begins with `connection`", source=source
        )
    sinks, sources, notes = [], [], []
    for bridge in bridges:
        sink, one = _entries(bridge, broker)
        sinks += sink
        sources += one
        notes += [f"{bridge.name}: {note}" for note in bridge.notes]
    config: dict[str, Any] = {"path": "sinks"}
    if sinks:
        config["sinks"] = sinks
    if sources:
        config["sources"] = sources
    lines = [f"# from the bridges of {source}"]
    lines += [f"# {note}" for note in notes]
    lines += ["plugins:", "  - use: sinks", "    config:", *_yaml(config, 6)]
    return "\n".join(lines) + "\n"


def _parse(text: str, source: str) -> list[_Bridge]:
    bridges: list[_Bridge] = []
    bridge: _Bridge | None = None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        key, _, value = words.partition(" ")
        value = value.strip()
        if key == "connection":
            if not value:
                raise ConfigError("connection without a name", source=source, line=number, column=1)
            bridge = _Bridge(re.sub(r"[^A-Za-z0-9_.-]", "-", value), number)
            bridges.append(bridge)
        elif key in _END:
            bridge = None
        elif bridge is None:
            continue  # not about bridges
        elif key == "topic":
            bridge.topics.append(_topic(value, source, number))
        elif (known := _ALIASES.get(key, key)) in _KNOWN:
            if known in _NUMBERS and not value.isdecimal():
                raise ConfigError(
                    f"{value!r} is not a number", source=source, line=number, column=1
                )
            bridge.values[known] = value
        elif key.startswith(("bridge_", "local_", "notification", "remote_")) or key in _LEFT_OUT:
            bridge.notes.append(f"{key} is left out: {_LEFT_OUT.get(key, 'it has no counterpart')}")
    for one in bridges:
        if not one.values.get("address"):
            raise ConfigError(
                f"the bridge {one.name} has no address", source=source, line=one.line, column=1
            )
        if not one.topics:
            raise ConfigError(
                f"the bridge {one.name} has no topic", source=source, line=one.line, column=1
            )
    return bridges


def _topic(value: str, source: str, number: int) -> _Topic:
    words = ["" if one == '""' else one for one in value.split()]
    if not 1 <= len(words) <= 5:
        raise ConfigError(
            "expected PATTERN [DIRECTION [QOS [LOCAL_PREFIX [REMOTE_PREFIX]]]]",
            source=source,
            line=number,
            column=1,
        )
    words += ["", "out", "0", "", ""][len(words) :]
    pattern, direction, qos, local, remote = words
    if direction not in ("in", "out", "both"):
        raise ConfigError(
            f"{direction!r} is not a direction; expected in, out or both",
            source=source,
            line=number,
            column=1,
        )
    if qos not in ("0", "1", "2"):
        raise ConfigError(
            f"{qos!r} is not a QoS; expected 0, 1 or 2", source=source, line=number, column=1
        )
    return _Topic(pattern, direction, int(qos), local, remote)


def _entries(bridge: _Bridge, broker: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    values, notes = bridge.values, bridge.notes
    origin = _remote(bridge, broker)
    outward = [one for one in bridge.topics if one.direction != "in"]
    inward = [one for one in bridge.topics if one.direction != "out"]
    if values.get("start_type", "automatic") != "automatic":
        notes.append(f"start_type {values['start_type']} is left out: a bridge is always connected")
    if any(one.qos == 0 for one in bridge.topics):
        notes.append("messages at QoS 0 can be lost between the brokers; consider qos: 1")
    if origin.get("protocol") == "3.1.1" and outward and inward:
        notes.append(
            'with MQTT 3.1.1, messages that the remote broker sends back are published here again; use protocol: "5" '
            "or topics that do not overlap"
        )
    client_id = values.get("remote_clientid")
    if client_id and outward and inward:
        notes.append(
            f"the bridge connects twice: as {client_id}, and as {client_id}-out to publish"
        )
    sinks, sources = [], []
    if outward:
        target = dict(origin)
        if client_id:
            target["client_id"] = f"{client_id}-out" if inward else client_id
        if values.get("bridge_outgoing_retain") == "false":
            target["retain"] = False
        target["rules"] = [_rule(one) for one in outward]
        sinks.append(
            {
                "name": f"{bridge.name}-out",
                "topics": [one.local + one.pattern for one in outward],
                "driver": "mqtt",
                "target": target,
            }
        )
    if inward:
        origin = dict(origin)
        if outward:
            origin.pop("state_topic", None)
        if client_id:
            origin["client_id"] = client_id
        origin["rules"] = [_rule(one) for one in inward]
        entry: dict[str, Any] = {"name": f"{bridge.name}-in", "driver": "mqtt"}
        if values.get("local_username"):
            entry["identity"] = values["local_username"]
        sources.append({**entry, "origin": origin})
    return sinks, sources


def _remote(bridge: _Bridge, broker: str) -> dict[str, Any]:
    values, notes = bridge.values, bridge.notes
    tls: dict[str, str] = {}
    for key, name in (
        ("bridge_cafile", "ca_file"),
        ("bridge_certfile", "cert_file"),
        ("bridge_keyfile", "key_file"),
    ):
        if key in values:
            tls[name] = values[key]
    made: dict[str, Any] = {"addresses": values["address"].split(), "broker": broker}
    if tls or values.get("bridge_tls_use_os_certs") == "true":
        # mosquitto's default port is 1883 with TLS, too.
        made["addresses"] = [
            one if re.search(r":\d+$", one) else f"{one}:1883" for one in made["addresses"]
        ]
    version = _VERSIONS.get(values.get("bridge_protocol_version", ""))
    made["protocol"] = version or "5"
    if version is None:
        notes.append(
            'MQTT 5 is used, mosquitto\'s default is 3.1.1; if the remote broker does not know it, set protocol: "3.1.1"'
        )
    if "remote_username" in values:
        made["username"] = values["remote_username"]
    if "remote_password" in values:
        name = re.sub(r"[^A-Z0-9]", "_", bridge.name.upper()) + "_PASSWORD"
        made["password"] = {"$env": name}
        notes.append(f"the password is not copied: put it into the environment variable {name}")
    if tls or values.get("bridge_tls_use_os_certs") == "true":
        made["tls"] = tls
    if "keepalive_interval" in values:
        made["keep_alive"] = f"{values['keepalive_interval']}s"
    if values.get("round_robin") == "true":
        made["round_robin"] = True
    if values.get("cleansession") == "true":
        made["session_expiry"] = 0
    elif "bridge_session_expiry_interval" in values:
        made["session_expiry"] = f"{values['bridge_session_expiry_interval']}s"
    if int(values.get("bridge_max_packet_size") or 0) > 0:
        made["max_packet_size"] = int(values["bridge_max_packet_size"])
    if "restart_timeout" in values:
        notes.append(
            "restart_timeout is left out: set `retry` of the sink and `retry_longest` of the source"
        )
    if values.get("notifications") != "false" and "notification_topic" in values:
        made["state_topic"] = values["notification_topic"]
    elif values.get("notifications") != "false":
        notes.append("notifications below $SYS are left out: set `state_topic`")
    return made


def _rule(topic: _Topic) -> dict[str, Any]:
    made: dict[str, Any] = {"pattern": topic.pattern, "qos": topic.qos}
    if topic.local:
        made["local_prefix"] = topic.local
    if topic.remote:
        made["remote_prefix"] = topic.remote
    return made


def _yaml(value: dict[str, Any], indent: int) -> Iterator[str]:
    space = " " * indent
    for key, one in value.items():
        if isinstance(one, dict) and one and "$env" not in one:
            yield f"{space}{key}:"
            yield from _yaml(one, indent + 2)
        elif isinstance(one, list) and one and isinstance(one[0], dict):
            yield f"{space}{key}:"
            for item in one:
                if key == "rules":
                    yield f"{space}  - {_flow(item)}"
                    continue
                lines = list(_yaml(item, indent + 4))
                yield f"{space}  - {lines[0].strip()}"
                yield from lines[1:]
        else:
            yield f"{space}{key}: {_flow(one)}"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", value):
        return (
            value
            if value.lower() not in ("true", "false", "null", "yes", "no", "on", "off")
            else json.dumps(value)
        )
    return json.dumps(value, ensure_ascii=False)
