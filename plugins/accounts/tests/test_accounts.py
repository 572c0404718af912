"""Test the plugin in an in-memory broker: sign-in, rules, changes that apply at once, and broken records."""

import json
from typing import Any

import pytest
from account_site import SECRET, AccountSite, allow, deny
from hookmq.mqtt_api import Connack
from hookmq.plugin import Accept, Allow, BrokerHandle, Context, Plugin, hookimpl
from hookmq_accounts.plugin import AccountsPlugin
from hookmq_testing import DurableStore, HookRecorder, make_plugin, will
from hookmq_testing.contracts import PluginContract
from hookmq_toolkit.accounts import AccountError


class TestContract(PluginContract):
    kind = AccountsPlugin
    use = "accounts"
    configs = (
        {},
        {"unknown": "ignore", "anonymous": "ignore", "no_match": "abstain", "max_users": 1},
    )
    bad_configs = (
        {"unknown": "allow"},
        {"anonymous": "abstain"},
        {"no_match": "allow"},
        {"max_users": 0},
        {"max_groups": 0},
        {"max_rules": 0},
        {"min_password": 2000},
        {"x": 1},
    )


@pytest.fixture
def site() -> AccountSite:
    return AccountSite()


# sign-in -------------------------------------------------------------------------------------------------------------


def test_a_user_connects_with_its_password_only(site: AccountSite) -> None:
    site.user("ann")
    site.client("ann")
    client = site.harness.handle("accounts").client("ann")
    assert client is not None
    assert (client.identity, client.vouched_by) == ("ann", "plugin:accounts")
    site.client("a", "ann", password=b"wrong", expect=0x86)
    site.client("b", "bob", expect=0x86)
    site.client("c", "ann", password=None, expect=0x86)
    site.client("d", "ann", password=b"", expect=0x86)
    site.client("e", "ann", password=b"x" * 1025, expect=0x86)
    site.harness.connect("f", expect=0x87)
    results = {name: count for name, count in site.plugin.results.items() if count}
    assert results == {
        "accepted": 1, "wrong_password": 1, "unknown_user": 1, "no_password": 2, "too_long": 1, "no_user_name": 1
    }  # fmt: skip


def test_a_known_password_is_hashed_once(site: AccountSite) -> None:
    site.user("ann")
    hashed = site.plugin.pool.finished
    for _ in range(3):
        site.client("ann").disconnect()
    assert (site.plugin.pool.finished, site.plugin.results["cached"]) == (hashed + 1, 2)


def test_a_disabled_user_and_one_without_password_are_refused(site: AccountSite) -> None:
    site.user("ann", enabled=False)
    site.run(site.manager.create("user", {"name": "bob"}))
    for name in ("ann", "bob"):
        site.client(name, expect=0x86)
    assert site.plugin.results["disabled"] == 1


class Other(Plugin):
    """Accepts every client as its own user, and allows everything."""

    @hookimpl
    def on_connect(self, client: Any) -> Accept:
        return Accept(client.username)

    @hookimpl
    def authorize(self, client: Any) -> Allow | None:
        return Allow() if client.vouched_by == "plugin:other" else None


def test_other_plugins_decide_on_other_users() -> None:
    """The rules do not apply to a client that another plugin accepted, even if it has a user's name."""
    site = AccountSite(Other(None, Context("other")), unknown="ignore", anonymous="ignore")
    site.user("ann", allow("publish", topic="a"))
    watcher = site.client("watcher")
    watcher.subscribe("#")
    site.client("ann").publish("b", b"", 1, expect=0)  # `other` gave the identity
    watcher.expect_message("b", b"")
    site.harness.connect("guest").publish("c", b"", 1, expect=0)
    watcher.expect_message("c", b"")


def test_passwords_and_hashes_are_in_no_log(site: AccountSite) -> None:
    site.user("ann")
    site.client("a", "ann", password=b"wrong one", expect=0x86)
    site.run(site.manager.set_password("ann", b"another password"))
    logs = repr(site.harness.logs)
    assert "accounts.changed" in logs
    for secret in ("correct horse", "wrong one", "another password", "argon2"):
        assert secret not in logs
    assert "argon2" not in repr(site.plugin.book.get("user", "ann"))
    assert "argon2" not in json.dumps(site.manager.find("user", "ann"))


# rules ---------------------------------------------------------------------------------------------------------------


def test_rules_of_the_user_come_before_those_of_its_groups(site: AccountSite) -> None:
    site.group("readers", deny("publish", topic="a/b"), allow("all", topic="a/#"))
    site.group("others", allow("publish", topic="a/b"), allow("publish", topic="c"))
    site.user("ann", groups=["readers", "others"])
    ann = site.client("ann")
    ann.publish("a/b", b"", 1, expect=0x87)
    ann.publish("a/c", b"", 1, expect=0x10)
    ann.publish("c", b"", 1, expect=0x10)
    ann.publish("d", b"", 1, expect=0x87)
    assert ann.subscribe("a/#").codes == (0,)
    site.run(site.manager.add_rule("user", "ann", allow("publish", topic="a/b")))
    ann.publish("a/b", b"", 1, expect=0)


