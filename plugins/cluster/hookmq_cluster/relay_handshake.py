"""What two nodes say to each other before one relays a client's connection to the other. No I/O.

    sender   -> hello      version, nonce
    receiver -> challenge  version, nonce, proof that it knows the secret
    sender   -> request    whom it relays to which listener, proof that it knows the secret
    receiver -> reply      accepted, or the reason against it
    both     -> the bytes of the MQTT connection

A proof is an HMAC over both nonces, so neither side can use a recorded one. The sender sends nothing about the client
before the receiver has proved itself. The request's proof covers all its fields. The MQTT bytes are neither encrypted nor
authenticated: use TLS if others can reach the network between the nodes.
"""

import hmac
import secrets
from typing import Any, Final, NamedTuple

from hookmq.plugin import Certificate, HookMQError, Peer
from msgpack import packb, unpackb  # type: ignore[import-untyped]

VERSION: Final = 1
_MAGIC: Final = b"HMQR"
_NONCE: Final = 32
_PROOF: Final = 32
HELLO: Final = len(_MAGIC) + 1 + _NONCE
"""The size of a hello in bytes."""
CHALLENGE: Final = 1 + _NONCE + _PROOF
"""The size of a challenge in bytes."""
MAX_REQUEST: Final = 16_384
"""The maximum size of a request's fields in bytes. A receiver buffers this much from a stranger."""
_LENGTH: Final = 2
_REPLY: Final = 2
"""The fixed part of a reply: whether the connection was accepted, and the length of the reason."""


class HandshakeError(HookMQError):
    """The other side sent bytes that are not a handshake of this version, or does not know the secret."""


class Request(NamedTuple):
    """A connection to relay.

    - `node`: the sender's name.
    - `lane`: the lane with the session. The receiver must own it.
    - `listener`: the listener that accepted the client, with its `mount_point` and `identity`.
    - `peer`: the client.
    """

    node: str
    lane: str
    listener: str
    mount_point: str
    identity: str
    peer: Peer


class Reply(NamedTuple):
    """The receiver's answer. `reason` is empty if it has accepted the connection."""

    reason: str


class _Side:
    """The state of one side: both nonces, once they are known, and the bytes that were not parsed yet."""

    def __init__(self, cluster: str, secret: str) -> None:
        self._name = cluster.encode()
        self._secret = secret.encode()
        self._own = secrets.token_bytes(_NONCE)
        self._data = b""

    def _proof(self, who: bytes, sender: bytes, receiver: bytes, fields: bytes = b"") -> bytes:
        text = b"\0".join((b"hookmq relay", bytes((VERSION,)), who, self._name))
        return hmac.digest(self._secret, text + b"\0" + sender + receiver + fields, "sha256")


class SenderHandshake(_Side):
    """The side of the node that the client is connected to."""

    def __init__(self, cluster: str, secret: str) -> None:
        super().__init__(cluster, secret)
        self._other = b""

    def hello(self) -> bytes:
        """Return the first bytes to send."""
        return _MAGIC + bytes((VERSION,)) + self._own

    def challenge(self, data: bytes) -> bool:
        """Read bytes of the receiver. Return whether they completed its challenge. Raises HandshakeError."""
        self._data += data
        if self._data and self._data[0] != VERSION:
            raise HandshakeError(f"speaks version {self._data[0]} of the relay protocol")
        if len(self._data) < CHALLENGE:
            return False
        found, self._data = self._data[:CHALLENGE], self._data[CHALLENGE:]
        other = found[1 : 1 + _NONCE]
        proof = self._proof(b"receiver", self._own, other)
        if not hmac.compare_digest(found[1 + _NONCE :], proof):
            raise HandshakeError("does not know the secret of this cluster")
        self._other = other
        return True

    def request(self, request: Request) -> bytes:
        """Return the request's bytes, once the challenge is complete. Raises HandshakeError if it is too large."""
        fields = encode_request(request)
        proof = self._proof(b"sender", self._own, self._other, fields)
        return len(fields).to_bytes(_LENGTH, "big") + fields + proof

    def reply(self, data: bytes) -> tuple[Reply, bytes] | None:
        """Read bytes of the receiver. Return its reply and the bytes that follow it, or None if it is incomplete."""
        self._data += data
        if len(self._data) < _REPLY or len(self._data) < (end := _REPLY + self._data[1]):
            return None
        found, rest = self._data[:end], self._data[end:]
        self._data = b""
        reason = found[_REPLY:].decode(errors="replace")
        return Reply("" if found[0] == 0 else reason or "refused"), rest


