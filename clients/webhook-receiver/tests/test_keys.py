"""Test ed25519 keys and signatures: signatures made by OpenSSL, key rotation, and input that must be refused."""

import base64
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hookmq_webhook_receiver import (
    VerificationError,
    new_private_key,
    new_secret,
    public_key,
    verify,
)
from hookmq_webhook_receiver.keys import key_of, parse_key, private_key_of, public_key_of
from hookmq_webhook_receiver.signature import SIGNATURE, sign

# RFC 8032, 7.1, test 1.
SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
POINT = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
PRIVATE = "whsk_" + base64.b64encode(SEED + POINT).decode()
PUBLIC = "whpk_" + base64.b64encode(POINT).decode()
NOW = 1614265330
BODY = b'{"a": 1}'


def signed(*keys: str, body: bytes = BODY) -> dict[str, str]:
    parsed = [private_key_of(one) if one.startswith("whsk_") else key_of(one) for one in keys]
    return sign("q-1", NOW, body, parsed)


def test_the_public_key_of_a_private_key() -> None:
    assert public_key(PRIVATE) == PUBLIC
    assert (
        public_key("whsk_" + base64.b64encode(SEED).decode()) == PUBLIC
    )  # without the second half
    made = new_private_key()
    assert made != new_private_key()
    assert len(base64.b64decode(made.removeprefix("whsk_"))) == 64
    verify(signed(made), BODY, public_key(made), now=NOW)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_accepts_a_signature(tmp_path: Path) -> None:
    version, _, text = signed(PRIVATE)[SIGNATURE].partition(",")
    assert version == "v1a"
    der = bytes.fromhex("302a300506032b6570032100") + POINT  # RFC 8410: SubjectPublicKeyInfo
    (tmp_path / "key").write_bytes(der)
    (tmp_path / "signature").write_bytes(base64.b64decode(text))
    (tmp_path / "content").write_bytes(b"q-1.%d.%b" % (NOW, BODY))
    command = "openssl pkeyutl -verify -pubin -keyform DER -inkey key -rawin -in content -sigfile signature"
    done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, check=False)
    assert b"Signature Verified Successfully" in done.stdout, done.stderr


def test_one_valid_signature_of_any_kind_is_enough() -> None:
    secret, other = new_secret(), new_private_key()
    both = signed(secret, PRIVATE, other)
    versions = [one.partition(",")[0] for one in both[SIGNATURE].split(" ")]
    assert versions == ["v1", "v1a", "v1a"]
    for known in (
        secret,
        PUBLIC,
        public_key(other),
        [new_secret(), PUBLIC],
        [public_key(new_private_key()), secret],
    ):
        verify(both, BODY, known, now=NOW)
    for unknown in (
        new_secret(),
        public_key(new_private_key()),
        [new_secret(), public_key(new_private_key())],
    ):
        with pytest.raises(VerificationError, match="another secret, or for another body"):
            verify(both, BODY, unknown, now=NOW)
    with pytest.raises(VerificationError, match="for another body"):
        verify(both, BODY + b" ", PUBLIC, now=NOW)


def test_a_signature_of_one_kind_does_not_count_as_the_other() -> None:
    """A public key must not verify ``v1`` signatures. Otherwise, anyone who knows the key could forge them by using its
    bytes as a secret.
    """
    forged = sign("q-1", NOW, BODY, [POINT])
    with pytest.raises(VerificationError, match="no signature of version v1a"):
        verify(forged, BODY, PUBLIC, now=NOW)
    renamed = {**forged, SIGNATURE: "v1a" + forged[SIGNATURE][2:]}
    with pytest.raises(VerificationError, match="another secret"):
        verify(renamed, BODY, PUBLIC, now=NOW)
    with pytest.raises(VerificationError, match=r"no signature of version v1$"):
        verify(signed(PRIVATE), BODY, new_secret(), now=NOW)


@pytest.mark.parametrize("text", ["", "!", "\u00e4", "AAAA", base64.b64encode(bytes(64)).decode()])
def test_invalid_signatures_are_refused(text: str) -> None:
    headers = {**signed(PRIVATE), SIGNATURE: f"v1a,{text}"}
    with pytest.raises(VerificationError, match="another secret"):
        verify(headers, BODY, PUBLIC, now=NOW)


def test_too_many_signatures_are_refused() -> None:
    headers = {**signed(PRIVATE), SIGNATURE: "v1a,AAAA " * 33}
    with pytest.raises(VerificationError, match="more than 32"):
        verify(headers, BODY, PUBLIC, now=NOW)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("whsk_", "0 bytes"),
        ("whsk_!!", "expected a private key of whsk_"),
        ("whsk_" + base64.b64encode(SEED + SEED).decode(), "do not belong together"),
        ("whsk_" + base64.b64encode(SEED + POINT[:5]).decode(), "37 bytes"),
        ("whsk_\u00e4", "expected a private key"),
    ],
)
def test_invalid_private_keys_are_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        private_key_of(text)
    assert base64.b64encode(SEED).decode()[:20] not in str(raised.value)


def test_invalid_public_keys_are_refused() -> None:
    for text in ("whpk_", "whpk_AAAA", "whpk_!"):
        with pytest.raises(ValueError, match="public key"):
            public_key_of(text)
    with pytest.raises(ValueError, match="not the private key") as raised:
        parse_key(PRIVATE)
    assert PRIVATE[5:] not in str(raised.value)


def test_without_cryptography_the_error_says_what_to_install() -> None:
    code = f"""
import sys
sys.modules["cryptography"] = None
from hookmq_webhook_receiver import Receiver, new_private_key, new_secret
Receiver(new_secret())
for use in (lambda: Receiver({PUBLIC!r}), new_private_key):
    try:
        use()
    except ValueError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("install hookmq-webhook-receiver[asymmetric]") == 2
