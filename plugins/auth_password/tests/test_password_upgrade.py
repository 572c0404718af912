"""Weak hashes are replaced by strong ones when their users connect."""

import os
from pathlib import Path
from typing import Any

import pytest
from hookmq_auth_password.book import New, load, put
from hookmq_toolkit.passwords.hashes import MOSQUITTO_ITERATIONS, verify
from passlib import hash as passlib  # type: ignore[import-untyped]
from passwords import MOSQUITTO, Make, Verified, of

WEAK = passlib.pbkdf2_sha256.using(rounds=3).hash("secret")
TEXT = f"# head\nversion: 1\nusers:\n  alice:  # boss\n    hash: {WEAK}  # old\n  bob: {{hash: '{WEAK}'}}\n"


@pytest.fixture
def weak(file: Path) -> Path:
    file.write_text(TEXT)
    return file


def schemes(file: Path, format: Any = "yaml") -> dict[str, str]:
    return {u.name: u.hash.scheme for u in load(file, format).users if u.hash is not None}


def test_a_login_makes_it_strong(broker: Make, weak: Path, verified: Verified) -> None:
    harness = broker(upgrade=True, disconnect="changed")
    client = harness.connect("c", username="alice", password=b"secret")
    assert weak.read_text() == TEXT, "it is written at the next look"
    harness.advance(2)
    assert schemes(weak) == {"alice": "argon2id", "bob": "pbkdf2-sha256"}
    text = weak.read_text()
    assert [line for line in text.splitlines() if "alice" not in line and "hash" not in line] == [
        "# head", "version: 1", "users:",
    ]  # fmt: skip
    assert "# boss" in text
    assert "# old" in text
    assert weak.stat().st_mode & 0o777 == 0o600
    [alice] = [user for user in load(weak, "yaml").users if user.name == "alice"]
    assert alice.hash is not None
    assert verify(alice.hash, b"secret")
    harness.advance(20)
    client.ping()
    plugin = of(harness)
    assert plugin.counts.upgrades == {"ok": 1, "failed": 0}
    assert plugin.counts.reloads == {"ok": 0, "failed": 0}, "it knows what it wrote"
    put(weak, "yaml", [New("bob", WEAK.replace("$3$", "$4$"))])
    harness.advance(6)
    assert plugin.counts.reloads == {"ok": 1, "failed": 0}
    client.ping()
    harness.connect("d", username="alice", password=b"secret")
    harness.connect("d", username="alice", password=b"wrong", expect=0x86)
    harness.advance(10)
    assert plugin.counts.upgrades["ok"] == 1
    assert verified.calls[-1][0] == alice.hash


def test_it_is_not_the_default(broker: Make, weak: Path) -> None:
    harness = broker()
    harness.connect("c", username="alice", password=b"secret")
    harness.advance(10)
    assert weak.read_text() == TEXT


def test_a_wrong_password_makes_nothing(broker: Make, weak: Path) -> None:
    harness = broker(upgrade=True)
    harness.connect("c", username="alice", password=b"wrong", expect=0x86)
    harness.advance(10)
    assert weak.read_text() == TEXT


def test_many_are_written_at_once(broker: Make, weak: Path) -> None:
    harness = broker(upgrade=True)
    inode = weak.stat().st_ino
    for name in ("alice", "bob"):
        harness.connect(name, username=name, password=b"secret")
        harness.advance(0.5)
    assert weak.stat().st_ino == inode
    harness.advance(2)
    assert set(schemes(weak).values()) == {"argon2id"}
    assert len(harness.logged("auth_password.upgraded")) == 1


def test_an_upgrade_keeps_changes_made_in_the_meantime(broker: Make, weak: Path) -> None:
    harness = broker(upgrade=True)
    harness.connect("a", username="alice", password=b"secret")
    harness.connect("b", username="bob", password=b"secret")
    put(
        weak, "yaml", [New("alice", WEAK.replace("sha256", "sha256"), ("new",)), New("carol", WEAK)]
    )
    other = passlib.pbkdf2_sha256.using(rounds=4).hash("other")
    put(weak, "yaml", [New("bob", other)])
    harness.advance(20)
    assert schemes(weak) == {"alice": "argon2id", "bob": "pbkdf2-sha256", "carol": "pbkdf2-sha256"}
    harness.connect("b", username="bob", password=b"other")
    harness.connect("c", username="carol", password=b"secret")
    assert of(harness).counts.reloads["ok"] >= 1, "what others wrote is read"


def test_a_folder_that_cannot_be_written_is_told_once(
    broker: Make, weak: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = broker(upgrade=True)

    def refuse(*args: Any, **options: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hookmq_auth_password.files.tempfile.mkstemp", refuse)
    for name in ("alice", "bob", "alice"):
        harness.connect(name, username=name, password=b"secret")
        harness.advance(4)
    assert len(harness.logged("auth_password.upgrade_failed")) == 1
    assert of(harness).counts.upgrades == {"ok": 0, "failed": 1}
    monkeypatch.undo()
    os.utime(weak, (1, 1))
    harness.advance(6)
    of(harness).cache.clear()
    harness.connect("alice", username="alice", password=b"secret")
    harness.advance(4)
    assert schemes(weak)["alice"] == "argon2id", "a file that changed is tried again"


def test_nothing_is_lost_at_the_end(broker: Make, weak: Path) -> None:
    harness = broker(upgrade=True)
    harness.connect("c", username="alice", password=b"secret")
    harness.close()
    assert schemes(weak)["alice"] == "argon2id"


def test_in_a_file_of_mosquitto_it_is_what_mosquitto_reads(broker: Make, file: Path) -> None:
    file.write_text(f"# head\n{MOSQUITTO}")
    harness = broker(upgrade=True, format="mosquitto")
    harness.connect("a", username="alice", password=b"secret")
    harness.connect("b", username="bob", password=b"hunter2")
    harness.advance(3)
    assert schemes(file, "mosquitto") == {"alice": "mosquitto-pbkdf2", "bob": "mosquitto-pbkdf2"}
    assert file.read_text().startswith(f"# head\nalice:$7${MOSQUITTO_ITERATIONS}$")
    harness.connect("a", username="alice", password=b"secret")
