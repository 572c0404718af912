"""Test the service: validation, paging, limits, and documents that are imported completely or not at all."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from account_site import SECRET, AccountSite, allow, deny
from hookmq.plugin import PluginError, Promise
from hookmq_accounts import manager
from hookmq_accounts.document import plan_import
from hookmq_accounts.stored import StoredAccount
from hookmq_toolkit.accounts import AccountError
from hookmq_toolkit.passwords import Argon2, make

HASH = make(SECRET, "yaml", Argon2(1 << 20, 1, 1))


@pytest.fixture
def site() -> AccountSite:
    site = AccountSite(max_users=5, max_groups=2, max_rules=3)
    site.group("g", allow("publish", topic="a"))
    site.user("ann", allow("subscribe", topic="b"), groups=["g"], note="first")
    return site


def state(site: AccountSite) -> dict[str, bytes]:
    """Return everything in the plugin state."""
    return dict(site.harness.handle("accounts").state.items().items)


USERS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "name", "missing"),
    ({"name": ""}, "name", "at least 1"),
    ({"name": 5}, "name", "expected a string"),
    ({"name": "a\nb"}, "name", "printable"),
    ({"name": "a\ud800"}, "name", "printable"),
    ({"name": "ä" * 257}, "name", "512 bytes"),
    ({"name": "x", "enabled": 1}, "enabled", "true or false"),
    ({"name": "x", "note": "n" * 257}, "note", "256"),
    ({"name": "x", "note": "\ud800"}, "note", "valid Unicode"),
    ({"name": "x", "groups": "g"}, "groups", "list of strings"),
    ({"name": "x", "groups": ["g", "g"]}, "groups", "repeated"),
    ({"name": "x", "groups": ["g", "unknown"]}, "groups[1]", "no group"),
    ({"name": "x", "groups": [str(n) for n in range(33)]}, "groups", "0 to 32"),
    ({"name": "x", "hash": "secret"}, "hash", "not a hash"),
    ({"name": "x", "hash": "$argon2id$v=19$m=65536,t=3,p=4$x$y"}, "hash", "incomplete"),
    ({"name": "x", "hash": 5}, "hash", "expected a string"),
    ({"name": "x", "password": "secret"}, "password", "unknown field"),
    ({"name": "x", "rules": {}}, "rules", "list of rules"),
    ({"name": "x", "rules": [allow("all")] * 4}, "rules", "at most 3"),
    ({"name": "x", "rules": [allow("all"), 5]}, "rules[1]", "an object"),
    ({"name": "x", "rules": [{"topic": ["a"]}]}, "rules[0]", "either allow or deny"),
    ({"name": "x", "rules": [{**allow("all"), "deny": ["all"]}]}, "rules[0]", "either"),
    ({"name": "x", "rules": [{**allow("all"), "who": "ann"}]}, "rules[0]", "unknown key 'who'"),
    ({"name": "x", "rules": [{"allow": "all", "topic": ["a"]}]}, "rules[0].allow", "a list"),
    ({"name": "x", "rules": [{"allow": [], "topic": ["a"]}]}, "rules[0].allow", "1 to 5"),
    ({"name": "x", "rules": [allow("read")]}, "rules[0].allow[0]", "unknown action"),
    ({"name": "x", "rules": [{"deny": ["all"]}]}, "rules[0].topic", "missing"),
    ({"name": "x", "rules": [{"deny": ["all"], "topic": []}]}, "rules[0].topic", "1 to 100"),
    ({"name": "x", "rules": [allow("all", topic="a/#/b")]}, "rules[0].topic[0]", "#"),
    ({"name": "x", "rules": [allow("all", topic="a/%u.x")]}, "rules[0].topic[0]", "whole level"),
    ({"name": "x", "rules": [allow("all", topic="$share/g/a")]}, "rules[0].topic[0]", "share"),
    ({"name": "x", "rules": [allow("all", topic="a" * 1025)]}, "rules[0].topic[0]", "1024"),
    ({"name": "x", "rules": [allow("all", qos=3)]}, "rules[0].qos", "0, 1 or 2"),
    ({"name": "x", "rules": [allow("all", qos=True)]}, "rules[0].qos", "0, 1 or 2"),
    ({"name": "x", "rules": [deny("subscribe", qos=1)]}, "rules[0].qos", "no effect"),
    ({"name": "x", "rules": [allow("publish", retain=1)]}, "rules[0].retain", "true or false"),
    ({"name": "x", "rules": [allow("all", retain=True)]}, "rules[0].retain", "no effect"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "field", "text"), USERS)
def test_an_invalid_user_is_refused_with_the_field(
    site: AccountSite, fields: Mapping[str, Any], field: str, text: str
) -> None:
    """A document is refused as a whole if any user in it is invalid."""
    before = state(site)
    with pytest.raises(AccountError, match=text) as caught:
        site.run(site.manager.create("user", fields))
    assert (caught.value.reason, caught.value.field) == ("invalid", field)
    document = {"groups": [{"name": "new"}], "users": [{"name": "good"}, fields]}
    with pytest.raises(AccountError) as caught:
        site.run(site.manager.load(document, False, False))
    assert caught.value.field in (f"users[1].{field}", "groups")
    assert state(site) == before
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("password", [b"", b"1234567", b"x" * 1025])
def test_a_password_that_is_too_short_or_too_long_is_refused(
    site: AccountSite, password: bytes
) -> None:
    with pytest.raises(AccountError, match="8 to 1024 bytes") as caught:
        site.run(site.manager.set_password("ann", password))
    assert (caught.value.reason, caught.value.field) == ("invalid", "password")
    with pytest.raises(AccountError, match="8 to 1024 bytes"):
        site.run(site.manager.create("user", {"name": "x"}, password))


def test_what_does_not_exist_is_missing(site: AccountSite) -> None:
    manager = site.manager
    calls: list[Callable[[], object]] = [
        lambda: manager.find("user", "x"),
        lambda: site.run(manager.change("group", "x", {})),
        lambda: site.run(manager.delete("group", "ann")),
        lambda: site.run(manager.set_password("x", SECRET)),
        lambda: site.run(manager.add_rule("user", "x", allow("all"))),
        lambda: site.run(manager.delete_rule("user", "ann", 7)),
    ]
    for call in calls:
        with pytest.raises(AccountError) as caught:
            call()
        assert caught.value.reason == "missing"


def test_conflicts_change_nothing(site: AccountSite) -> None:
    manager, before = site.manager, state(site)
    site.run(manager.create("group", {"name": "h"}))
    before = state(site)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: manager.create("user", {"name": "ann"}),
        lambda: manager.create("group", {"name": "g"}),
        lambda: manager.create("group", {"name": "third"}),
        lambda: manager.delete("group", "g"),
    ]
    for call in calls:
        with pytest.raises(AccountError) as caught:
            site.run(call())
        assert caught.value.reason == "conflict"
    assert state(site) == before


def test_a_change_keeps_the_other_fields(site: AccountSite) -> None:
    site.harness.advance(5)
    before = site.manager.find("user", "ann")
    after = site.run(site.manager.change("user", "ann", {"note": "new"}))
    changed = {name for name, value in after.items() if before[name] != value}
    assert changed == {"note", "changed_at", "revision"}
    assert after["changed_at"] == before["changed_at"] + 5
    site.client("ann")


def test_a_rule_keeps_its_id(site: AccountSite) -> None:
    """The id of a deleted rule is never reused, so nobody can delete the wrong rule by mistake."""
    manager = site.manager
    site.run(manager.add_rule("user", "ann", deny("publish", topic="x"), 0))
    rules = site.run(manager.add_rule("user", "ann", allow("all", topic="y")))["rules"]
    assert [rule["id"] for rule in rules] == [2, 1, 3]
    assert rules[0] == {"id": 2, "deny": ["publish"], "topic": ["x"]}
    with pytest.raises(AccountError, match="limit"):
        site.run(manager.add_rule("user", "ann", allow("all")))
    site.run(manager.delete_rule("user", "ann", 3))
    rules = site.run(manager.add_rule("user", "ann", allow("all", topic="z")))["rules"]
    assert [rule["id"] for rule in rules] == [2, 1, 4]
    site.run(manager.delete_rule("user", "ann", 4))
    with pytest.raises(AccountError, match="0 to 2") as caught:
        site.run(manager.add_rule("user", "ann", allow("all"), 3))
    assert caught.value.field == "position"


def test_two_requests_for_the_same_name(site: AccountSite) -> None:
    """The second request fails after its password has been hashed."""
    work = [site.manager.create("user", {"name": "x"}, SECRET) for _ in range(2)]

    async def both() -> list[object]:
        first = site.harness.clock.promise()

        def ended(value: object, error: BaseException | None) -> None:
            first.set_result(error)

        site.harness.clock.spawn(work[0], ended)
        try:
            await work[1]
        except AccountError as error:
            return [await first, error]
        return [await first, None]

    failures = [one for one in site.run(both()) if one is not None]
    assert [str(one) for one in failures] == ["a user has this name"]


# listing -------------------------------------------------------------------------------------------------------------


def test_users_are_listed_by_name_and_searched() -> None:
    site = AccountSite()
    site.group("g")
    for name in ("carl", "ann", "bert", "anna"):
        site.user(name, hash=HASH, groups=["g"] if name == "ann" else [], enabled=name != "bert")
    names: list[str] = []
    cursor, more = "", True
    while more:
        page = site.manager.page("user", cursor, 3)
        names += [str(one["name"]) for one in page.items]
        cursor, more = page.cursor, bool(page.cursor)
    assert names == ["ann", "anna", "bert", "carl"]

    def found(**query: Any) -> list[Any]:
        return [one["name"] for one in site.manager.page("user", "", 10, **query).items]

    assert found(search="nn") == ["ann", "anna"]
    assert found(group="g") == ["ann"]
    assert found(enabled=False) == ["bert"]
    assert [one["name"] for one in site.manager.page("group", "", 10).items] == ["g"]


# documents -----------------------------------------------------------------------------------------------------------


def test_an_export_can_be_imported_elsewhere(site: AccountSite) -> None:
    plain = site.run(site.manager.export(False))
    assert "argon2" not in repr(plain)
    document = site.run(site.manager.export(True))
    other = AccountSite()
    other.user("old", allow("all"))
    counts = other.run(other.manager.load(document, True, False))
    assert counts == {"created": 2, "changed": 0, "deleted": 1}
    assert other.run(other.manager.export(True)) == document
    other.client("ann")
    other.client("old", expect=0x86)
    assert site.run(site.manager.load(document, False, True)) == {
        "created": 0, "changed": 2, "deleted": 0
    }  # fmt: skip


def test_an_import_without_hash_keeps_the_password(site: AccountSite) -> None:
    ann = site.client("ann")
    document = {"users": [{"name": "ann", "rules": [allow("publish", topic="x")]}, {"name": "bob"}]}
    site.run(site.manager.load(document, False, False))
    ann.publish("x", b"", 1, expect=0x10)
    ann.publish("a", b"", 1, expect=0x87)  # its group is gone
    site.client("bob", expect=0x86)


DOCUMENTS: list[tuple[dict[str, Any], bool, str]] = [
    ({"version": 2}, False, "version"),
    ({"users": 5}, False, "users"),
    ({"groups": [5]}, False, "groups[0]"),
    ({"users": [{"name": "x"}, {"name": "x"}]}, False, "users[1].name"),
    ({"users": [{"name": str(n)} for n in range(5)]}, False, "users"),
    ({"groups": [{"name": str(n)} for n in range(2)]}, False, "groups"),
    ({"users": [{"name": "x", "groups": ["g"]}]}, True, "groups"),
    ({"users": [{"name": "x", "groups": ["y"]}]}, False, "groups"),
]


@pytest.mark.parametrize(("document", "replace", "field"), DOCUMENTS)
@pytest.mark.parametrize("check", [True, False])
def test_an_invalid_document_changes_nothing(
    site: AccountSite, document: Mapping[str, Any], replace: bool, field: str, check: bool
) -> None:
    before = state(site)
    with pytest.raises(AccountError) as caught:
        site.run(site.manager.load(document, replace, check))
    assert (caught.value.reason, caught.value.field) == ("invalid", field)
    assert state(site) == before


def test_a_document_that_exceeds_the_state_changes_nothing(
    site: AccountSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's limit on state is reached in the middle of the import."""
    site.harness.reload({"broker": {"plugin_state_keys": 3}})
    before = state(site)
    document = {"groups": [{"name": "g", "note": "other"}], "users": [{"name": "b"}, {"name": "c"}]}
    with pytest.raises(AccountError, match="plugin_state_keys") as caught:
        site.run(site.manager.load(document, False, False))
    assert caught.value.reason == "conflict"
    assert state(site) == before
    assert site.manager.find("group", "g")["note"] == ""


