"""Test claims that several plugins make about one client. The first one wins, and plugins cannot overwrite each other's
notes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hookmq.hooks.verdicts import Accept
from hookmq.mqtt.packets import Auth
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import DurableStore, Harness, HookRecorder

Make = Callable[..., Harness]


def known(harness: Harness) -> Mapping[str, Any]:
    return harness.broker.sessions["c"].client.claims


def two(
    make: Make, first: dict[str, Any] | None, second: dict[str, Any] | None, **options: Any
) -> tuple[Harness, HookRecorder]:
    one, other = (
        HookRecorder("on_connect", "on_auth", id="one"),
        HookRecorder("on_connect", id="two"),
    )
    one.answer("on_connect", Accept("x", first))
    one.answer("on_auth", Accept("x", first))
    other.answer("on_connect", Accept("y", second))
    return make([one, other], **options), one


@pytest.mark.parametrize(
    ("first", "second", "claims"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1}),
        ({}, {"b": 2}, {}),
        ({"a": 1}, {"b": 2, "hookmq:two": {"c": 3}}, {"a": 1, "hookmq:two": {"c": 3}}),
        ({}, {"b": 2, "hookmq:two": 0}, {"hookmq:two": 0}),
        ({"hookmq:one": 1}, {"hookmq:two": 2}, {"hookmq:one": 1, "hookmq:two": 2}),
        ({"a": 1}, {}, {"a": 1}),
        ({"a": 1}, None, {"a": 1}),
        (None, {"b": 2}, {"b": 2}),
        (None, None, {}),
    ],
)
@pytest.mark.parametrize("method", [None, "m"])
def test_the_first_to_give_claims_is_believed_and_notes_are_kept(
    broker_harness: Make,
    first: dict[str, Any] | None,
    second: dict[str, Any] | None,
    claims: dict[str, Any],
    method: str | None,
) -> None:
    harness, _ = two(broker_harness, first, second)
    harness.connect("c", authentication_method=method)
    assert known(harness) == claims


@pytest.mark.parametrize("method", [None, "m"])
def test_a_note_is_its_plugins_own(broker_harness: Make, method: str | None) -> None:
    """Only the plugin that owns a note can set it. Otherwise, a token could forge the permissions that an authorization
    service grants.
    """
    mine = {"hookmq:one": 1, "hookmq:two": "forged", "hookmq:": 0, "role": "x"}
    harness, _ = two(broker_harness, mine, {"hookmq:two": 2, "hookmq:one": "forged"})
    harness.connect("c", authentication_method=method)
    assert known(harness) == {"hookmq:one": 1, "hookmq:two": 2, "role": "x"}


def test_notes_of_others_outlive_re_authentication(broker_harness: Make) -> None:
    harness, one = two(
        broker_harness,
        {"role": "x", "hookmq:one": 1},
        {"b": 2, "hookmq:two": 2},
        store=DurableStore(),
    )
    client = harness.connect("c", authentication_method="m", session_expiry_interval=100)
    one.answer("on_auth", Accept("x", {"role": "y", "hookmq:two": "forged"}))
    client.send(Auth(ReasonCode.RE_AUTHENTICATE, Properties(authentication_method="m")))
    assert client.expect(Auth).code == 0
    # The old role is gone, and so is the old claim of the plugin that accepted the re-authentication.
    assert known(harness) == {"role": "y", "hookmq:two": 2}
    harness.restart()
    assert known(harness) == {"role": "y", "hookmq:two": 2}
