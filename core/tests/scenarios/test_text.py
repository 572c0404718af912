"""Test `broker.text`, which decides whether strings may contain control characters and non-characters. Section 1.5.4
allows a receiver to refuse them.
"""

from collections.abc import Callable

import pytest
from hookmq_testing import Harness, will

Make = Callable[..., Harness]
UNWANTED = [
    "\x01", "\t", "\n", "\x1b", "\x1f", "\x7f", "\x85", "\x9f", "\ufdd0", "\ufdef", "\ufffe", "\uffff",
    "\U0001fffe", "\U0010ffff",
]  # fmt: skip
WANTED = [
    " ", "~", "\xa0", "\u00ad", "\u200b", "\u2028", "\ue000", "\ufdcf", "\ufdf0", "\ufeff", "\ufffd", "\U0001f41d",
]  # fmt: skip


@pytest.mark.parametrize("letter", UNWANTED)
def test_they_are_refused_in_every_string(broker_harness: Make, letter: str) -> None:
    harness = broker_harness()
    text = f"a{letter}b"
    harness.connect(text, expect=0x81)
    harness.connect("c", username=text, expect=0x81)
    harness.connect("c", will=will(text), expect=0x81)
    harness.connect("c", user_property=((text, ""),), expect=0x81)
    for qos in (0, 1):
        client = harness.connect("c")
        client.publish(text, b"", qos)
        client.expect_disconnect(0x81)
    client = harness.connect("c")
    client.publish("t", b"", 1, user_property=(("k", text),))
    client.expect_disconnect(0x81)
    old = harness.connect("c", 4)
    old.publish(text)
    old.expect_closed()


@pytest.mark.parametrize("letter", WANTED)
def test_all_others_are_taken(broker_harness: Make, letter: str) -> None:
    harness = broker_harness()
    text = f"a{letter}b"
    client = harness.connect(text, username=text)
    client.subscribe(text, 1)
    client.publish(text, b"x", 1, user_property=((text, text),))
    client.expect_message(text, b"x")


@pytest.mark.parametrize("letter", UNWANTED)
def test_tolerant_takes_them(broker_harness: Make, letter: str) -> None:
    harness = broker_harness(config={"broker": {"text": "tolerant"}})
    text = f"a{letter}b"
    client = harness.connect(text, username=text)
    client.subscribe(text, 1)
    client.publish(text, b"x", 1)
    client.expect_message(text, b"x")
