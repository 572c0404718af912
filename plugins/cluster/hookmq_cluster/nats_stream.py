"""The stream of a cluster: made if it does not exist, and checked if it does."""

import json
from typing import Any, Final

from hookmq_cluster.engine_errors import EngineError
from hookmq_cluster.nats_commits import DUPLICATE_WINDOW

OLDEST: Final = (2, 14)
"""The oldest version of nats-server with everything that the cluster needs."""
HEADERS: Final = 2048
"""Bytes of a message that are left for its header."""
SMALLEST: Final = 524_288 - HEADERS
"""Largest entry in bytes that the servers must at least accept. All messages between nodes are smaller."""
STREAM_NOT_FOUND: Final = 10059
NO_ACCOUNT: Final = 10039
"""JetStream's error for an account without JetStream."""
NOT_CLUSTERED: Final = 10074
"""JetStream's error for replicas on a server without a cluster."""


def check_server(info: dict[str, Any], max_entry: int = SMALLEST) -> str:
    """Return why a server cannot be used, or ''. It must accept entries of `max_entry` bytes."""
    version = str(info.get("version") or "")
    numbers = version.split("-")[0].split(".")
    try:
        found = (int(numbers[0]), int(numbers[1]))
    except (ValueError, IndexError):
        return f"nats-server has the version {version!r}; at least 2.14 is required"
    if found < OLDEST:
        return f"nats-server has the version {version}; at least 2.14 is required"
    if not info.get("jetstream"):
        return "JetStream is not enabled on this server"
    if not info.get("headers"):
        return "headers are disabled on this server"
    size = info.get("max_payload")
    if not isinstance(size, int) or size - HEADERS < max_entry:
        return f"max_payload is {size!r}; at least {max_entry + HEADERS} is required on all servers"
    return ""


def stream_config(name: str, subjects: str, replicas: int) -> dict[str, Any]:
    """Return the configuration of a new stream."""
    return {
        "name": name,
        "subjects": [subjects],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "num_replicas": replicas,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "max_consumers": -1,
        "duplicate_window": DUPLICATE_WINDOW * 1_000_000_000,
        "allow_atomic": True,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "allow_msg_ttl": True,
        "deny_delete": False,
        "deny_purge": False,
    }


def check_stream(found: dict[str, Any], name: str, subjects: str, replicas: int) -> None:
    """Raise EngineError, with all differences, if the stream `found` cannot hold the log.

    A larger limit on the time of duplicates is accepted, and limits on the size of the stream.
    """
    wrong: list[str] = []
    wanted = stream_config(name, subjects, replicas)
    for key in (
        "storage", "retention", "num_replicas", "max_age", "max_msgs_per_subject", "allow_atomic", "allow_direct",
        "allow_rollup_hdrs", "allow_msg_ttl", "deny_purge", "subjects",
    ):  # fmt: skip
        value = found.get(key)
        if not (value == wanted[key] or (not value and not wanted[key])):
            shown = "not set" if value is None else json.dumps(value)
            wrong.append(f"{key} is {shown}, not {json.dumps(wanted[key])}")
    limited = any(int(found.get(key) or -1) > 0 for key in ("max_msgs", "max_bytes"))
    if limited and found.get("discard") != "new":
        wrong.append(f'discard is {json.dumps(found.get("discard"))}, not "new"')
    if int(found.get("duplicate_window") or 0) < wanted["duplicate_window"]:
        wrong.append(f"duplicate_window is less than {DUPLICATE_WINDOW} seconds")
    others = ("mirror", "sources", "republish", "subject_transform")
    wrong += [f"{key} is set" for key in others if found.get(key)]
    if found.get("sealed"):
        wrong.append("it is sealed")
    if wrong:
        raise EngineError(
            f"the stream {name} exists with another configuration: {'; '.join(wrong)}. "
            "Change it with the program `nats`, or choose another name for the cluster"
        )


def check_replicas(info: dict[str, Any], replicas: int, allow_single: bool) -> None:
    """Raise EngineError if one copy is wanted on several servers: the log would end with one of them."""
    if replicas == 1 and info.get("cluster") and not allow_single:
        raise EngineError(
            f"replicas: the NATS servers are a cluster ({info['cluster']}), and one copy of the log would be "
            "lost with one of them; use 3"
        )


def no_copies(replicas: int) -> EngineError:
    """Return the error for several copies on a server that is not part of a cluster."""
    return EngineError(
        f"replicas: {replicas} copies of the log are wanted, but this NATS server is not part of a cluster"
    )
