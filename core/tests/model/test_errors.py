"""Test an error's text and position."""

from hookmq.config.model import loads

SMALL = "version: 1\nlisteners: [{name: tcp}]\n"


def test_an_error_can_be_placed_later() -> None:
    config = loads(SMALL, "f", environ={})
    assert str(config.error_at(("listeners", 0, "tls"), "no")) == "f:2:13: listeners[0].tls: no"