class ReceiverHandshake(_Side):
    """The side of the node with the session."""

    def __init__(self, cluster: str, secret: str) -> None:
        super().__init__(cluster, secret)
        self._other = b""

    def feed(self, data: bytes) -> bytes | tuple[Request, bytes] | None:
        """Read bytes of the sender. Return the challenge to send, or the request and the bytes that follow it, or None
        if more bytes are needed. Raises HandshakeError. The caller limits the time.
        """
        self._data += data
        if not self._other:
            return self._hello()
        if len(self._data) < _LENGTH:
            return None
        size = int.from_bytes(self._data[:_LENGTH], "big")
        if size > MAX_REQUEST:
            raise HandshakeError(f"a request of {size} bytes")
        end = _LENGTH + size
        if len(self._data) < end + _PROOF:
            return None
        fields = self._data[_LENGTH:end]
        proof = self._proof(b"sender", self._other, self._own, fields)
        if not hmac.compare_digest(self._data[end : end + _PROOF], proof):
            raise HandshakeError("does not know the secret of this cluster")
        rest, self._data = self._data[end + _PROOF :], b""
        return decode_request(fields), rest

    def _hello(self) -> bytes | None:
        start = self._data[: len(_MAGIC)]
        if start != _MAGIC[: len(start)]:
            raise HandshakeError("is not a node of a cluster")
        if len(self._data) < HELLO:
            return None
        version = self._data[len(_MAGIC)]
        if version != VERSION:
            raise HandshakeError(f"speaks version {version} of the relay protocol")
        if len(self._data) > HELLO:
            raise HandshakeError("does not wait for the challenge")
        self._other = self._data[len(_MAGIC) + 1 :]
        self._data = b""
        challenge = bytes((VERSION,)) + self._own
        return challenge + self._proof(b"receiver", self._other, self._own)


def encode_reply(reply: Reply) -> bytes:
    """Return the bytes of a reply. The reason is cut to 255 bytes."""
    reason = reply.reason.encode()[:255]
    return bytes((1 if reason else 0, len(reason))) + reason


def encode_request(request: Request) -> bytes:
    """Return the fields of a request. Raises HandshakeError if they are larger than `MAX_REQUEST`."""
    peer = request.peer
    found = peer.certificate
    certificate = None
    if found is not None:
        certificate = [found.common_name, found.subject, list(found.sans), found.fingerprint]
    address = [peer.host, peer.port, peer.transport, certificate]
    fields: bytes = packb([*request[:5], address])
    if len(fields) > MAX_REQUEST:
        raise HandshakeError("the client's certificate is too large to be relayed")
    return fields


def decode_request(fields: bytes) -> Request:
    """Return the request with these fields. Raises HandshakeError if they are malformed."""
    try:
        found: Any = unpackb(fields)
        node, lane, listener, mount_point, identity, (host, port, transport, certificate) = found
        if certificate is not None:
            name, subject, sans, fingerprint = certificate
            certificate = Certificate(name, subject, tuple(sans), fingerprint)
            _texts(name, subject, fingerprint, *sans)
        _texts(node, lane, listener, mount_point, identity, host, transport)
        if not isinstance(port, int):
            raise TypeError(port)
    except Exception as error:  # msgpack raises many types
        raise HandshakeError("a malformed request") from error
    peer = Peer(host, port, transport, certificate)
    return Request(node, lane, listener, mount_point, identity, peer)


def _texts(*values: object) -> None:
    for value in values:
        if not isinstance(value, str):
            raise TypeError(value)
