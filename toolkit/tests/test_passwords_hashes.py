"""Test how hashes of every kind are recognized, limited, verified and created, and that no hash is ever shown."""

import hashlib
from base64 import b64encode

import pytest
from hookmq_toolkit.passwords.hashes import (
    MAX_PASSWORD,
    Argon2,
    Format,
    Hash,
    make,
    outdated,
    read,
    to_yaml,
    verify,
)
from hypothesis import example, given
from hypothesis import strategies as st
from passlib import hash as passlib  # type: ignore[import-untyped]

CHEAP = Argon2(1 << 20, 1, 1)
PASSWORD = b"correct horse"
MADE = {
    "argon2id": passlib.argon2.using(memory_cost=64, rounds=1, parallelism=1).hash(PASSWORD),
    "argon2": passlib.argon2.using(type="I", memory_cost=64, rounds=1, parallelism=1).hash(
        PASSWORD
    ),
    "bcrypt": passlib.bcrypt.using(rounds=4).hash(PASSWORD),
    "pbkdf2-sha1": passlib.pbkdf2_sha1.using(rounds=7).hash(PASSWORD),
    "pbkdf2-sha256": passlib.pbkdf2_sha256.using(rounds=7).hash(PASSWORD),
    "pbkdf2-sha512": passlib.pbkdf2_sha512.using(rounds=7).hash(PASSWORD),
    "scrypt": passlib.scrypt.using(rounds=4).hash(PASSWORD),
    "sha512-crypt": passlib.sha512_crypt.using(rounds=1000).hash(PASSWORD),
    "salted-sha512": passlib.ldap_salted_sha512.hash(PASSWORD),
}
# Hashes made by other programs: openssl passwd, crypt_blowfish, mosquitto_passwd 2.0.11.
FOREIGN: list[tuple[Format, str, bytes, str]] = [
    ("yaml", "sha512-crypt", b"Hello world!",
     "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1"),
    ("yaml", "bcrypt", b"U*U", "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"),
    ("mosquitto", "mosquitto-pbkdf2", b"secret",
     "$7$101$TmYT+Q7sb5hxfltS$vqpNBjlHWe6p3pffOesT3dyO9WehVqVDkuduFdx2u7od1/yojVDLo3kMOWzn5iT8dMnpiieN5eBReI/oXGXn/A=="),
    ("mosquitto", "mosquitto-sha512", b"hunter2",
     "$6$Eimbgna5wUEVda2c$Y6QBkbVVxTUbPQkllCIEGyNMg4YR2s4uoqJESfb3zbU5O+qCdYmi45wcYWErCnFM9QK6za09YCOXXAfnUpTd2A=="),
]  # fmt: skip


@pytest.mark.parametrize("scheme", MADE)
def test_every_scheme(scheme: str) -> None:
    hash = read(MADE[scheme], "yaml")
    assert hash.scheme == scheme
    assert verify(hash, PASSWORD) is True
    for wrong in (b"", PASSWORD + b"x", PASSWORD[:-1], PASSWORD.upper(), b"\0", b"\0" + PASSWORD):
        assert verify(hash, wrong) is False
    # HMAC pads its key with zeros, so it cannot distinguish this password from the right one.
    assert verify(hash, PASSWORD + b"\0") is (scheme.startswith("pbkdf2") or scheme == "scrypt")


@pytest.mark.parametrize(("format", "scheme", "password", "text"), FOREIGN)
def test_hashes_of_other_programs(format: Format, scheme: str, password: bytes, text: str) -> None:
    hash = read(text, format)
    assert hash.scheme == scheme
    assert verify(hash, password)
    assert not verify(hash, password + b"x")


@pytest.mark.parametrize("scheme", MADE)
@pytest.mark.parametrize(
    "password", [b"\xff\xfe\xfd", b"a\0b", b"x" * 72, b"x" * 73, b"y" * MAX_PASSWORD]
)
def test_any_bytes_are_a_password(scheme: str, password: bytes) -> None:
    """Any bytes can be checked as a password. Raising an exception would take a different time than a wrong password."""
    assert verify(read(MADE[scheme], "yaml"), password) is False