def test_rules_have_the_meaning_of_acl_file(site: AccountSite) -> None:
    """Test containment for allowed subscriptions, overlap for denied ones, maximum QoS, RETAIN and variables."""
    site.user(
        "ann",
        deny("subscribe", topic="home/secret"),
        allow("subscribe", topic="home/+", qos=1),
        allow("publish", topic="own/%u/%c", retain=False),
    )
    ann = site.client("c1", "ann")
    assert ann.subscribe("home/+", 2).codes == (0x87,)
    assert ann.subscribe("home/#", 2).codes == (0x87,)
    assert ann.subscribe("home/door", 2).codes == (1,)
    assert ann.subscribe("$share/g/home/door", 2).codes == (1,)
    assert ann.subscribe("$share/g/$share/h/home/door", 2).codes == (0x87,)
    ann.publish("own/ann/c1", b"", 1, expect=0x10)
    ann.publish("own/ann/c1", b"", 1, True, expect=0x87)
    ann.publish("own/ann/c2", b"", 1, expect=0x87)


def test_deliveries_are_decided_if_a_rule_names_them(site: AccountSite) -> None:
    site.user("bob", allow("all"))
    site.user("ann", allow("subscribe"))
    ann, bob = site.client("ann"), site.client("bob")
    ann.subscribe("#")
    bob.publish("a/1", b"one", 1, expect=0)
    ann.expect_message("a/1", b"one")
    site.run(site.manager.add_rule("user", "ann", deny("deliver", topic="a/#"), 0))
    bob.publish("a/1", b"two", 1, expect=None)
    bob.publish("b/1", b"three", 1, expect=None)
    site.harness.settle()
    ann.expect_message("b/1", b"three")


def test_the_reason_names_the_rule() -> None:
    recorder = HookRecorder("on_denied", id="rec")
    site = AccountSite(recorder)
    site.group("g", deny("publish", topic="a"))
    site.user("ann", groups=["g"])
    site.client("ann").publish("a", b"", 1, expect=0x87)
    (call,) = recorder.calls("on_denied")
    assert call.rule == "accounts: group g rule 1"


def test_abstaining_leaves_the_decision_to_others() -> None:
    site = AccountSite(no_match="abstain", authz="allow")
    site.user("ann", deny("publish", topic="a"))
    ann = site.client("ann")
    ann.publish("a", b"", 1, expect=0x87)
    ann.publish("b", b"", 1, expect=0x10)


# changes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["delete", "disable", "password", "again"])
def test_clients_of_a_changed_user_are_disconnected(site: AccountSite, change: str) -> None:
    site.user("ann", allow("all"))
    site.user("bob", allow("all"))
    watcher = site.client("w", "bob")
    watcher.subscribe("#")
    ann, bob = site.client("c1", "ann", will=will("gone")), site.client("c2", "bob")
    if change == "disable":
        site.run(site.manager.change("user", "ann", {"enabled": False}))
    elif change == "password":
        site.run(site.manager.set_password("ann", b"another password"))
    else:
        site.run(site.manager.delete("user", "ann"))
        if change == "again":
            site.user("ann", allow("all"))
    ann.expect_disconnect(0x87)
    bob.ping()
    watcher.expect_nothing()
    site.client("c1", "ann", expect=0 if change == "again" else 0x86)
    if change == "password":
        site.client("c1", "ann", password=b"another password")


class Slow(Plugin):
    """Abstains once the test allows it to respond."""

    @hookimpl
    async def on_connect(self, client: Any, broker: BrokerHandle) -> None:
        self.promise = broker.runtime.promise()
        await self.promise


def test_a_client_accepted_before_the_change_is_disconnected_afterwards() -> None:
    """While another plugin is still deciding, the client is not online. A change made now cannot find the client, so it
    is disconnected later.
    """
    slow = Slow(None, Context("slow"))
    site = AccountSite(last=slow)
    site.user("ann", allow("all"))
    ann = site.client("ann", expect=None)
    site.run(site.manager.delete("user", "ann"))
    slow.promise.set_result(None)
    site.harness.settle()
    ann.expect(Connack)
    ann.publish("a", b"", 1, expect=0x87)
    site.harness.advance(6)
    ann.expect_disconnect(0x87)


def test_changed_rules_apply_to_existing_subscriptions(site: AccountSite) -> None:
    site.group("g", allow("all"))
    site.user("ann", groups=["g"])
    site.user("bob", allow("all"))
    ann, bob = site.client("ann"), site.client("bob")
    ann.subscribe("a")
    ann.publish("x", b"", 1, expect=0x10)
    site.run(site.manager.change("group", "g", {"rules": [allow("subscribe", topic="a")]}))
    bob.publish("a", b"still", 1, expect=0)
    ann.expect_message("a", b"still")
    ann.publish("x", b"", 1, expect=0x87)
    site.run(site.manager.change("user", "ann", {"groups": []}))
    ann.expect_disconnect(0x87)  # its subscription is revoked


