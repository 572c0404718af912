"""Test that a session belongs to its user and to the realm that authenticated the user. No other client can take it
over or end it.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Accept
from hookmq.model.client import Certificate, Peer, Scope
from hookmq.mqtt.packets import Auth
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.records import PutSession
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient

Make = Callable[..., Harness]
REFUSED = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
ANN = Peer("192.0.2.1", 1, "tls", Certificate(common_name="ann"))
CERTIFICATES = Scope("gateways", identity="common_name")
OTHER_CERTIFICATES = Scope("devices", identity="common_name")
APPS = Scope("apps")
WS = Scope("ws")


class Realms:
    """A broker with two plugins, each of which authenticates some of the clients."""

    def __init__(self, make: Make, **options: Any) -> None:
        self.one = HookRecorder("on_connect", "on_auth", id="one")
        self.two = HookRecorder("on_connect", id="two")
        self.harness = make([self.one, self.two], **options)

    def come(
        self, scope: Scope, one: Accept | None, two: Accept | None = None, **options: Any
    ) -> MemoryClient:
        """Connect a client with the id ``c``. `one` and `two` are the verdicts of the two plugins."""
        self.one.answer("on_connect", one)
        self.two.answer("on_connect", two)
        options = {"clean_start": False, "session_expiry_interval": 600} | options
        return self.harness.connect("c", scope=scope, **options)


CASES = [
    # the same user, authenticated by the same plugin, on any listener
    ((APPS, Accept("ann"), None), (WS, Accept("ann"), None), True),
    # the same name, authenticated by another plugin
    ((APPS, Accept("ann"), None), (APPS, None, Accept("ann")), False),
    # what counts is the plugin that provided the identity, not the first plugin that accepted
    ((APPS, Accept(), Accept("ann")), (APPS, None, Accept("ann")), True),
    ((APPS, Accept(), Accept("ann")), (APPS, Accept("ann"), None), False),
    # a listener that takes the name from a certificate authenticates the client, with or without a plugin
    ((CERTIFICATES, Accept("ann"), None), (APPS, Accept("ann"), None), False),
    ((CERTIFICATES, None, None), (APPS, Accept("ann"), None), False),
    ((CERTIFICATES, None, None), (CERTIFICATES, Accept("ann"), None), True),
    ((CERTIFICATES, None, None), (OTHER_CERTIFICATES, None, None), False),
    # another user in the same realm
    ((APPS, Accept("ann"), None), (APPS, Accept("bob"), None), False),
    # the new client is not authenticated
    ((APPS, Accept("ann"), None), (APPS, None, None), False),
]


def told(scope: Scope) -> dict[str, Any]:
    return {"peer": ANN, "username": "ann"} if scope.identity else {"username": "ann"}


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize(("owner", "other", "same"), CASES)
def test_only_its_owner_comes_into_a_session(
    broker_harness: Make, owner: Any, other: Any, same: bool, clean: bool, online: bool
) -> None:
    realms = Realms(broker_harness)
    client = realms.come(*owner, **told(owner[0]))
    client.subscribe("t", 1)
    if not online:
        client.drop()
    if same:
        again = realms.come(*other, **told(other[0]), clean_start=clean)
        assert again.session_present is not clean
        return
    realms.come(*other, **told(other[0]), clean_start=clean, expect=REFUSED)
    assert client.closed is not online
    if not online:
        client = realms.come(*owner, **told(owner[0]))
        assert client.session_present
    realms.one.answer("on_connect", Accept("publisher"))
    realms.harness.connect("publisher").publish("t", b"x", 1)
    client.expect_message("t", b"x")
    [refused] = realms.harness.logged("connect.refused")
    assert refused["reason"] == "client id belongs to another client"


def test_mqtt_3_is_told_that_the_identifier_is_rejected(broker_harness: Make) -> None:
    realms = Realms(broker_harness)
    realms.come(APPS, Accept("ann"))
    realms.one.answer("on_connect", Accept("bob"))
    realms.harness.connect("c", 4, clean_start=False, expect=2)


@pytest.mark.parametrize(("owner", "other", "same"), CASES)
def test_also_after_a_restart(broker_harness: Make, owner: Any, other: Any, same: bool) -> None:
    realms = Realms(broker_harness, store=DurableStore())
    realms.come(*owner, **told(owner[0]))
    realms.harness.restart()
    again = realms.come(*other, **told(other[0]), expect=0 if same else REFUSED)
    assert not same or again.session_present


def test_a_session_that_nobody_vouched_for_is_not_protected(broker_harness: Make) -> None:
    """A client that no plugin authenticated does not own its session. Otherwise, it could block
    another client by taking its client id first.
    """
    realms = Realms(broker_harness)
    guest = realms.come(APPS, None, username="ann")
    client = realms.come(APPS, Accept("ann"))
    guest.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)
    assert not client.session_present


def test_a_session_whose_time_is_over_is_not_protected(broker_harness: Make) -> None:
    store = DurableStore()
    realms = Realms(broker_harness, store=store)
    realms.come(APPS, Accept("ann")).drop()
    later = Realms(broker_harness, store=store, start=False)
    later.harness.clock.advance(601)
    later.harness.start()
    assert not later.come(APPS, Accept("bob")).session_present


@pytest.mark.parametrize(
    ("realm", "listener", "plugin"),
    [("vouched", True, False), ("listener", False, True), ("none", True, True)],
)
def test_session_realm_decides_who_may_resume_a_session(
    broker_harness: Make, realm: str, listener: bool, plugin: bool
) -> None:
    """The setting `session.realm` decides whether another listener or plugin belongs to the same realm."""
    realms = Realms(broker_harness, config={"session": {"realm": realm}})
    realms.come(APPS, Accept("ann")).drop()
    realms.come(WS, Accept("ann"), expect=0 if listener else REFUSED).drop()
    realms.come(APPS, None, Accept("ann"), expect=0 if plugin else REFUSED)


def test_a_session_stored_by_an_earlier_version_keeps_to_its_listener(broker_harness: Make) -> None:
    """A session stored by an earlier version belongs to its listener, because that version did not record which plugin
    authenticated the client.
    """
    store = DurableStore()
    realms = Realms(broker_harness, store=store)
    realms.come(APPS, Accept("ann")).drop()
    record = store.sessions["c"].session
    old = record._replace(client=record.client._replace(vouched_by=None))
    store.sessions["c"] = PutSession(old)
    realms.harness.restart()
    realms.come(WS, Accept("ann"), expect=REFUSED)
    assert realms.come(APPS, None, Accept("ann")).session_present


def test_enhanced_authentication_vouches(broker_harness: Make) -> None:
    realms = Realms(broker_harness)
    realms.one.answer("on_auth", Accept("ann"))
    realms.come(APPS, None, Accept("x"), authentication_method="m").drop()
    assert realms.harness.broker.sessions["c"].client.vouched_by == "plugin:one"
    realms.come(APPS, None, Accept("ann"), expect=REFUSED)
    assert realms.come(APPS, Accept("ann")).session_present


@pytest.mark.parametrize(("identity", "vouched_by"), [("ann", "plugin:two"), ("eve", "plugin:one")])
def test_re_authentication_as_another_user_is_another_voucher(
    broker_harness: Make, identity: str, vouched_by: str
) -> None:
    realms = Realms(broker_harness, store=DurableStore())
    realms.one.answer("on_auth", Accept())
    client = realms.come(APPS, None, Accept("ann"), authentication_method="m")
    assert realms.harness.broker.sessions["c"].client.vouched_by == "plugin:two"
    realms.one.answer("on_auth", Accept(identity))
    client.send(Auth(ReasonCode.RE_AUTHENTICATE, Properties(authentication_method="m")))
    assert client.expect(Auth).code == 0
    realms.harness.restart()
    assert realms.harness.broker.sessions["c"].client.vouched_by == vouched_by
