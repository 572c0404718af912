"""Test signatures: the published example, and requests that must be refused."""

import base64
import subprocess
import sys

import pytest
from hookmq_webhook_receiver import VerificationError, new_secret, verify
from hookmq_webhook_receiver.keys import key_of
from hookmq_webhook_receiver.signature import ID, SIGNATURE, TIMESTAMP, sign
from hypothesis import given
from hypothesis import strategies as st

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(b"another secret of 32 bytes, yes!").decode()
BODY = b'{"test": 2432232314}'
NOW = 1614265330


def signed(body: bytes = BODY, *secrets: str, at: int = NOW) -> dict[str, str]:
    keys = [key_of(one) for one in secrets or (SECRET,)]
    return sign("msg_p5jXN8AQM9LWM0D4loKWxJek", at, body, keys)


def test_the_example_of_the_standard() -> None:
    # From the test vectors of the reference implementation of Standard Webhooks.
    assert signed()[SIGNATURE] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    verify(signed(), BODY, SECRET, now=NOW)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({ID: "msg_other"}, "another secret, or for another body"),
        ({ID: "a b"}, "invalid id"),
        ({ID: "msg.1"}, "invalid id"),
        ({ID: ""}, "webhook-id: missing"),
        ({TIMESTAMP: str(NOW + 1)}, "another secret"),
        ({TIMESTAMP: "1e9"}, "a number of seconds"),
        ({TIMESTAMP: "-1"}, "a number of seconds"),
        ({TIMESTAMP: "\u0661"}, "a number of seconds"),
        ({SIGNATURE: "v2,abc"}, "no signature of version v1"),
        ({SIGNATURE: "v1,"}, "another secret"),
        ({SIGNATURE: "v1,\u00e4"}, "another secret"),
        ({SIGNATURE: "v1,\udcff"}, "another secret"),
        ({SIGNATURE: "v1,a " * 33}, "more than 32"),
        ({SIGNATURE: "v1,a " * 32}, "another secret"),
        ({SIGNATURE: ""}, "webhook-signature: missing"),
    ],
)
def test_invalid_signatures_are_refused(change: dict[str, str], says: str) -> None:
    with pytest.raises(VerificationError, match=says) as raised:
        verify(signed() | change, BODY, SECRET, now=NOW)
    assert SECRET[6:] not in str(raised.value)


def test_a_body_that_begins_with_a_time_cannot_be_read_as_another_request() -> None:
    """A signed body that begins with a time cannot be replayed as another request.

    The signed text is id.time.body. An attacker who controls a body could start it with a future
    time. The request could then be replayed with the first time as the end of the id.
    """
    body = b"%d.rest" % (NOW + 3600)
    [signature] = [sign("q-1", NOW, body, [key_of(SECRET)])[SIGNATURE]]
    headers = {ID: f"q-1.{NOW}", TIMESTAMP: str(NOW + 3600), SIGNATURE: signature}
    with pytest.raises(VerificationError, match="invalid id"):
        verify(headers, b"rest", SECRET, now=NOW + 3600)


def test_a_header_that_is_missing_or_there_twice() -> None:
    for name in (ID, TIMESTAMP, SIGNATURE):
        headers = signed()
        value = headers.pop(name)
        with pytest.raises(VerificationError, match=f"{name}: missing"):
            verify(headers, BODY, SECRET, now=NOW)
        with pytest.raises(VerificationError, match="repeated"):
            verify({**headers, name: value, name.upper(): value}, BODY, SECRET, now=NOW)
        verify({**headers, name.title(): value}, BODY, SECRET, now=NOW)


@pytest.mark.parametrize(("age", "good"), [(0, True), (300, True), (301, False), (-301, False)])
def test_the_window_of_time(age: int, good: bool) -> None:
    if good:
        verify(signed(), BODY, SECRET, now=NOW + age)
        return
    with pytest.raises(VerificationError, match=r"301 s (old|ahead), more than 300 s"):
        verify(signed(), BODY, SECRET, now=NOW + age)


def test_without_now_it_is_now() -> None:
    with pytest.raises(VerificationError, match="s old"):
        verify(signed(), BODY, SECRET)


def test_while_a_secret_is_changed() -> None:
    both = signed(BODY, OTHER, SECRET)
    verify(both, BODY, SECRET, now=NOW)
    verify(both, BODY, OTHER, now=NOW)
    verify(signed(), BODY, [OTHER, SECRET], now=NOW)
    verify(signed(), BODY, (key_of(SECRET),), now=NOW)
    with pytest.raises(VerificationError):
        verify(signed(), BODY, [OTHER], now=NOW)


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "whsec_!!!!",
        "plain text",
        "whsec_c2hvcnQ=",
        SECRET + "!",
        "whsec_" + base64.b64encode(b"s" * 23).decode(),
        "ä" * 40,
    ],
)
def test_invalid_secrets_are_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="secret") as raised:
        verify(signed(), BODY, secret, now=NOW)
    assert not secret or secret not in str(raised.value)


def test_a_secret_is_long() -> None:
    assert len(key_of(new_secret())) == 32
    assert key_of("whsec_" + base64.b64encode(b"s" * 24).decode()) == b"s" * 24


def test_no_secret_at_all() -> None:
    with pytest.raises(ValueError, match="no secrets"):
        verify(signed(), BODY, [], now=NOW)


@pytest.mark.parametrize("id", ["", "a.b", "a b", "a\nb", "a" * 257])
def test_ids_that_cannot_be_signed(id: str) -> None:
    with pytest.raises(ValueError, match="invalid id"):
        sign(id, NOW, b"", [key_of(SECRET)])


@given(st.binary(), st.binary())
def test_only_the_same_body_passes(body: bytes, other: bytes) -> None:
    secret = new_secret()
    headers = signed(body, secret)
    verify(headers, body, secret, now=NOW)
    if other != body:
        with pytest.raises(VerificationError):
            verify(headers, other, secret, now=NOW)


def test_receivers_need_no_broker() -> None:
    others = "('hookmq', 'aiohttp', 'cryptography')"
    code = "import sys, hookmq_webhook_receiver; "
    code += f"sys.exit(any(m.split('.')[0] in {others} for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