def test_other_settings_keep_the_plugin_object(site: AccountSite) -> None:
    """A reload must keep the plugin object. Replacing it could lose a change that is waiting for a hash."""
    site.user("ann")
    ann = site.client("ann")
    ann.publish("a", b"", 1, expect=0x87)
    other = make_plugin(AccountsPlugin, {"no_match": "abstain", "max_users": 1}, "accounts")
    site.plugin.reconfigure(other.plugin.config)()
    site.harness.settle()
    ann.publish("a", b"", 1, expect=0x87)  # now by authz.default
    assert site.plugin.decisions["no_match"] == 2
    with pytest.raises(AccountError, match="1 users, which is the limit"):
        site.user("bob")
    site.client("other", "ann")


def test_a_new_plugin_object_loads_the_accounts(site: AccountSite) -> None:
    site.user("ann", allow("all"))
    ann = site.client("ann")
    site.harness.reload(plugins=[make_plugin(AccountsPlugin, {}, "accounts")])
    ann.publish("a", b"", 1, expect=0x10)
    site.run(site.manager.delete("user", "ann"))
    ann.expect_disconnect(0x87)


# the store -----------------------------------------------------------------------------------------------------------


def test_accounts_survive_a_restart() -> None:
    store = DurableStore()
    site = AccountSite(store=store)
    site.group("g", allow("publish", topic="a"))
    made = site.user("ann", deny("publish", topic="b", qos=1, retain=True), groups=["g"], note="n")
    site.client("ann").publish("a", b"", 1, expect=0x10)
    site.restart()
    assert site.manager.find("user", "ann") == made
    site.client("ann").publish("a", b"", 1, expect=0x10)


def _spoil(store: DurableStore, key: str, value: bytes) -> None:
    (space, found) = next(one for one in store.plugin_state if one[1] == key)
    record = store.plugin_state[space, found]
    store.plugin_state[space, found] = type(record)(record.space, key, value)


BROKEN = {
    "no JSON": b"{",
    "another type": b"[]",
    "a later format": b'{"format": 2}',
    "deep": b"[" * 100_000,
    "an unknown key": None,
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("kind", ["user", "group"])
def test_a_record_that_cannot_be_read_denies(what: str, kind: str) -> None:
    """Access is denied, because the unreadable record may contain a denial. Other users are not affected."""
    store = DurableStore()
    site = AccountSite(store=store)
    site.group("g", allow("all"))
    site.user("ann", groups=["g"])
    site.user("bob", allow("all"))
    ann = site.client("ann", session_expiry_interval=60)
    ann.subscribe("a", 1)
    key = "user/ann" if kind == "user" else "group/g"
    value = BROKEN[what]
    if value is None:
        (record,) = (one.value for place, one in store.plugin_state.items() if place[1] == key)
        value = json.dumps({**json.loads(record), "denied": True}).encode()
    _spoil(store, key, value)
    site.restart()
    site.client("ann", expect=0x88)
    site.client("bob").publish("a", b"", 1, expect=0)  # ann's subscription waits for a decision
    (told,) = site.harness.logged("accounts.unreadable")
    assert (told["kind"], told["name"]) == tuple(key.split("/"))
    with pytest.raises(AccountError, match="cannot be read"):
        site.run(site.manager.change(kind, key.partition("/")[2], {"note": "x"}))  # type: ignore[arg-type]
    with pytest.raises(AccountError, match="cannot be read"):
        site.run(site.manager.export(True))
    if kind == "user":
        site.run(site.manager.delete("user", "ann"))
        site.client("ann", expect=0x86)
    else:
        site.group("g", allow("all"))
        site.client("ann", clean_start=False)


def test_an_unknown_kind_of_record_refuses_everyone() -> None:
    store = DurableStore()
    site = AccountSite(store=store)
    site.user("ann", allow("all"))
    site.run(site.harness.handle("accounts").state.put("limit/all", b"{}"))
    site.restart()
    site.client("ann", expect=0x88)
    with pytest.raises(AccountError, match="unknown record"):
        site.user("bob")
    with pytest.raises(AccountError, match="unknown record"):
        site.run(site.manager.load({}, True, False))


def test_metrics(site: AccountSite) -> None:
    site.user("ann", allow("publish", topic="a"))
    ann = site.client("ann")
    ann.publish("a", b"", 1, expect=0x10)
    ann.publish("b", b"", 1, expect=0x87)
    site.run(site.manager.delete("user", "ann"))
    assert site.plugin.disconnected == 1
    assert (site.plugin.decisions["allow"], site.plugin.decisions["no_match"]) == (1, 1)
    assert SECRET not in repr(site.plugin.results).encode()
