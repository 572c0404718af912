"""Test changes to the file. A valid file replaces the old one at once, an invalid one changes nothing, and removed
users are disconnected.
"""

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt_api import Connack
from hookmq.plugin import Accept, ConfigError, PluginError
from hookmq_auth_password import files
from hookmq_auth_password.book import New, delete, put
from hookmq_auth_password.plugin import AuthPasswordPlugin
from hookmq_testing import Harness, HookRecorder, MemoryClient, make_plugin, will
from hookmq_toolkit.passwords.hashes import verify as verify_password
from passwords import ALICE, BOB, USERS, Make, Verified, cheap, of


def write(file: Path, text: str) -> None:
    """Replace the file with a new one, as an editor does."""
    new = file.with_name("new")
    new.write_text(text)
    new.chmod(0o600)
    new.rename(file)


def change(harness: Harness, file: Path, text: str) -> None:
    write(file, text)
    harness.advance(6)


def test_a_user_comes_and_another_password(broker: Make, file: Path) -> None:
    harness = broker()
    harness.connect("c", username="dave", password=b"new", expect=0x86)
    put(file, "yaml", [New("dave", cheap(b"new"), ("x",)), New("bob", cheap(b"changed"))])
    harness.advance(6)
    harness.connect("c", username="dave", password=b"new")
    harness.connect("d", username="bob", password=b"hunter2", expect=0x86)
    harness.connect("d", username="bob", password=b"changed")
    [told] = harness.logged("auth_password.reloaded")
    assert told == {"plugin": "users", "users": 5, "new": 1, "changed": 1, "removed": 0}


def test_a_changed_password_is_not_found_in_the_cache(
    broker: Make, file: Path, verified: Verified
) -> None:
    harness = broker(disconnect="never", cache_time=3600.0)
    harness.connect("a", username="alice", password=b"secret")
    harness.connect("b", username="bob", password=b"hunter2")
    put(file, "yaml", [New("bob", cheap(b"changed"))])
    harness.advance(6)
    assert len(of(harness).cache) == 1
    harness.connect("b", username="bob", password=b"hunter2", expect=0x86)
    put(file, "yaml", [New("bob", BOB)])
    harness.advance(6)
    count = len(verified.calls)
    harness.connect("b", username="bob", password=b"hunter2")
    assert len(verified.calls) == count + 1, "what was right before is looked at again"
    harness.connect("a", username="alice", password=b"secret")
    assert len(verified.calls) == count + 1, "alice did not change"


