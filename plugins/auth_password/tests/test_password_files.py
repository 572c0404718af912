"""Test that password files are read strictly, and edited without changing anything else."""

import fcntl
import gc
import os
import queue
import threading
from pathlib import Path

import pytest
from hookmq.plugin import ConfigError
from hookmq_auth_password import book, yaml_file
from hookmq_auth_password.book import New, delete, load, parse, put, rehash
from hookmq_auth_password.files import read as read_file
from hookmq_auth_password.users import User, Users
from hookmq_toolkit.passwords.hashes import Format, verify
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from passwords import ALICE, BOB, cheap

SHA512 = "$6$Eimbgna5wUEVda2c$Y6QBkbVVxTUbPQkllCIEGyNMg4YR2s4uoqJESfb3zbU5O+qCdYmi45wcYWErCnFM9QK6za09YCOXXAfnUpTd2A=="
CRYPT = (
    "$6$rounds=1000$oI0348Xk4wTmmOTL$"
    "EZHS20sLu/3jzzjPZPrMM3XPOkWiAcDkCzDP8t/2DfXMXJ/LywYk6TGesKBOSl7HcnpjwT7QWVqTEbqoG8vUh/"
)


def names(path: Path, format: Format = "yaml") -> dict[str, User]:
    return {user.name: user for user in load(path, format).users}


def test_a_yaml_file(file: Path) -> None:
    users = names(file)
    assert list(users) == ["alice", "bob", "carol", "door"]
    alice = users["alice"]
    assert alice.groups == ("meters", "admins")
    accept = alice.accept()
    assert accept.identity == "alice"
    assert accept.claims == {"groups": ["meters", "admins"], "tenant": "acme", "level": 3}
    assert not users["carol"].enabled
    assert users["door"].hash is None
    assert users["bob"].accept().claims == {"groups": []}


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("version: 1\nusers:\n  a:\n    hash: plain\n", "4:11", "this is not a hash"),
        (f"version: 1\nusers:\n  a:\n    hash: '{SHA512}'\n", "4:11", "hookmq passwd import"),
        (
            f"version: 1\nusers:\n  a: {{hash: '{ALICE}', grups: [x]}}\n",
            "3:",
            "did you mean 'groups'",
        ),
        ("version: 1\nusers:\n  a: {groups: [x]}\n", "3:3", "has no hash"),
        ("version: 1\nusers:\n  a: {hash: 123}\n", "3:13", "not a hash"),
        ("version: 1\nusers:\n  a: secret\n", "3:6", "a user must be a mapping"),
        ("version: 1\nusers:\n  a:\n", "3:5", "a user must be a mapping"),
        (f"version: 1\nusers:\n  '': {{hash: '{ALICE}'}}\n", "3:3", "user name is empty"),
        (f"version: 1\nusers:\n  \"a\\0b\": {{hash: '{ALICE}'}}\n", "3:3", "control characters"),
        (
            f"version: 1\nusers:\n  a: {{hash: '{ALICE}'}}\n  a: {{hash: '{BOB}'}}\n",
            "4:3",
            "given twice",
        ),
        (
            f"version: 1\nusers:\n  a: {{hash: '{ALICE}', groups: x}}\n",
            "3:",
            "groups must be a list",
        ),
        (
            f"version: 1\nusers:\n  a: {{hash: '{ALICE}', groups: [1]}}\n",
            "3:",
            "a group must be a name",
        ),
        (
            f"version: 1\nusers:\n  a: {{hash: '{ALICE}', claims: [1]}}\n",
            "3:",
            "claims must be a mapping",
        ),
        (
            f"version: 1\nusers:\n  a: {{hash: '{ALICE}', claims: {{groups: [x]}}}}\n",
            "3:",
            "groups is not a claim",
        ),
        (
            f"version: 1\nusers:\n  a: {{hash: '{ALICE}', claims: {{x: .inf}}}}\n",
            "3:",
            "infinite number",
        ),
        (f"version: 1\nusers:\n  a: {{hash: '{ALICE}', enabled: no}}\n", "3:", "true or false"),
        ("users: {}\n", "1:1", "version is missing"),
        ("version: 2\nusers: {}\n", "1:10", "version must be 1"),
        ("version: true\nusers: {}\n", "1:10", "version must be 1"),
        ("version: 1\n", "1:1", "users is missing"),
        ("version: 1\nuser: {}\nusers: {}\n", "2:1", "did you mean 'users'"),
        ("version: 1\nusers: [a]\n", "2:8", "users must be a mapping"),
        ("- a\n", "", "not a user file"),
        ("# nothing\n", "", "not a user file"),
        ("alice:$7$101$a$b\n", "", "not a user file"),
        (f"version: 1\nusers:\n  a: &x {{hash: '{ALICE}'}}\n  b: *x\n", "3:6", "anchors"),
        (f"version: 1\nusers:\n  a: !!map {{hash: '{ALICE}'}}\n", "3:6", "tags"),
        ("version: 1\nusers:\n  [a]: {}\n", "3:3", "a key must be a word"),
        ("version: 1\nusers: {}\n---\n", "4:1", "a second document"),
        ("version: 1\nusers: {\n", "3:1", "not YAML"),
        ("version: 1\nusers: " + "[" * 50 + "]" * 50, "2:", "nested more than"),
        ("version: 1\nusers: \x07\n", "", "not YAML"),
    ],
)
def test_mistakes_in_yaml(text: str, place: str, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, "f", "yaml")
    told = str(error.value)
    assert told.startswith(f"f:{place}" if place else "f:"), told
    assert why in told
    assert ALICE not in told
    assert "plain" not in told


