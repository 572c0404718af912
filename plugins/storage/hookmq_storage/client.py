"""Convert a client's identity and connection details to and from JSON. The JSON is part of a session's record.

`client_id`, `version` and `connected_at` have columns of their own.
"""

from collections.abc import Mapping
from typing import Any, Final

from hookmq.plugin import Certificate, ClientRecord, Peer, ReasonCode

ADDED: Final[Mapping[str, Any]] = {
    "vouched_by": None,
    "port": 0,
    "transport": "",
    "certificate": None,
    "clean_start": False,
    "keep_alive": 0,
    "expires_at": None,
    "expiry_code": int(ReasonCode.MAXIMUM_CONNECT_TIME),
    "revoked": [],
}
"""Fields that schema versions 1 to 3 did not store, with values that mean "unknown"."""


def complete(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` with all fields of the current version, whichever schema version wrote it."""
    return {**data, **{name: value for name, value in ADDED.items() if name not in data}}


def client_data(client: ClientRecord) -> dict[str, Any]:
    """Return `client` as JSON values."""
    peer = client.peer
    certificate = peer.certificate
    return {
        "username": client.username,
        "identity": client.identity,
        "claims": dict(client.claims),
        "vouched_by": client.vouched_by,
        "listener": client.listener,
        "mount_point": client.mount_point,
        "host": peer.host,
        "port": peer.port,
        "transport": peer.transport,
        "certificate": None
        if certificate is None
        else {
            "common_name": certificate.common_name,
            "subject": certificate.subject,
            "sans": list(certificate.sans),
            "fingerprint": certificate.fingerprint,
        },
        "clean_start": client.clean_start,
        "keep_alive": client.keep_alive,
        "expires_at": client.expires_at,
        "expiry_code": int(client.expiry_code),
    }


def client_of(
    client_id: str, version: int, connected_at: float, data: Mapping[str, Any]
) -> ClientRecord:
    """Return the client described by `data`, which comes from `client_data`."""
    kept = data["certificate"]
    certificate = None
    if kept is not None:
        certificate = Certificate(
            kept["common_name"], kept["subject"], tuple(kept["sans"]), kept["fingerprint"]
        )
    return ClientRecord(
        client_id,
        version,
        data["username"],
        data["identity"],
        data["claims"],
        data["vouched_by"],
        Peer(data["host"], data["port"], data["transport"], certificate),
        data["listener"],
        data["mount_point"],
        data["clean_start"],
        data["keep_alive"],
        connected_at,
        data["expires_at"],
        ReasonCode(data["expiry_code"]),
    )
