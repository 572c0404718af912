"""The security events: their names, and the ECS categories that a SIEM uses to find them.

Field and category names follow the Elastic Common Schema, version 8.11.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

ECS: Final = "8.11.0"


@dataclass(frozen=True, slots=True)
class EventKind:
    """Properties shared by all events of one name. `hostile` events count towards ``attack_suspected``."""

    category: str
    types: tuple[str, ...]
    outcome: Literal["success", "failure", "unknown"]
    level: Literal["info", "warning"]
    hostile: bool
    meaning: str


KINDS: Final[Mapping[str, EventKind]] = {
    "authentication_failure": EventKind(
        "authentication", ("start",), "failure", "warning", True,
        "A client sent wrong credentials, at CONNECT or at re-authentication, or a wrong token to the admin API.",
    ),
    "connection_refused": EventKind(
        "network", ("connection", "denied"), "failure", "info", False,
        "A connection was refused for another reason: a ban, a limit, a setting, or a plugin that failed.",
    ),
    "authorization_denied": EventKind(
        "network", ("access", "denied"), "failure", "warning", True,
        "A client was not allowed to publish or to subscribe, or its will was refused.",
    ),
    "protocol_error": EventKind(
        "network", ("protocol", "denied"), "failure", "warning", True,
        "A client violated the MQTT protocol.",
    ),
    "handshake_failure": EventKind(
        "network", ("connection", "denied"), "failure", "warning", True,
        "A TLS handshake failed.",
    ),
    "client_banned": EventKind(
        "intrusion_detection", ("denied",), "success", "warning", False,
        "The plugin `ratelimit` banned a client, a user or an address.",
    ),
    "rate_exceeded": EventKind(
        "network", ("access", "denied"), "failure", "info", False,
        "A client exceeded a rate limit of the plugin `ratelimit`.",
    ),
    "session_takeover": EventKind(
        "session", ("start",), "success", "warning", False,
        "A connection from another address took over a session.",
    ),
    "client_flapping": EventKind(
        "session", ("info",), "unknown", "warning", False,
        "Connections took over a session from each other too often.",
    ),
    "topic_watched": EventKind(
        "network", ("access", "info"), "success", "warning", False,
        "A client subscribed or published to a topic that `watch` names.",
    ),
    "attack_suspected": EventKind(
        "intrusion_detection", ("info",), "unknown", "warning", False,
        "One address caused `alert.events` hostile events within `alert.period`.",
    ),
    "events_suppressed": EventKind(
        "intrusion_detection", ("info",), "unknown", "warning", False,
        "More events than `max_rate` allows were not written.",
    ),
}  # fmt: skip
"""Every event by name, which is the value of ``event.action``."""
ALERT: Final = "attack_suspected"
SUPPRESSED: Final = "events_suppressed"