def test_every_mistake_is_told() -> None:
    with pytest.raises(ConfigError) as error:
        parse("version: 1\nusers:\n  a: {}\n  b: {hash: x}\n  c: 1\n", "f", "yaml")
    assert [line.split(": ")[0] for line in str(error.value).splitlines()] == [
        "f:3:3",
        "f:4:13",
        "f:5:6",
    ]


def test_a_file_of_mosquitto() -> None:
    text = f"# users\nalice:{SHA512}\n\nbob with blanks:{SHA512}\r\n"
    assert [user.name for user in parse(text, "f", "mosquitto")] == ["alice", "bob with blanks"]


@pytest.mark.parametrize(
    ("line", "place", "why"),
    [
        ("alice", "2:1", "no colon"),
        ("alice:", "2:1", "has no hash"),
        (f":{SHA512}", "2:1", "user name is empty"),
        (f"a\tb:{SHA512}", "2:1", "control characters"),
        ("alice:hunter2", "2:7", "not a hash"),
        (f"alice:{CRYPT}", "2:7", "this is a sha512-crypt hash"),
        (f"alice:{SHA512[:-20]}", "2:7", "unknown or incomplete hash"),
        (f"first:{SHA512}", "2:1", "twice, first in line 1"),
    ],
)
def test_cve_2018_12551_a_line_that_is_not_understood_is_no_user(
    line: str, place: str, why: str
) -> None:
    with pytest.raises(ConfigError) as error:
        parse(f"first:{SHA512}\n{line}\nlast:{SHA512}\n", "f", "mosquitto")
    told = str(error.value)
    assert told.startswith(f"f:{place}: ")
    assert why in told
    assert "hunter2" not in told


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"", "empty"), (b"version: 1\nusers: {\xff}\n", "2:9: not UTF-8")],
)
def test_a_file_that_is_no_text(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=why):
        load(path, "yaml")


def test_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"^{tmp_path}/none: No such file"):
        load(Path("none"), "yaml")
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none", "yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path, "yaml")


COMMENTED = f"""\
# Users of the plant.
version: 1   # of this file

users:
    # the boss
    alice:   # came 2020
        hash: {ALICE!r}   # argon2id
        # may do all
        groups:
          - admins   # yes
          - meters

    "b o b": {{hash: '{BOB}', groups: [x]}}  # in braces

    # the last one
    carol:
        groups: [a,
                 b]
        hash: >-
            {BOB}
    # the end
"""


def edited(path: Path, before: str) -> tuple[list[str], list[str]]:
    """Return the lines that were removed and those that were added."""
    old, new = before.splitlines(), path.read_text().splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


