"""Test the status of clients after a connect, a lost connection, a takeover, a will and a restart. Also test with real
clients.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq_presence.plugin import PresencePlugin, encoded
from hookmq_testing import DurableStore, Harness, MemoryClient, make_plugin, will
from hookmq_testing.contracts import PluginContract
from hypothesis import given
from hypothesis import strategies as st
from recording import V5, Client
from serving import serving

Make = Callable[..., Harness]


class TestContract(PluginContract):
    kind = PresencePlugin
    use = "presence"
    configs = (
        {},
        {"topic": "$presence/%c/status", "durable": True, "details": True, "offline_expiry": "1h"},
    )
    bad_configs = (
        {"topic": ""},
        {"topic": "presence"},
        {"topic": "presence/x%c"},
        {"topic": "presence/%u"},
        {"topic": "%c/%c"},
        {"topic": "presence/+/%c"},
        {"topic": "$SYS/%c"},
    )


@pytest.fixture
def make(broker_harness: Callable[..., Harness]) -> Make:
    def build(store: DurableStore | None = None, **config: Any) -> Harness:
        plugin = make_plugin(PresencePlugin, config, "presence")
        return broker_harness([plugin], store=store)

    return build


def status(client: MemoryClient, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(client.expect_message(topic).payload)
    return found


@pytest.fixture
def watched(make: Make) -> tuple[Harness, MemoryClient]:
    harness = make()
    watcher = harness.connect("watcher", keep_alive=0)
    watcher.subscribe("presence/+", 1)
    assert status(watcher, "presence/watcher")["status"] == "online"
    return harness, watcher


def test_connected_and_disconnected(watched: tuple[Harness, MemoryClient]) -> None:
    harness, watcher = watched
    client = harness.connect("c")
    online = status(watcher, "presence/c")
    assert online == {"status": "online", "client_id": "c", "at": harness.clock.time()}
    client.disconnect()
    offline = status(watcher, "presence/c")
    assert (offline["status"], offline["reason"], offline["code"]) == ("offline", "client", 0)


def test_a_lost_connection(watched: tuple[Harness, MemoryClient]) -> None:
    harness, watcher = watched
    client = harness.connect("c", will=will("wills/c", b"gone"))
    status(watcher, "presence/c")
    client.drop()
    assert status(watcher, "presence/c")["reason"] == "network"


def test_a_takeover_is_never_offline(watched: tuple[Harness, MemoryClient]) -> None:
    harness, watcher = watched
    for _ in range(2):
        harness.connect("c")
        assert status(watcher, "presence/c")["status"] == "online"
    watcher.expect_nothing()


def test_it_is_retained(make: Make) -> None:
    harness = make()
    harness.connect("c").drop()
    watcher = harness.connect("watcher")
    watcher.subscribe("presence/c")
    found = watcher.expect_message("presence/c")
    assert found.retain
    assert json.loads(found.payload)["status"] == "offline"


def test_an_offline_status_expires_if_asked(make: Make) -> None:
    harness = make(offline_expiry="60s")
    watcher = harness.connect("watcher", keep_alive=0)
    harness.connect("gone").drop()
    harness.advance(61)
    watcher.subscribe("presence/+")
    assert status(watcher, "presence/watcher")["status"] == "online"
    watcher.expect_nothing()


def test_clients_cannot_publish_it(watched: tuple[Harness, MemoryClient]) -> None:
    harness, watcher = watched
    watcher.publish("presence/c", b"forged", 1, expect=0x87)
    client = harness.connect("d", will=will("presence/c", b"forged"), expect=None)
    assert client.connack is not None
    assert client.connack.code == 0x87
    watcher.expect_nothing()


@pytest.mark.parametrize("durable", [False, True])
def test_a_restart(make: Make, durable: bool) -> None:
    store = DurableStore()
    harness = make(store, durable=durable)
    harness.connect("c")
    harness.restart()  # a crash: `c` cannot say goodbye
    harness = make(store, durable=durable)
    watcher = harness.connect("watcher")
    watcher.subscribe("presence/c")
    if durable:
        found = status(watcher, "presence/c")
        assert (found["status"], found["reason"]) == ("offline", "restart")
    watcher.expect_nothing()


def test_client_ids_that_are_too_long_do_not_stop_the_others(
    watched: tuple[Harness, MemoryClient],
) -> None:
    harness, watcher = watched
    for number in range(25):
        harness.connect("%" * 30_000 + str(number)).disconnect()
    harness.connect("good")
    assert status(watcher, "presence/good")["status"] == "online"


def test_details_only_if_asked(make: Make) -> None:
    harness = make(details=True)
    watcher = harness.connect("watcher", username="ann")
    watcher.subscribe("presence/+")
    found = status(watcher, "presence/watcher")
    assert found["username"] == "ann"
    assert found["listener"] == "default"
    assert found["address"]


@given(st.text(min_size=1).filter(lambda text: "\0" not in text))
def test_every_client_id_is_one_level(client_id: str) -> None:
    from urllib.parse import unquote

    level = encoded(client_id)
    assert not set("/+#") & set(level)
    assert unquote(level) == client_id


def test_a_broker_process_with_real_clients(tmp_path: Path) -> None:
    config = tmp_path / "hookmq.yaml"
    config.write_text(
        "version: 1\n"
        'listeners: [{name: tcp, type: tcp, bind: "127.0.0.1:0"}]\n'
        "auth: {default: allow}\n"
        "authz: {default: allow}\n"
        "plugins: [{use: presence}]\n"
    )
    with (
        serving("-c", str(config)) as served,
        Client(served.ports["tcp"], "watcher", V5) as watcher,
    ):
        assert watcher.subscribe("presence/device", 1) == 1
        with Client(served.ports["tcp"], "device", V5):
            assert json.loads(bytes(watcher.message().payload))["status"] == "online"
        assert json.loads(bytes(watcher.message().payload))["status"] == "offline"
