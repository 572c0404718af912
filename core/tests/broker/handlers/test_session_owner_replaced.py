"""Test ``session.other_owner: replace``. If another user's client connects with the same client id, it ends the session
and inherits nothing.

`test_session_owner` covers the default, which refuses such a client.
"""

from collections.abc import Callable

import pytest
from hookmq.hooks.verdicts import Accept, Deny
from hookmq.model.events import Action, SessionEvent
from hookmq.mqtt.packets import Auth
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient, will

Make = Callable[..., Harness]
REPLACE = {"session": {"other_owner": "replace"}}
VERSIONS = pytest.mark.parametrize("version", [4, 5])


@pytest.fixture
def recorder() -> HookRecorder:
    return HookRecorder("on_connect", "on_auth", "authorize", "on_session")


def come(
    harness: Harness, recorder: HookRecorder, identity: str | None, **options: object
) -> MemoryClient:
    recorder.answer("on_connect", Accept(identity))
    options = {"version": 5, "clean_start": False, "auto_ack": False} | options
    if options["version"] == 5:
        options.setdefault("session_expiry_interval", 100)
    return harness.connect("c", **options)  # type: ignore[arg-type]


@VERSIONS
def test_another_user_gets_no_messages_of_the_replaced_session(
    broker_harness: Make, recorder: HookRecorder, version: int
) -> None:
    harness = broker_harness([recorder], config=REPLACE)
    owner = come(harness, recorder, "owner", version=version)
    owner.subscribe("secret/#", 1)
    recorder.answer("on_connect", Accept("sender"))
    sender = harness.connect("sender")
    sender.publish("secret/inflight", b"a", 1, expect=0)
    owner.expect_message("secret/inflight")
    owner.drop()
    sender.publish("secret/queued", b"b", 1, expect=0)
    other = come(harness, recorder, "other", version=version)
    assert not other.session_present
    other.expect_nothing()
    sender.publish("secret/later", b"c", 1, expect=0x10)
    other.expect_nothing()
    assert not harness.broker.sessions["c"].subscriptions
    # The old session is lost for its owner too: there is only one session per client id.
    again = come(harness, recorder, "owner", version=version)
    assert not again.session_present
    again.expect_nothing()


@VERSIONS
def test_a_connected_client_is_taken_over_but_not_its_session(
    broker_harness: Make, recorder: HookRecorder, version: int
) -> None:
    harness = broker_harness([recorder], config=REPLACE)
    owner = come(harness, recorder, "owner", version=version)
    owner.subscribe("secret/#", 1)
    other = come(harness, recorder, "other", version=version)
    owner.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)
    assert not other.session_present
    recorder.answer("on_connect", Accept("sender"))
    harness.connect("sender").publish("secret/x", b"x", 1, expect=0x10)
    other.expect_nothing()


@pytest.mark.parametrize("username", [None, "u"])
def test_the_same_user_resumes_it(
    broker_harness: Make, recorder: HookRecorder, username: str | None
) -> None:
    harness = broker_harness([recorder], config=REPLACE)
    come(harness, recorder, "owner", username="one").drop()
    assert come(harness, recorder, "owner", username=username).session_present


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ((None, "ann"), (None, "ann"), True),
        ((None, "ann"), ("ann", None), True),
        ((None, "ann"), (None, "bob"), False),
        ((None, "ann"), (None, None), False),
        ((None, None), (None, "bob"), False),
        ((None, None), (None, None), True),
        (("ann", "x"), (None, "x"), False),
        (("", "ann"), (None, "ann"), False),
    ],
)
def test_without_an_identity_the_user_name_owns_the_session(
    broker_harness: Make,
    recorder: HookRecorder,
    before: tuple[str | None, str | None],
    after: tuple[str | None, str | None],
    same: bool,
) -> None:
    harness = broker_harness([recorder], config=REPLACE)
    come(harness, recorder, before[0], username=before[1]).drop()
    assert come(harness, recorder, after[0], username=after[1]).session_present is same


def test_the_will_of_the_session_that_ends_is_its_owners(
    broker_harness: Make, recorder: HookRecorder
) -> None:
    harness = broker_harness([recorder], config=REPLACE)
    watcher = harness.connect("watcher")
    watcher.subscribe("w", 0)
    come(harness, recorder, "owner", will=will("w", b"late", delay=50)).drop()
    watcher.expect_nothing()
    recorder.clear()
    come(harness, recorder, "other", will=will("w", b"mine", delay=50))
    watcher.expect_message("w", b"late")
    asked = [c.client.identity for c in recorder.calls("authorize") if c.action is Action.WILL]
    assert asked == ["other", "owner"]


def test_a_refused_client_does_not_end_the_session(
    broker_harness: Make, recorder: HookRecorder
) -> None:
    harness = broker_harness([recorder], config=REPLACE)
    come(harness, recorder, "owner").drop()
    recorder.answer("on_connect", Deny())
    harness.connect("c", clean_start=False, expect=ReasonCode.NOT_AUTHORIZED)
    assert come(harness, recorder, "owner").session_present


def test_observers_are_told_of_the_end_as_the_owners(
    broker_harness: Make, recorder: HookRecorder
) -> None:
    harness = broker_harness([recorder], config=REPLACE)
    come(harness, recorder, "owner").drop()
    recorder.clear()
    come(harness, recorder, "other")
    harness.settle()
    told = [(c.client.identity, c.event) for c in recorder.calls("on_session")]
    assert told == [("owner", SessionEvent.ENDED), ("other", SessionEvent.CREATED)]


def test_also_after_a_restart(broker_harness: Make, recorder: HookRecorder) -> None:
    harness = broker_harness([recorder], config=REPLACE, store=DurableStore())
    come(harness, recorder, "owner").subscribe("secret", 1)
    harness.restart()
    recorder.answer("on_connect", Accept("sender"))
    harness.connect("sender").publish("secret", b"x", 1)
    other = come(harness, recorder, "other")
    assert not other.session_present
    other.expect_nothing()


def test_re_authentication_as_another_user_transfers_the_session(
    broker_harness: Make, recorder: HookRecorder
) -> None:
    """If a client reauthenticates as another user, the session is transferred to that user, including in the store."""
    harness = broker_harness([recorder], config=REPLACE, store=DurableStore())
    recorder.answer("on_auth", Accept("first"))
    client = harness.connect("c", authentication_method="m", session_expiry_interval=100)
    recorder.answer("on_auth", Accept("second", {"a": 1}))
    client.send(Auth(ReasonCode.RE_AUTHENTICATE, Properties(authentication_method="m")))
    assert client.expect(Auth).code == 0
    harness.restart()
    session = harness.broker.sessions["c"]
    assert (session.client.identity, session.client.claims) == ("second", {"a": 1})
    assert come(harness, recorder, "second").session_present