def test_a_document_is_parsed_and_validated_in_a_thread(
    site: AccountSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop neither parses accounts nor creates their records."""
    on_loop: list[bool] = []

    def watched(name: str) -> None:
        original = getattr(StoredAccount, name)

        def call(account: StoredAccount, *args: Any) -> Any:
            on_loop.append(site.harness.clock.on_loop())
            return original(account, *args)

        monkeypatch.setattr(StoredAccount, name, call)

    watched("changed")
    watched("record")
    document = {"groups": [{"name": "new"}], "users": [{"name": "ann"}, {"name": "bob"}]}
    assert site.run(site.manager.load(document, True, False))["deleted"] == 1
    assert on_loop == [False] * 6
    page = site.manager.page("user", "", 10)
    assert [one["name"] for one in page.items] == ["ann", "bob"]
    assert site.manager.find("group", "new")["revision"] == 1


@pytest.mark.parametrize("changes", [1, 5])
def test_an_import_takes_in_a_change_that_comes_before_it(
    site: AccountSite, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    """The change is made while a thread validates the document, so the document is validated again."""
    before = state(site)
    planned: list[Any] = []

    async def change() -> None:
        await site.manager.change("user", "ann", {"note": f"change {len(planned)}"})

    def begin() -> None:
        site.harness.clock.spawn(change(), lambda *_: None)

    def plan(*args: Any) -> Any:
        planned.append(args)
        if len(planned) <= changes:
            site.harness.clock.call_threadsafe(begin)
        return plan_import(*args)

    monkeypatch.setattr(manager, "plan_import", plan)
    document = {"users": [{"name": "ann", "groups": ["g"]}, {"name": "bob"}]}
    if changes == 1:
        site.run(site.manager.load(document, False, False))
        assert len(planned) == 2
        found = site.manager.find("user", "ann")
        assert (found["note"], found["revision"]) == ("", 3)
        assert site.manager.find("user", "bob")["revision"] == 1
    else:
        with pytest.raises(AccountError, match="changed during the import") as caught:
            site.run(site.manager.load(document, False, False))
        assert caught.value.reason == "conflict"
        assert len(planned) == 3
        assert state(site).keys() == before.keys()


def test_too_many_passwords_at_once() -> None:
    site = AccountSite(threads=1, queue=1)
    started = [site.manager.create("user", {"name": str(n)}, SECRET) for n in range(4)]
    results: list[Any] = []

    def begin(work: Any) -> Promise:
        promise = site.harness.clock.promise()

        def ended(value: object, error: BaseException | None) -> None:
            promise.set_result(error)

        site.harness.clock.spawn(work, ended)
        return promise

    async def all_of_them() -> None:
        promises = [begin(work) for work in started]
        results.extend([await promise for promise in promises])

    site.run(all_of_them())
    assert {error.reason for error in results if isinstance(error, AccountError)} == {"busy"}
    assert not any(isinstance(error, PluginError) for error in results)
    assert None in results


def test_a_group_that_is_deleted_while_a_password_is_hashed() -> None:
    """The new user must not belong to the deleted group. If it did, no decision about the user would be possible, and
    exports could not be imported.
    """
    site = AccountSite()
    site.group("g")
    created = site.manager.create("user", {"name": "bob", "groups": ["g"]}, SECRET)

    async def both() -> object:
        first = site.harness.clock.promise()

        def ended(value: object, error: BaseException | None) -> None:
            first.set_result(error)

        site.harness.clock.spawn(created, ended)
        begun = site.harness.clock.promise()
        site.harness.clock.call_soon(lambda: begun.set_result(None))
        await begun
        await site.manager.delete("group", "g")
        return await first

    error = site.run(both())
    assert isinstance(error, AccountError)
    assert error.field == "groups[0]"
    assert site.plugin.book.get("user", "bob") is None
