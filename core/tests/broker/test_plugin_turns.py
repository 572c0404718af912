"""Test the turns of plugin clients. All turns run in a single runtime call and stay in order, no matter what any one
client does.
"""

from typing import Any

import hookmq
import pytest
from hookmq.broker.plugin_turns import PluginTurns
from hookmq.plugin import ClientRequest
from hookmq_testing import Harness, HookRecorder
from hookmq_testing.runtime import VirtualRuntime


class Client:
    """A client that records its turns. It calls `then` in its first turn."""

    def __init__(self, name: str, notes: list[str], then: Any = None) -> None:
        self.name = name
        self.notes = notes
        self.then = then

    def take_turn(self) -> None:
        self.notes.append(self.name)
        then, self.then = self.then, None
        if then is not None:
            then()


def failing() -> None:
    raise ValueError("broken")


@pytest.mark.skipif(hookmq.BUILD.kind != "pure", reason="compiled code takes no other class")
def test_a_turn_that_fails_does_not_take_the_others() -> None:
    runtime = VirtualRuntime()
    turns: Any = PluginTurns(runtime)
    notes: list[str] = []
    again = Client("again", notes)
    again.then = lambda: turns.add(again)
    for client in (again, Client("a", notes, failing), Client("b", notes), Client("c", notes)):
        turns.add(client)
    with pytest.raises(ValueError, match="broken"):
        runtime.run_until_idle()
    runtime.run_until_idle()
    assert notes == ["again", "a", "b", "c", "again"]


def test_all_clients_have_their_turn_in_one_call() -> None:
    with Harness([HookRecorder("on_event", id="gw")]) as harness:
        broker, run = harness.handle("gw"), harness.clock.run
        subscriber = harness.connect("subscriber")
        subscriber.subscribe("#", 1)
        clients = [run(broker.connect(ClientRequest(f"c{number}"))) for number in range(50)]
        calls: list[Any] = []
        call_soon = harness.clock.call_soon
        harness.clock.call_soon = lambda call: (calls.append(call), call_soon(call))  # type: ignore
        for client in clients:
            client.publish_later(f"t/{client.client_id}", b"x")
        assert len(calls) == 1
        harness.settle()
        assert [one.topic for one in subscriber.messages] == [
            f"t/c{number}" for number in range(50)
        ]