@pytest.mark.parametrize("scheme", ["bcrypt", "sha512-crypt"])
def test_nul_is_no_other_letter(scheme: str) -> None:
    kind = {
        "bcrypt": passlib.bcrypt.using(rounds=4),
        "sha512-crypt": passlib.sha512_crypt.using(rounds=1000),
    }
    hash = read(kind[scheme].hash(b"a0b"), "yaml")
    assert verify(hash, b"a0b")
    assert not verify(hash, b"a\0b")


def test_bcrypt_looks_at_72_bytes() -> None:
    hash = read(passlib.bcrypt.using(rounds=4).hash(b"x" * 72), "yaml")
    assert verify(hash, b"x" * 100)
    assert not verify(hash, b"x" * 71)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("$argon2id$v=19$m=1048576,t=3,p=4$9r6X8v6fE4LwnvPeu9f6Pw$" + "A" * 43, "m=1048576"),
        ("$argon2id$v=19$m=262144,t=16,p=4$9r6X8v6fE4LwnvPeu9f6Pw$" + "A" * 43, "cost is too high"),
        (
            "$argon2id$v=19$m=65536,t=999999999,p=4$9r6X8v6fE4LwnvPeu9f6Pw$" + "A" * 43,
            "t=999999999",
        ),
        ("$argon2id$v=19$m=65536,t=0,p=4$9r6X8v6fE4LwnvPeu9f6Pw$" + "A" * 43, "t=0"),
        ("$argon2id$v=19$m=65536,t=3,p=1000$9r6X8v6fE4LwnvPeu9f6Pw$" + "A" * 43, "p=1000"),
        ("$argon2id$v=19$m=8,t=3,p=4$9r6X8v6fE4LwnvPeu9f6Pw$" + "A" * 43, "m=8"),
        ("$2b$31$" + "a" * 53, "cost 31"),
        ("$2b$03$" + "a" * 53, "cost 3"),
        ("$pbkdf2-sha512$100000000$aaaa$" + "a" * 86, "100000000 iterations"),
        ("$pbkdf2$0$aaaa$" + "a" * 27, "0 iterations"),
        ("$scrypt$ln=30,r=8,p=1$aaaa$" + "a" * 43, "ln=30"),
        ("$scrypt$ln=18,r=8,p=16$aaaa$" + "a" * 43, "cost is too high"),
        ("$scrypt$ln=10,r=999999999,p=1$aaaa$" + "a" * 43, "cost is too high"),
        ("$6$rounds=999999999$salt$" + "a" * 86, "999999999 rounds"),
        ("$6$rounds=1$salt$" + "a" * 86, "1 rounds"),
        ("$5$rounds=1000$salt$" + "a" * 43, "unknown or incomplete hash"),
        ("{SSHA512}" + b64encode(b"x" * 40).decode(), "64 bytes"),
        ("{SSHA512}" + "a" * 5, "malformed"),
        ("{SSHA}abcd", "unknown or incomplete hash"),
        ("hunter2", "not a hash"),
        ("", "not a hash"),
        ("$argon2id$v=19$m=64,t=1,p=1$9r6X8v6fE4LwnvPeu9f6Pw", "unknown or incomplete hash"),
        ("$2b$04$" + "a" * 54, "unknown or incomplete hash"),
        ("$" * 600, "longer than 512"),
        (FOREIGN[2][3], "mosquitto hash; .* hookmq passwd import"),
        (FOREIGN[3][3], "mosquitto hash; .* hookmq passwd import"),
    ],
)
def test_refused_in_yaml(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why.replace("+", r"\+")) as error:
        read(text, "yaml")
    assert len(text) < 10 or text not in str(error.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (MADE["sha512-crypt"], "this is a sha512-crypt hash"),
        (MADE["bcrypt"], "this is a bcrypt hash"),
        (MADE["pbkdf2-sha512"], "this is a pbkdf2-sha512 hash"),
        ("$7$999999999$" + FOREIGN[2][3].split("$", 3)[3], "999999999 iterations"),
        ("$7$0$" + FOREIGN[2][3].split("$", 3)[3], "0 iterations"),
        (FOREIGN[2][3][:-1], "unknown or incomplete hash"),
        ("$6$a$" + "A" * 86 + "==", "malformed"),
        ("plain", "not a hash"),
    ],
    ids=range(8),  # a hash has a salt of its own in each process
)
def test_refused_in_a_file_of_mosquitto(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read(text, "mosquitto")


def test_mosquitto_2_1_has_argon2id() -> None:
    assert verify(read(MADE["argon2id"], "mosquitto"), PASSWORD)


@pytest.mark.parametrize("format", ["yaml", "mosquitto"])
def test_new_hashes(format: Format) -> None:
    made = make(PASSWORD, format, CHEAP)
    hash = read(made, format)
    assert hash.scheme == ("argon2id" if format == "yaml" else "mosquitto-pbkdf2")
    assert verify(hash, PASSWORD)
    assert make(PASSWORD, format, CHEAP) != made
    assert not outdated(hash, format, CHEAP)


def test_the_default_is_what_rfc_9106_recommends() -> None:
    hash = read(make(b"x", "yaml", Argon2()), "yaml")
    assert (hash.scheme, hash.cost) == ("argon2id", (65536, 3, 4))


def test_hashes_below_the_configured_cost_are_outdated() -> None:
    for scheme, text in MADE.items():
        assert outdated(read(text, "yaml"), "yaml", CHEAP), scheme
    assert outdated(read(make(b"x", "yaml", CHEAP), "yaml"), "yaml", Argon2(2 << 20, 1, 1))
    assert outdated(read(make(b"x", "yaml", CHEAP), "yaml"), "yaml", Argon2(1 << 20, 2, 1))
    for _, _, _, text in FOREIGN[2:]:
        assert outdated(read(text, "mosquitto"), "mosquitto", CHEAP)
    assert not outdated(read(MADE["argon2id"], "mosquitto"), "mosquitto", CHEAP)


def test_new_hashes_are_bounded() -> None:
    with pytest.raises(ValueError, match="memory times passes"):
        Argon2(256 << 20, 16)


@given(
    password=st.binary(max_size=80),
    other=st.binary(max_size=80),
    salt=st.binary(min_size=1, max_size=64),
    iterations=st.integers(1, 50),
    pbkdf2=st.booleans(),
)
def test_import_changes_the_writing_only(
    password: bytes, other: bytes, salt: bytes, iterations: int, pbkdf2: bool
) -> None:
    if pbkdf2:
        digest = hashlib.pbkdf2_hmac("sha512", password, salt, iterations, 64)
        head = f"$7${iterations}$"
    else:
        digest = hashlib.sha512(password + salt).digest()
        head = "$6$"
    old = read(f"{head}{b64encode(salt).decode()}${b64encode(digest).decode()}", "mosquitto")
    new = read(to_yaml(old), "yaml")
    assert verify(old, password)
    assert verify(new, password)
    assert (
        verify(old, other)
        == verify(new, other)
        == (other == password or _same(password, other, salt, pbkdf2))
    )


def _same(password: bytes, other: bytes, salt: bytes, pbkdf2: bool) -> bool:
    """Return whether two passwords have the same hash.

    HMAC pads its key with zeros, and for SHA-512 the concatenations of password and salt may be equal.
    """
    if pbkdf2:
        return password.rstrip(b"\0") == other.rstrip(b"\0")
    return password + salt == other + salt


_PARTS = st.sampled_from(
    ["$", "$6$", "$7$", "$2b$", "$argon2id$v=19$", "m=65536,t=3,p=4", "rounds=5000$", "=", "{SSHA512}", "a" * 22,
     "a" * 43,      "12", "A" * 86, "\n", " ", "é", ",", "\0", "99999999999999999999"]
)  # fmt: skip


@given(
    st.lists(_PARTS, max_size=8).map("".join) | st.text(max_size=200),
    st.sampled_from(["yaml", "mosquitto"]),
)
@example("$pbkdf2-sha512$\u0661$aaaa$" + "a" * 86, "yaml")
def test_anything_else_is_a_value_error_that_tells_nothing(text: str, format: Format) -> None:
    try:
        hash = read(text, format)
    except ValueError as error:
        told = str(error)
    else:
        told = repr(hash)
        assert isinstance(hash, Hash)
        assert hash.text == text
    assert len(text) < 12 or text not in told
