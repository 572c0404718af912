"""Test simultaneous wrong passwords when the plugin that checks them responds slowly."""

from typing import Any

import pytest
from hookmq.plugin import (
    Accept,
    BrokerHandle,
    ClientInfo,
    Connect,
    Context,
    Deny,
    Peer,
    Plugin,
    Promise,
    ReasonCode,
    Scope,
    hookimpl,
)
from hookmq_ratelimit.login_guard import PATIENCE
from hookmq_ratelimit.plugin import RateLimitPlugin
from hookmq_testing import Harness, make_plugin
from hookmq_testing.client import MemoryClient

PEER = Peer("203.0.113.66")


class Service(Plugin):
    """A plugin that decides on each password only when the test calls `answer`, as a slow HTTP service would."""

    def __init__(self) -> None:
        super().__init__(None, Context("service"))
        self.asked: list[tuple[ClientInfo, bytes, Promise]] = []

    @hookimpl
    async def on_connect(
        self, client: ClientInfo, connect: Connect, broker: BrokerHandle
    ) -> Accept | Deny:
        promise = broker.runtime.promise()
        self.asked.append((client, connect.password or b"", promise))
        await promise
        if connect.password == b"right":
            return Accept(identity=connect.username)
        if connect.password == b"wrong":
            return Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD)
        raise RuntimeError("the service is ill")

    def answer(self, count: int = 1000) -> None:
        """Decide on the oldest `count` passwords."""
        for _ in range(min(count, len(self.asked))):
            promise = self.asked.pop(0)[2]
            if not promise.done():
                promise.set_result(None)


def guess(harness: Harness, number: int, password: bytes, **more: Any) -> MemoryClient:
    more = {"username": f"user-{number}", "peer": PEER, **more}
    return harness.connect(f"client-{number}", password=password, expect=None, **more)


def outcome(client: MemoryClient) -> int | None:
    client.harness.settle()
    return None if client.connack is None else int(client.connack.code)


@pytest.fixture
def service() -> Service:
    return Service()


def limited(*limits: dict[str, Any], **config: Any) -> Any:
    return make_plugin(RateLimitPlugin, {"limits": limits, **config}, "ratelimit")


BY_ADDRESS = {"what": "auth_failures", "rate": "5/min"}
BY_USER = {"what": "auth_failures", "per": "user", "rate": "5/min"}


@pytest.mark.parametrize(("limit", "user"), [(BY_ADDRESS, None), (BY_USER, "alice")])
def test_guesses_at_the_same_time_are_no_more_than_guesses_in_turn(
    service: Service, limit: dict[str, Any], user: str | None
) -> None:
    asked = 0
    more = {} if user is None else {"username": user}
    with Harness([limited(limit), service]) as harness:
        guesses = [guess(harness, number, b"wrong", **more) for number in range(399)]
        guesses.append(guess(harness, 399, b"right", **more))
        while service.asked:
            asked += len(service.asked)
            service.answer(1)
            asked -= len(service.asked)
            harness.settle()
        assert asked == 5
        assert [outcome(one) for one in guesses] == [0x86] * 5 + [0x9F] * 395


@pytest.mark.parametrize("at_once", [1, 3, 5])
def test_right_passwords_behind_one_address_all_come_in(service: Service, at_once: int) -> None:
    with Harness([limited(BY_ADDRESS, BY_USER), service]) as harness:
        fleet = [guess(harness, number, b"right") for number in range(200)]
        while service.asked:
            assert len(service.asked) <= 5
            service.answer(at_once)
            harness.settle()
        assert [outcome(one) for one in fleet] == [0] * 200
        # Nothing of the allowance is used.
        bad = [guess(harness, 1000 + number, b"wrong") for number in range(6)]
        for _ in range(6):
            service.answer()
            harness.settle()
        assert [outcome(one) for one in bad] == [0x86] * 5 + [0x9F]


def test_a_service_that_fails_uses_nothing_up(service: Service) -> None:
    with Harness([limited(BY_ADDRESS), service]) as harness:
        for number in range(20):
            one = guess(harness, number, b"cannot tell")
            service.answer()
            assert outcome(one) == 0x88
        one = guess(harness, 20, b"right")
        service.answer()
        assert outcome(one) == 0


def test_an_attempt_that_waits_too_long_is_refused_and_the_next_is_served(service: Service) -> None:
    with Harness([limited(BY_ADDRESS), service]) as harness:
        first = [guess(harness, number, b"right") for number in range(5)]
        late = guess(harness, 5, b"right")
        assert outcome(late) is None
        harness.advance(PATIENCE)
        assert outcome(late) == 0x9F
        gone, next_ = guess(harness, 6, b"right"), guess(harness, 7, b"right")
        gone.drop()
        service.answer()
        harness.settle()
        assert [outcome(one) for one in first] == [0] * 5
        service.answer()
        assert outcome(next_) == 0


def test_an_attempt_that_leaves_before_the_answer_counts(service: Service) -> None:
    with Harness([limited(BY_ADDRESS), service]) as harness:
        for number in range(5):
            guess(harness, number, b"wrong").drop()
        harness.advance(1)
        late = guess(harness, 5, b"right")
        assert len(service.asked) == 5
        harness.advance(PATIENCE)
        assert outcome(late) == 0x9F
        harness.advance(60)
        assert outcome(guess(harness, 6, b"wrong")) is None
        assert len(service.asked) == 6


def test_a_slow_answer_gives_back_no_more_than_it_holds(service: Service) -> None:
    """If an attempt takes longer than the window, its token has already been refilled and is not
    returned again.
    """
    slow = limited({"what": "auth_failures", "rate": "5/s"})
    with Harness([slow, service]) as harness:
        guess(harness, 0, b"right")
        harness.advance(3)
        bad = [guess(harness, 1 + number, b"wrong") for number in range(5)]
        service.answer(1)  # the right one
        more = [guess(harness, 10 + number, b"wrong") for number in range(3)]
        for _ in range(5):
            service.answer()
            harness.settle()
        assert [outcome(one) for one in bad] == [0x86] * 5
        assert [outcome(one) for one in more] == [0x9F] * 3


def test_a_refusal_before_any_credential_is_not_a_wrong_password(service: Service) -> None:
    with Harness([limited(BY_ADDRESS), service]) as harness:
        first = guess(harness, 100, b"right")
        service.answer()
        assert outcome(first) == 0
        for number in range(20):
            one = guess(harness, number, b"", scope=Scope(identity="common_name"))
            assert outcome(one) == 0x87
        one = guess(harness, 20, b"right")
        service.answer()
        assert outcome(one) == 0
