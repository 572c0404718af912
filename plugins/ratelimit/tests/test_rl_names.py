"""Test unverified user names. A client that authenticates with a token in the password can send any user name."""

from typing import Any

import pytest
from hookmq.plugin import (
    Accept,
    ClientInfo,
    Connect,
    Context,
    Deny,
    Peer,
    Plugin,
    ReasonCode,
    hookimpl,
)
from hookmq_ratelimit.plugin import RateLimitPlugin
from hookmq_testing import Harness, make_plugin

BAD = Peer("203.0.113.66")
GOOD = Peer("192.0.2.7")
FLAPS = {"broker": {"flapping_takeovers": 1000}}


def limited(*limits: dict[str, Any], **config: Any) -> Any:
    return make_plugin(RateLimitPlugin, {"limits": limits, **config}, "ratelimit")


class Door(Plugin):
    """A plugin that accepts a token with any user name, or the right password for the user."""

    def __init__(self) -> None:
        super().__init__(None, Context("door"))

    @hookimpl
    def on_connect(self, connect: Connect) -> Accept | Deny:
        kind, _, name = (connect.password or b"").decode().partition(":")
        if kind == "token":
            return Accept(identity=name)
        if kind == "right":
            return Accept(identity=connect.username)
        return Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD)


@pytest.mark.parametrize("per", ["user", "client"])
@pytest.mark.parametrize("username", ["alice", None])
def test_nobody_has_another_banned_by_using_his_names(per: str, username: str | None) -> None:
    plugin = limited({"per": per, "rate": "1/h", "mode": "reject"}, ban={"after": "2/min"})
    with Harness([plugin, Door()], config={"session": {"other_owner": "replace"}}) as harness:
        mallory = harness.connect("device", username=username, password=b"token:mallory")
        for _ in range(8):
            mallory.publish("t")
        assert mallory.closed
        harness.connect("device", username="alice", password=b"right")
        harness.connect("device", password=b"token:alice")
        # A banned client stays banned, regardless of its user name.
        for name in (username, "bob"):
            again = harness.connect("device", username=name, password=b"token:mallory")
            again.expect_disconnect(ReasonCode.MESSAGE_RATE_TOO_HIGH)
        harness.advance(301)
        assert not harness.connect("device", password=b"token:mallory").closed


def test_flapping_under_anothers_names() -> None:
    plugin = limited(flapping={"after": "2/min", "duration": 30})
    with Harness([plugin, Door()], config=FLAPS) as harness:
        for _ in range(4):
            mallory = harness.connect("device", username="alice", password=b"token:mallory")
        mallory.expect_disconnect(ReasonCode.MESSAGE_RATE_TOO_HIGH)
        harness.connect("device", username="alice", password=b"right")


def test_another_identity_under_a_user_name_does_not_free_its_address() -> None:
    plugin = limited({"what": "auth_failures", "per": "user", "rate": "3/h"})
    with Harness([plugin, Door()]) as harness:
        harness.connect("m", username="alice", password=b"token:mallory", peer=BAD)
        told = [
            harness.connect("g", username="alice", password=b"wrong", peer=BAD, expect=None)
            for _ in range(9)
        ]
        codes = [one.connack.code for one in told if one.connack]
        assert codes == [0x86] * 3 + [0x9F] * 6
        # The owner's is.
        harness.connect(
            "a", username="alice", password=b"right", peer=Peer("192.0.2.9"), expect=0x9F
        )
        harness.advance(2000)
        harness.connect("a", username="alice", password=b"right", peer=GOOD)
        harness.connect("g", username="alice", password=b"wrong", peer=BAD, expect=None)
        harness.connect("a", username="alice", password=b"right", peer=GOOD)


class Named(Plugin):
    """A plugin that learns the real user name only during authentication, as if the client had sent a token as its
    name.
    """

    def __init__(self) -> None:
        super().__init__(None, Context("named"))

    def hides_username(self, username: str) -> bool:
        return True

    @hookimpl
    def on_connect(self, client: ClientInfo, connect: Connect) -> Accept:
        client.username = str(connect.username).partition(".")[0]
        return Accept(identity=client.username)


@pytest.mark.parametrize("per", ["user", "client"])
def test_a_ban_applies_to_the_identity_and_not_to_the_user_name(per: str) -> None:
    plugin = limited({"per": per, "rate": "1/h", "mode": "reject"}, ban={"after": "2/min"})
    with Harness([plugin, Named()]) as harness:
        client = harness.connect("device", username="mallory.secret")
        for _ in range(8):
            client.publish("t")
        assert client.closed
        assert "secret" not in repr([ban.key for ban in plugin.plugin.bans.all(0)])
        again = harness.connect("device", username="mallory.other")
        again.expect_disconnect(ReasonCode.MESSAGE_RATE_TOO_HIGH)
        assert not harness.connect("device", username="alice.x").closed


def test_bans_of_identities_are_listed() -> None:
    plugin = limited({"per": "user", "rate": "1/h", "mode": "reject"}, ban={"after": "2/min"})
    with Harness([plugin, Door()]) as harness:
        mallory = harness.connect("device", username="alice", password=b"token:mallory")
        for _ in range(8):
            mallory.publish("t")
        [ban] = plugin.plugin.bans.all(harness.clock.now())
        assert ban.key == ("identity", "mallory", "")
        plugin.plugin.unban(ban.id)
        assert not harness.connect("device", password=b"token:mallory").closed