@pytest.fixture
def commented(tmp_path: Path) -> Path:
    path = tmp_path / "users.yaml"
    path.write_text(COMMENTED)
    path.chmod(0o640)
    return path


def test_a_new_hash_leaves_the_rest_as_it_is(commented: Path) -> None:
    new = cheap(b"new")
    there = put(commented, "yaml", [New("alice", new)])
    assert there == ["alice"]
    assert edited(commented, COMMENTED) == (
        [f"        hash: {ALICE!r}   # argon2id"],
        [f"        hash: '{new}'   # argon2id"],
    )
    assert commented.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in commented.parent.iterdir()] == ["users.yaml"]


def test_groups_are_replaced_where_they_stand(commented: Path) -> None:
    for name, old in (("alice", ("admins", "meters")), ("b o b", ("x",)), ("carol", ("a", "b"))):
        assert names(commented)[name].groups == old
        put(commented, "yaml", [New(name, BOB, ("one", "two words"))])
        assert names(commented)[name].groups == ("one", "two words")
    text = commented.read_text()
    for comment in (
        "# Users of the plant.",
        "# came 2020",
        "# may do all",
        "# in braces",
        "# the last one",
        "# the end",
    ):
        assert comment in text


def test_users_are_added_and_removed(commented: Path) -> None:
    put(commented, "yaml", [New("dave", BOB, ("x",)), New("true", None), New("é: #", ALICE)])
    users = names(commented)
    assert list(users) == ["alice", "b o b", "carol", "dave", "true", "é: #"]
    assert users["dave"].groups == ("x",)
    assert users["true"].hash is None
    for name in list(users):
        assert delete(commented, "yaml", name)
        assert not delete(commented, "yaml", name)
        del users[name]
        assert names(commented) == users
    text = commented.read_text()
    for comment in ("# Users of the plant.", "# the boss", "# the last one", "# the end"):
        assert comment in text
    put(commented, "yaml", [New("again", ALICE)])
    assert list(names(commented)) == ["again"]


@pytest.mark.parametrize(
    "head",
    [
        "version: 1\nusers:\n",
        "version: 1\nusers:",
        "version: 1\nusers: {}\n",
        "version: 1\nusers: {}  # none yet",
        "users: null\nversion: 1\n",
        "users:   # none\n\nversion: 1\n",
        "version: 1\nusers: ~\n# end",
    ],
)
def test_the_first_user(tmp_path: Path, head: str) -> None:
    path = tmp_path / "f"
    path.write_text(head)
    put(path, "yaml", [New("alice", ALICE, ("g",))])
    assert names(path)["alice"].groups == ("g",)


def test_users_in_braces(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text(f"{{version: 1, users: {{a: {{hash: '{ALICE}'}}, b: {{hash: '{BOB}'}}}}}}\n")
    put(path, "yaml", [New("c", ALICE), New("a", None, ("g",))])
    assert set(names(path)) == {"a", "b", "c"}
    assert names(path)["a"].groups == ("g",)
    for name in ("b", "c", "a"):
        assert delete(path, "yaml", name)
    assert names(path) == {}


@pytest.mark.parametrize("made", ["version: 1\nusers: {}\n", "users: [", COMMENTED])
def test_an_edit_that_does_something_else_is_not_written(
    commented: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    monkeypatch.setattr(yaml_file, "remove", lambda text, source, name: made)
    with pytest.raises(ConfigError, match="cannot be edited"):
        delete(commented, "yaml", "alice")
    assert commented.read_text() == COMMENTED


def test_no_file_that_was_cut_short_lets_anybody_in(tmp_path: Path) -> None:
    """A truncated file, left behind by an interrupted writer, accepts no client that the complete file would refuse."""
    text = (
        f"version: 1\nusers:\n  a:\n    groups: [x]\n    hash: '{ALICE}'\n"
        f"  off:\n    enabled: false\n    hash: '{BOB}'\n  door:\n    hash: null\n"
        f"  b: {{hash: '{BOB}', enabled: false}}\n"
    )
    path = tmp_path / "f"
    path.write_text(text)
    whole = {user.name: user for user in load(path, "yaml").users}
    good = 0
    for end in range(len(text)):
        path.write_text(text[:end])
        try:
            found = load(path, "yaml").users
        except ConfigError:
            continue
        good += 1
        for user in found:
            same = whole[user.name]
            assert (user.hash, user.enabled, user.groups) == (same.hash, same.enabled, same.groups)
    assert good == 4  # where a line ends and a user too


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ("{hash: }", "hash has no value"),
        ("\n    hash:", "hash has no value"),
        (f"\n    hash: '{ALICE}'\n    enabled: false", "enabled comes after hash"),
    ],
)
def test_an_incomplete_password_file_is_refused(tmp_path: Path, user: str, why: str) -> None:
    path = tmp_path / "f"
    path.write_text(f"version: 1\nusers:\n  a: {user}\n")
    with pytest.raises(ConfigError, match=why):
        load(path, "yaml")
    with pytest.raises(ConfigError, match=why):
        put(path, "yaml", [New("a", ALICE)])
    path.write_text(f"version: 1\nusers:\n  a: {{hash: '{ALICE}'}}")
    with pytest.raises(ConfigError, match="the last line has no line break"):
        load(path, "yaml")
    put(path, "yaml", [New("b", BOB)])
    assert list(names(path)) == ["a", "b"]