def test_nothing_is_read_while_nothing_changes(
    broker: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []

    def counted(path: Path) -> files.Content:
        reads.append(path)
        return files.read(path)

    monkeypatch.setattr("hookmq_auth_password.book.read", counted)
    harness = broker()
    assert len(reads) == 1
    harness.advance(100)
    assert len(reads) == 1


def instead(file: Path) -> Path:
    file.unlink()
    return file


def test_a_user_removed_while_there_are_no_descriptors_leaves(
    broker: Make, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(path: str, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files", path)

    harness = broker()
    bob = harness.connect("b", username="bob", password=b"hunter2")
    delete(file, "yaml", "bob")
    with monkeypatch.context() as patch:
        patch.setattr("hookmq.server.files._at_once", none_left)
        harness.advance(30)
        bob.ping()
        assert not of(harness).good
    harness.advance(6)
    bob.expect_disconnect(0x87)
    harness.connect("b", username="bob", password=b"hunter2", expect=0x86)
    assert of(harness).good


BROKEN: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: file.unlink(),
    "empty": lambda file: file.write_text(""),
    "half": lambda file: file.write_text(USERS[: USERS.index("bob:") + 30]),
    "no YAML": lambda file: file.write_text(USERS + "}"),
    "no UTF-8": lambda file: file.write_bytes(USERS.encode() + b"\xff"),
    "an unknown key": lambda file: file.write_text(USERS.replace("groups", "grups", 1)),
    "a plain password": lambda file: file.write_text(USERS.replace(BOB, "hunter2")),
    "a line of mosquitto": lambda file: file.write_text("bob:$7$101$aaaa$" + "A" * 86 + "==\n"),
    "a folder": lambda file: instead(file).mkdir(),
    "something endless": lambda file: instead(file).symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_cve_2018_12550_a_broken_file_changes_nothing(broker: Make, file: Path, how: str) -> None:
    """A broken file changes nothing: the last valid file stays in force, and an error is logged.
    mosquitto treated an empty file as no restriction (CVE-2018-12550).
    """
    harness = broker(anonymous="deny")
    stays = harness.connect("stays", username="alice", password=b"secret")
    BROKEN[how](file)
    harness.advance(20)
    plugin = of(harness)
    assert not plugin.good
    assert plugin.counts.reloads["failed"] == 1, "once for each state of the file"
    [told] = harness.logged("auth_password.reload_failed")
    assert str(file) in str(told["error"])
    assert told["users"] == 4
    stays.ping()
    harness.connect("c", username="bob", password=b"hunter2")
    harness.connect("d", expect=0x87)
    harness.connect("d", username="nobody", password=b"x", expect=0x86)
    if file.is_dir() and not file.is_symlink():
        file.rmdir()
    change(harness, file, USERS.replace("bob:", "bert:"))
    assert plugin.good
    harness.connect("c", username="bert", password=b"hunter2")
    harness.connect("c", username="bob", password=b"hunter2", expect=0x86)


def test_the_file_comes_back_as_it_was(broker: Make, file: Path) -> None:
    harness = broker()
    away = file.with_name("away")
    file.rename(away)
    harness.advance(6)
    assert not of(harness).good
    away.rename(file)
    harness.advance(8)
    assert of(harness).good
    away.write_text("broken")
    file.rename(file.with_name("old"))
    away.rename(file)
    harness.advance(8)
    assert not of(harness).good
    file.with_name("old").rename(file)
    harness.advance(8)
    assert of(harness).good


def test_a_file_that_is_being_written_is_left_alone(broker: Make, file: Path) -> None:
    """A file that is still being written is not read. The script writes one line at a time. Once two checks find the
    file unchanged, it is read.
    """
    harness = broker(reload_interval=2.0)
    stays = harness.connect("b", username="bob", password=b"hunter2")
    lines = USERS.splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        file.write_text("".join(lines[:count]))
        os.utime(file, ns=(count, count))
        harness.advance(2)
        stays.ping()
    harness.advance(6)
    assert of(harness).counts.reloads == {"ok": 1, "failed": 0}


def test_sighup_reads_it_at_once(broker: Make, file: Path) -> None:
    harness = broker(reload_interval=0)
    put(file, "yaml", [New("dave", ALICE)])
    harness.advance(100)
    harness.connect("c", username="dave", password=b"secret", expect=0x86)
    kept = harness.hooks.plugins
    harness.wait(
        lambda done: harness.hooks.reloaded(
            harness.settings, harness.settings, kept, lambda: done(None)
        )
    )
    harness.connect("c", username="dave", password=b"secret")
    assert of(harness).counts.reloads["ok"] == 1


def test_sighup_empties_the_cache(broker: Make, verified: Verified) -> None:
    harness = broker()
    harness.connect("c", username="alice", password=b"secret")
    kept = harness.hooks.plugins
    harness.wait(
        lambda done: harness.hooks.reloaded(
            harness.settings, harness.settings, kept, lambda: done(None)
        )
    )
    harness.connect("c", username="alice", password=b"secret")
    assert len(verified.calls) == 2


# removed users

CHANGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "gone": ("removed", lambda file: delete(file, "yaml", "alice")),
    "disabled": (
        "removed",
        lambda file: write(file, USERS.replace("  alice:\n", "  alice:\n    enabled: false\n")),
    ),
    "other groups": ("rights", lambda file: put(file, "yaml", [New("alice", ALICE, ("meters",))])),
    "other claims": ("rights", lambda file: write(file, USERS.replace("acme", "other"))),
    "another password": (
        "changed",
        lambda file: put(file, "yaml", [New("alice", cheap(b"other"))]),
    ),
    "somebody else": ("nobody", lambda file: delete(file, "yaml", "carol")),
    "a comment": ("nobody", lambda file: write(file, USERS + "# x\n")),
}
ORDER = ["never", "removed", "rights", "changed"]


@pytest.mark.parametrize("disconnect", ORDER)
@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_password_file_disconnects_the_affected_users(
    broker: Make, file: Path, disconnect: str, what: str
) -> None:
    harness = broker(disconnect=disconnect)
    alice = {
        v: harness.connect(f"a{v}", v, username="alice", password=b"secret") for v in (3, 4, 5)
    }
    bob = harness.connect("b", username="bob", password=b"hunter2")
    least, edit = CHANGES[what]
    edit(file)
    harness.advance(6)
    assert of(harness).counts.reloads["ok"] == 1
    if least != "nobody" and ORDER.index(disconnect) >= ORDER.index(least):
        alice[5].expect_disconnect(0x87)
        for client in alice.values():
            client.expect_closed()
        assert of(harness).counts.disconnected == 3
    else:
        for client in alice.values():
            client.ping()
    bob.ping()


def test_a_removed_user_leaves_no_will(broker: Make, file: Path) -> None:
    harness = broker()
    watcher = harness.connect("w", username="alice", password=b"secret")
    watcher.subscribe("gone/#")
    for number, delay in enumerate((0, 5)):
        testament = will(f"gone/{number}", b"x", delay=delay)
        harness.connect(f"b{number}", username="bob", password=b"hunter2", will=testament)
    lost = harness.connect("a", username="alice", password=b"secret", will=will("gone/a", b"x"))
    delete(file, "yaml", "bob")
    harness.advance(30)
    watcher.expect_nothing()
    lost.drop()
    watcher.expect_message("gone/a")


def test_a_client_that_waited_for_another_plugin_leaves_too(file: Path) -> None:
    """If a user is removed while the client waits for another plugin, the client is disconnected."""
    slow = HookRecorder("on_connect")
    mine = make_plugin(AuthPasswordPlugin, {"path": file}, "users")
    with Harness([mine, slow], config={"auth": {"default": "deny"}}) as harness:
        event = harness.clock.event()

        async def later(client: object) -> Accept:
            await event
            return Accept()

        slow.answer("on_connect", later)
        harness.advance(100)
        client = harness.connect("c", username="bob", password=b"hunter2", expect=None)
        delete(file, "yaml", "bob")
        harness.advance(4.5)
        assert of(harness).users.get("bob") is None
        assert client.connack is None
        event.set()
        harness.settle()
        assert client.expect(Connack).code == 0
        harness.advance(6)
        client.expect_disconnect(0x87)


def test_the_file_changes_while_a_password_is_hashed(
    broker: Make, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the file changes while a password is hashed, the verdict depends on the new file."""
    harness = broker(cache_time=0.0)
    plugin = of(harness)
    edits: list[Callable[[], object]] = []

    def verify(hash: Any, password: bytes) -> bool:
        right = verify_password(hash, password)
        if edits:
            edits.pop()()
            # the loop takes the file while the thread still hashes
            harness.clock.call_threadsafe(partial(plugin._took, plugin._load()[1]))
        return right

    monkeypatch.setattr("hookmq_auth_password.plugin.verify", verify)
    edits[:] = [lambda: put(file, "yaml", [New("bob", cheap(b"new"))])]
    harness.connect("c", username="bob", password=b"hunter2", expect=0x86)
    edits[:] = [lambda: put(file, "yaml", [New("bob", cheap(b"newer"))])]
    harness.connect("c", username="bob", password=b"newer")
    edits[:] = [lambda: delete(file, "yaml", "bob")]
    harness.connect("d", username="bob", password=b"newer", expect=0x86)
    edits[:] = [lambda: put(file, "yaml", [New("dora", BOB)])]
    harness.connect("d", username="dora", password=b"hunter2")
    edits[:] = [
        lambda: put(file, "yaml", [New("alice", cheap(b"1"))]),
        lambda: put(file, "yaml", [New("alice", cheap(b"2"))]),
    ]
    harness.connect("e", username="alice", password=b"2", expect=0x86)
    assert plugin.counts.results["changed"] == 1
    edits[:] = [
        lambda: write(file, file.read_text().replace("  dora:", "  dora:\n    enabled: false"))
    ]
    harness.connect("f", username="dora", password=b"hunter2", expect=0x86)


def test_another_configuration_judges_those_who_are_there(
    broker: Make, file: Path, tmp_path: Path
) -> None:
    """After a reload switches to another file, clients without a user in that file are disconnected."""
    harness = broker()
    clients: dict[str, MemoryClient] = {}
    for name, password in (("alice", b"secret"), ("bob", b"hunter2")):
        clients[name] = harness.connect(name, username=name, password=password)
    other = tmp_path / "other.yaml"
    other.write_text(f"version: 1\nusers:\n  bob: {{hash: '{BOB}'}}\n")
    harness.reload(plugins=[make_plugin(AuthPasswordPlugin, {"path": other}, "users")])
    harness.advance(6)
    clients["alice"].expect_disconnect(0x87)
    clients["bob"].ping()


# at the start


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_refuses_to_start(file: Path, how: str) -> None:
    BROKEN[how](file)
    with pytest.raises((ConfigError, PluginError)):
        make_plugin(AuthPasswordPlugin, {"path": file})


@pytest.mark.parametrize(
    ("mode", "warned"),
    [(0o600, False), (0o640, False), (0o400, False), (0o644, True), (0o660, True), (0o602, True)],
)
def test_permissions(broker: Make, file: Path, mode: int, warned: bool) -> None:
    told: list[str] = []
    file.chmod(mode)
    make_plugin(
        AuthPasswordPlugin, {"path": file}, log=lambda level, event, /, **fields: told.append(event)
    )
    assert ("auth_password.permissions" in told) == warned


def test_permissions_that_change(broker: Make, file: Path) -> None:
    harness = broker()
    write(file, USERS + "# x\n")
    file.chmod(0o644)
    harness.advance(6)
    write(file, USERS + "# y\n")
    file.chmod(0o644)
    harness.advance(6)
    [told] = harness.logged("auth_password.permissions")
    assert "0644" in str(told["problem"])
