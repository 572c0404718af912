"""Test that receivers accept only valid requests, and handle each event once."""

import gzip
import json
import threading
import time
from typing import Any

import pytest
from hookmq_webhook_receiver import (
    Busy,
    Receiver,
    RecentIds,
    VerificationError,
    new_private_key,
    new_secret,
    public_key,
    sign,
    status_of,
)
from hookmq_webhook_receiver.keys import key_of, private_key_of

SECRET = new_secret()


def event(number: int, **more: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0", "id": f"e-{number}", "source": "urn:x", "type": "hookmq.t", "epoch": "e",
        "sequence": f"{number:020d}", "time": "2026-01-01T00:00:00Z", **more,
    }  # fmt: skip


def request(
    *events: dict[str, Any], secret: str = SECRET, age: int = 0
) -> tuple[dict[str, str], bytes]:
    body = json.dumps(list(events) if len(events) != 1 else events[0]).encode()
    key = private_key_of(secret) if secret.startswith("whsk_") else key_of(secret)
    return sign("e-1", int(time.time()) - age, body, [key]), body


def handled(receiver: Receiver, headers: dict[str, str], body: bytes) -> list[str]:
    found = []
    for one in receiver.read(headers, body):
        with receiver.once(one) as new:
            if new:
                found.append(one.id)
    return found


def test_each_event_is_handled_once_also_in_another_batch() -> None:
    receiver = Receiver(SECRET)
    assert handled(receiver, *request(event(1))) == ["e-1"]
    assert handled(receiver, *request(event(1), event(2), event(2))) == ["e-2"]
    assert handled(receiver, *request(event(2), event(3))) == ["e-3"]
    # The same id from another source is a different event.
    assert handled(receiver, *request(event(3, source="urn:y"))) == ["e-3"]


def test_attributes() -> None:
    more = {"dataschema": "urn:s", "partitionkey": "pump-7", "subject": "a/b", "data": {"x": 1}}
    [got] = Receiver(SECRET).read(*request(event(1, **more)))
    assert (got.dataschema, got.partitionkey, got.subject, got.data) == (
        "urn:s",
        "pump-7",
        "a/b",
        {"x": 1},
    )
    assert got.extra == {}


def test_secrets_and_public_keys_are_believed_and_nothing_else() -> None:
    private = new_private_key()
    receiver = Receiver([SECRET, public_key(private)])
    assert handled(receiver, *request(event(1))) == ["e-1"]
    assert handled(receiver, *request(event(2), secret=private)) == ["e-2"]
    headers, body = request(event(3))
    for wrong_headers, wrong_body in (
        request(event(3), secret=new_secret()),
        request(event(3), secret=new_private_key()),
        request(event(3), age=301),
        request(event(3), age=-301),
        (headers, body + b" "),
        ({}, body),
    ):
        with pytest.raises(VerificationError) as raised:
            receiver.read(wrong_headers, wrong_body)
        assert status_of(raised.value) == 401
    assert handled(Receiver(SECRET, tolerance=1000), *request(event(3), age=301)) == ["e-3"]
    with pytest.raises(ValueError, match="no secrets"):
        Receiver([])


def test_bodies_are_bounded() -> None:
    receiver = Receiver(SECRET, max_body=1000)
    headers, body = request(event(1, data="x" * 1000))
    with pytest.raises(ValueError, match="more than 1000 bytes") as raised:
        receiver.read(headers, body)
    assert status_of(raised.value) == 413
    packed = gzip.compress(body)
    assert len(packed) < 1000
    signed = sign("e-1", int(time.time()), packed, [key_of(SECRET)])
    with pytest.raises(ValueError, match="more than 1000 bytes") as raised:
        receiver.read({**signed, "Content-Encoding": "gzip"}, packed)
    assert status_of(raised.value) == 400
    assert handled(Receiver(SECRET), {**signed, "content-encoding": "gzip"}, packed) == ["e-1"]


def test_an_event_whose_handling_fails_is_new_again() -> None:
    receiver = Receiver(SECRET)
    [one] = receiver.read(*request(event(1)))

    def fail() -> None:
        with receiver.once(one) as new:
            assert new
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fail()
    with receiver.once(one) as new:
        assert new
    with receiver.once(one) as new:
        assert not new


def test_an_event_that_is_being_handled_is_busy() -> None:
    receiver = Receiver(SECRET)
    [one] = receiver.read(*request(event(1)))
    found: list[Exception] = []

    def again() -> None:
        try:
            with receiver.once(one):
                pass
        except Busy as error:
            found.append(error)

    with receiver.once(one) as new:
        assert new
        thread = threading.Thread(target=again)
        thread.start()
        thread.join()
    [error] = found
    assert status_of(error) == 503
    assert status_of(RuntimeError()) is None


def test_ids_in_memory_are_bounded() -> None:
    ids = RecentIds(limit=2)
    for id in ("a", "b", "a", "c"):
        ids.add(id)
    assert ["a" in ids, "b" in ids, "c" in ids, len(ids)] == [True, False, True, 2]


def test_ids_in_a_database() -> None:
    stored: set[str] = set()
    assert handled(Receiver(SECRET, seen=stored), *request(event(1))) == ["e-1"]
    assert stored == {"urn:x e-1"}
    assert handled(Receiver(SECRET, seen=stored), *request(event(1))) == []