def test_a_new_file_is_for_its_owner_only(tmp_path: Path) -> None:
    for format, hash in (("yaml", ALICE), ("mosquitto", SHA512)):
        path = tmp_path / format
        put(path, format, [New("alice", hash)])  # type: ignore[arg-type]
        assert path.stat().st_mode & 0o777 == 0o600
        assert list(names(path, format)) == ["alice"]  # type: ignore[arg-type]


def test_a_link_stays_a_link(tmp_path: Path, file: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    put(link, "yaml", [New("bob", ALICE)])
    assert link.is_symlink()
    assert names(file)["bob"].hash == names(file)["alice"].hash


def test_a_file_of_mosquitto_is_edited(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text(f"# head\nalice:{SHA512}\r\nbob:{SHA512}")
    put(path, "mosquitto", [New("carol", SHA512), New("alice", ALICE)])
    assert path.read_bytes() == f"# head\nalice:{ALICE}\r\nbob:{SHA512}\ncarol:{SHA512}\n".encode()
    assert delete(path, "mosquitto", "bob")
    assert list(names(path, "mosquitto")) == ["alice", "carol"]


def test_a_hash_that_changed_meanwhile_is_not_upgraded(file: Path) -> None:
    users = names(file)
    alice, bob = users["alice"].hash, users["bob"].hash
    assert alice is not None
    assert bob is not None
    new = cheap(b"secret")
    # somebody gives bob another password, deletes door
    put(file, "yaml", [New("bob", cheap(b"other"))])
    done, stamps = rehash(
        file, "yaml", {"alice": (alice, new), "bob": (bob, new), "gone": (bob, new)}
    )
    assert done == ["alice"]
    assert stamps is not None
    assert stamps[1] == read_file(file).stamp
    assert names(file)["bob"].hash != alice
    assert rehash(file, "yaml", {"bob": (bob, new)}) == ([], None)


def test_writers_wait_for_each_other(file: Path) -> None:
    """A second writer waits for the first one, so that no change is lost."""
    begun, go = threading.Event(), threading.Event()
    real = book.parse

    def slow(text: str, source: str, format: Format) -> list[User]:
        if threading.current_thread() is first and not begun.is_set():
            begun.set()
            assert go.wait(60)
        return real(text, source, format)

    first = threading.Thread(target=lambda: put(file, "yaml", [New("one", ALICE)]))
    second = threading.Thread(target=lambda: put(file, "yaml", [New("two", ALICE)]))
    book.parse = slow
    try:
        first.start()
        assert begun.wait(60)
        second.start()
        go.set()
        first.join(10)
        second.join(10)
    finally:
        book.parse = real
    assert {"one", "two"} <= set(names(file))


def test_a_lock_on_a_file_that_was_replaced_is_no_lock(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waited for another writer locks the new file that this writer put in place, not the old file."""
    tried: queue.SimpleQueue[int] = queue.SimpleQueue()
    real = fcntl.flock

    def flock(number: int, operation: int) -> None:
        tried.put(os.fstat(number).st_ino)
        real(number, operation)

    other = tmp_path / "other"
    other.write_text(file.read_text())
    with open(file) as first, open(other) as second:
        real(first, fcntl.LOCK_EX)
        real(second, fcntl.LOCK_EX)
        monkeypatch.setattr("hookmq_auth_password.files.fcntl.flock", flock)
        writer = threading.Thread(target=lambda: put(file, "yaml", [New("new", ALICE)]))
        writer.start()
        old = tried.get(timeout=60)
        other.rename(file)
        real(first, fcntl.LOCK_UN)
        assert tried.get(timeout=60) == file.stat().st_ino != old
        assert "new" not in names(file)
        real(second, fcntl.LOCK_UN)
        writer.join(10)
    assert "new" in names(file)


def test_normalisation_is_none() -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    text = f"version: 1\nusers:\n  {composed}: {{hash: '{ALICE}'}}\n  {decomposed}: {{hash: '{BOB}'}}\n"
    users = Users(parse(text, "f", "yaml"))
    first, second = users.get(composed), users.get(decomposed)
    assert first is not None
    assert second is not None
    assert first.hash != second.hash


_NAMES = st.text(
    st.characters(blacklist_categories=("Cc", "Cs"))
    | st.sampled_from(list(":#'\"{}[],&*!|>%@ -?")),
    min_size=1,
    max_size=12,
)
_GROUPS = st.none() | st.lists(_NAMES, max_size=3, unique=True).map(tuple)
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "delete"]),
        _NAMES,
        st.sampled_from([ALICE, BOB, None]),
        _GROUPS,
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=_STEPS,
    start=st.sampled_from(["", COMMENTED, f"{{version: 1, users: {{a: {{hash: '{ALICE}'}}}}}}\n"]),
)
def test_edits_do_what_they_say(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, str, str | None, tuple[str, ...] | None]],
    start: str,
) -> None:
    """Each edit has the same effect on the file as on a model of it. No file is refused in this test."""
    path = tmp_path_factory.mktemp("users") / "f"
    model: dict[str, tuple[str | None, tuple[str, ...]]] = {}
    if start:
        path.write_text(start)
        for user in load(path, "yaml").users:
            model[user.name] = (user.hash.text if user.hash else None), user.groups
    for action, name, hash, groups in steps:
        if action == "put":
            put(path, "yaml", [New(name, hash, groups)])
            model[name] = hash, groups if groups is not None else model.get(name, (None, ()))[1]
        elif path.exists():
            assert delete(path, "yaml", name) == (model.pop(name, None) is not None)
        else:
            continue
        found = {
            u.name: (u.hash.text if u.hash else None, u.groups) for u in load(path, "yaml").users
        }
        assert found == model


@given(
    st.text(max_size=300) | st.binary(max_size=100).map(lambda data: data.decode("latin-1")),
    st.sampled_from(["yaml", "mosquitto"]),
)
def test_any_text_is_users_or_an_error(text: str, format: Format) -> None:
    try:
        users = parse(text, "f", format)
    except ConfigError:
        return
    assert all(isinstance(user, User) for user in users)


def test_the_example_of_the_manual() -> None:
    page = Path(__file__).parents[1] / "README.md"
    text = page.read_text().split("file=example.yaml\n")[1].split("```")[0]
    alice, bob, door = parse(text, "example", "yaml")
    assert alice.accept().claims == {"groups": ["meters"], "tenant": "acme"}
    assert not bob.enabled
    assert door.hash is None
    assert all(
        user.hash is not None and verify(user.hash, b"correct horse") for user in (alice, bob)
    )


def test_the_collector_is_left_as_it_was() -> None:
    assert gc.isenabled()
    with book.uncollected():
        assert not gc.isenabled()
        with book.uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ConfigError), book.uncollected():
        parse("", "f", "yaml")
    assert gc.isenabled()


def test_a_pipe_is_not_a_file_and_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "users.yaml"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        load(path, "yaml")
