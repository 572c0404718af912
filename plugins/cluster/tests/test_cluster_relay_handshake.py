"""Test the handshake between two nodes before one relays a connection to the other."""

import pytest
from hookmq.plugin import Certificate, Peer
from hookmq_cluster.relay_handshake import (
    CHALLENGE,
    HELLO,
    MAX_REQUEST,
    HandshakeError,
    ReceiverHandshake,
    Reply,
    Request,
    SenderHandshake,
    encode_reply,
)

CERTIFICATE = Certificate("device", "CN=device", ("a", "b"), "ab" * 32)
REQUEST = Request("a", "b", "front", "m/", "san", Peer("2001:db8::1", 4711, "wss", CERTIFICATE))


def challenged(
    sender: SenderHandshake, receiver: ReceiverHandshake, hello: bytes = b""
) -> ReceiverHandshake:
    """Complete both sides' nonces."""
    challenge = receiver.feed(hello or sender.hello())
    assert isinstance(challenge, bytes)
    assert len(challenge) == CHALLENGE
    assert sender.challenge(challenge)
    return receiver


def pair(
    sender: str = "secret", receiver: str = "secret", cluster: str = "c"
) -> tuple[SenderHandshake, ReceiverHandshake]:
    return SenderHandshake("c", sender), ReceiverHandshake(cluster, receiver)


@pytest.mark.parametrize("peer", [REQUEST.peer, Peer("192.0.2.1"), Peer("unix", 0, "unix", Certificate())])  # fmt: skip
def test_a_request_arrives(peer: Peer) -> None:
    sender, receiver = pair()
    challenged(sender, receiver)
    request = REQUEST._replace(peer=peer)
    assert receiver.feed(sender.request(request) + b"mqtt") == (request, b"mqtt")
    assert sender.reply(encode_reply(Reply("")) + b"mqtt") == (Reply(""), b"mqtt")


def test_bytes_may_arrive_one_by_one() -> None:
    sender, receiver = pair()
    found = [receiver.feed(bytes((byte,))) for byte in sender.hello()]
    assert not any(found[:-1])
    assert isinstance(found[-1], bytes)
    told = [sender.challenge(bytes((byte,))) for byte in found[-1]]
    assert told == [False] * (CHALLENGE - 1) + [True]
    asked = [receiver.feed(bytes((byte,))) for byte in sender.request(REQUEST)]
    assert asked[-1] == (REQUEST, b"")
    assert not any(asked[:-1])
    answers = [sender.reply(bytes((byte,))) for byte in encode_reply(Reply("no"))]
    assert answers == [None, None, None, (Reply("no"), b"")]


def test_a_receiver_without_the_secret_gets_no_request() -> None:
    sender, receiver = pair(receiver="other")
    challenge = receiver.feed(sender.hello())
    assert isinstance(challenge, bytes)
    with pytest.raises(HandshakeError, match="does not know the secret"):
        sender.challenge(challenge)


@pytest.mark.parametrize("at", [0, 2, 40, -1])
def test_a_changed_request_is_refused(at: int) -> None:
    sender, receiver = pair()
    challenged(sender, receiver)
    request = bytearray(sender.request(REQUEST))
    if at == 0:  # the length
        request[1] -= 1
    else:
        request[at] ^= 1
    with pytest.raises(HandshakeError, match="does not know the secret"):
        receiver.feed(bytes(request))


def test_a_sender_without_the_secret_is_refused() -> None:
    honest, thief = pair()[0], pair("guessed")[0]
    receiver = challenged(honest, pair()[1])
    thief._own, thief._other = honest._own, honest._other
    with pytest.raises(HandshakeError, match="does not know the secret"):
        receiver.feed(thief.request(REQUEST))


def test_another_cluster_with_the_same_secret_is_refused() -> None:
    sender, receiver = pair(cluster="other")
    challenge = receiver.feed(sender.hello())
    assert isinstance(challenge, bytes)
    with pytest.raises(HandshakeError):
        sender.challenge(challenge)


def test_a_recorded_handshake_is_refused() -> None:
    sender, receiver = pair()
    hello = sender.hello()
    challenged(sender, receiver, hello)
    recorded = sender.request(REQUEST)
    receiver.feed(recorded)
    again = pair()[1]
    assert again.feed(hello)
    with pytest.raises(HandshakeError, match="does not know the secret"):
        again.feed(recorded)


def test_a_recorded_challenge_is_refused() -> None:
    first, receiver = pair()
    challenge = receiver.feed(first.hello())
    assert isinstance(challenge, bytes)
    with pytest.raises(HandshakeError):
        pair()[0].challenge(challenge)


def test_a_challenge_is_no_request() -> None:
    sender, receiver = pair()
    challenge = receiver.feed(sender.hello())
    assert isinstance(challenge, bytes)
    with pytest.raises(HandshakeError):
        receiver.feed(challenge + bytes(MAX_REQUEST))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1", "not a node"),
        (b"\x10\x0c\x00\x04MQTT", "not a node"),
        (b"HMQX", "not a node"),
        (b"HMQR\x02" + bytes(32), "version 2"),
        (b"HMQR\x01" + bytes(33), "does not wait"),
    ],
)
def test_strangers_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(HandshakeError, match=reason):
        ReceiverHandshake("c", "secret").feed(data)


def test_a_large_request_is_refused_before_it_arrives() -> None:
    receiver = ReceiverHandshake("c", "secret")
    receiver.feed(b"HMQR\x01" + bytes(HELLO - 5))
    with pytest.raises(HandshakeError, match="16385 bytes"):
        receiver.feed((MAX_REQUEST + 1).to_bytes(2, "big"))


def test_a_large_certificate_is_not_sent() -> None:
    sender, receiver = pair()
    challenged(sender, receiver)
    large = Peer("h", 1, "tls", Certificate(sans=("x" * 1000,) * 17))
    with pytest.raises(HandshakeError, match="too large"):
        sender.request(REQUEST._replace(peer=large))


def test_a_receiver_of_another_version_is_refused() -> None:
    with pytest.raises(HandshakeError, match="version 9"):
        pair()[0].challenge(b"\x09")


@pytest.mark.parametrize(
    "fields", [b"\xc1", b"", b"\x90", b"\x96\x01\x02\x03\x04\x05\x94\xa1h\x01\xa1t\xc0", b"\xd9"]
)
def test_a_malformed_request_is_refused(fields: bytes) -> None:
    sender, receiver = pair()
    challenged(sender, receiver)
    proof = sender._proof(b"sender", sender._own, sender._other, fields)
    with pytest.raises(HandshakeError, match="malformed"):
        receiver.feed(len(fields).to_bytes(2, "big") + fields + proof)


def test_a_long_reason_is_cut() -> None:
    found = pair()[0].reply(encode_reply(Reply("é" * 200)))
    assert found is not None
    assert found[0].reason.startswith("é" * 127)
