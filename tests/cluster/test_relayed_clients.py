"""Test clients that one broker relays to another over loopback."""

import asyncio
import os
import ssl
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from hookmq.model.settings import BrokerSettings, SessionSettings, Settings
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Connect, Publish
from hookmq.plugin import Accept, Context, Deny, Plugin, ReasonCode, hookimpl
from hookmq.server.settings import ListenerSettings, TlsSettings
from hookmq_testing import AsyncioClient, will
from relay_nodes import RelayNode, two_nodes

MB = bytes(1_000_000)


@pytest.mark.parametrize("version", [4, 5])
async def test_messages_of_all_qos_pass_in_both_directions(version: int) -> None:
    async with two_nodes() as (a, b):
        local = await AsyncioClient("local", version).connect(b.port())
        relayed = await AsyncioClient("relayed", version).connect(a.port())
        await local.subscribe("up/#", 2)
        await relayed.subscribe("down/#", 2)
        for qos in (0, 1, 2):
            expect = 0 if qos else None
            await relayed.publish("up/x", b"up%d" % qos, qos, expect=expect)
            await local.publish("down/x", b"down%d" % qos, qos, expect=expect)
        for qos in (0, 1, 2):
            up, down = await local.message(), await relayed.message()
            assert (up.payload, up.qos) == (b"up%d" % qos, qos)
            assert (down.payload, down.qos) == (b"down%d" % qos, qos)
        await relayed.ping()
        assert list(b.broker.sessions) == ["local", "relayed"]
        assert not a.broker.sessions
        assert (a.counters.open_out, b.counters.open_in) == (1, 1)
        relayed.disconnect()
        await b.until(lambda: list(b.broker.sessions) == ["local"])
        assert b.runtime.events("client.disconnected")[-1]["by"] == "client"
        await a.until(lambda: not a.broker.connections)
        await b.until(lambda: b.counters.open_in == 0)
        assert a.counters.open_out == 0


async def test_the_owner_sees_the_client_as_it_is() -> None:
    async with two_nodes() as (a, b):
        relayed = await AsyncioClient("relayed").connect(a.port(), local_addr=("127.0.0.2", 0))
        client = b.broker.sessions["relayed"].client
        assert client.peer.host == "127.0.0.2"
        assert client.peer.transport == "tcp"
        assert client.listener == "front"
        assert b.runtime.events("client.connected")[0]["peer"].startswith("127.0.0.2:")
        assert b.server.connections()["front"] == 1
        relayed.disconnect()


async def test_a_session_resumes_through_any_node() -> None:
    async with two_nodes() as (a, b):
        client = AsyncioClient("relayed", session_expiry_interval=600, clean_start=True)
        await client.connect(a.port())
        await client.subscribe("t", 1)
        client.drop()
        await b.until(lambda: b.broker.sessions["relayed"].connection is None)
        local = await AsyncioClient("local").connect(b.port())
        await local.publish("t", b"missed", 1, expect=0)
        await client.wait_closed()
        await client.reconnect()
        assert client.session_present
        assert (await client.message()).payload == b"missed"


async def test_takeover_between_a_relayed_and_a_direct_connection() -> None:
    async with two_nodes() as (a, b):
        options: dict[str, Any] = {"session_expiry_interval": 600, "clean_start": False}
        relayed = await AsyncioClient("relayed", **options).connect(a.port())
        direct = await AsyncioClient("relayed", **options).connect(b.port())
        await relayed.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)
        await relayed.wait_closed()
        assert direct.session_present
        again = await AsyncioClient("relayed", **options).connect(a.port())
        await direct.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)
        third = await AsyncioClient("relayed", **options).connect(a.port())
        await again.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)
        await third.ping()
        await a.until(lambda: len(a.broker.connections) == 1)


async def test_a_refusal_of_the_owner_reaches_the_client() -> None:
    class Refusing(Plugin):
        @hookimpl
        def on_connect(self, connect: Connect) -> Accept | Deny:
            return Accept() if connect.username == "good" else Deny(ReasonCode.BANNED)

    async with two_nodes(b={"plugins": (Refusing(None, Context("refusing")),)}) as (a, _):
        await AsyncioClient("relayed", username="bad").connect(a.port(), expect=0x8A)
        await AsyncioClient("relayed", username="good").connect(a.port())
        await a.until(lambda: len(a.broker.connections) == 1)


async def test_a_will_is_published_if_the_entry_node_drops_the_client() -> None:
    async with two_nodes() as (a, b):
        local = await AsyncioClient("local").connect(b.port())
        await local.subscribe("will")
        relayed = await AsyncioClient("relayed", will=will("will", b"gone")).connect(a.port())
        await a.server.stop()
        assert (await local.message()).payload == b"gone"
        await relayed.wait_closed()


async def test_packets_sent_in_one_go_with_connect_and_disconnect_arrive() -> None:
    async with two_nodes() as (a, b):
        local = await AsyncioClient("local").connect(b.port())
        await local.subscribe("t", 1)
        for count in range(20):
            connect = encode(Connect("relayed", 5, True, 0), 5)
            publish = encode(Publish("t", b"%d" % count), 5)
            reader, writer = await asyncio.open_connection("127.0.0.1", a.port())
            writer.write(connect + publish + b"\xe0\x00")
            writer.close()
            assert (await local.message()).payload == b"%d" % count
            assert await _ended(reader)
        assert b.runtime.events("client.disconnected")[-1]["code"] == "0x00"


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(60):
            await reader.read()
    except ConnectionError:
        pass
    return True


# --- back-pressure ------------------------------------------------------------------------------------------------------


def held(node: RelayNode) -> int:
    """Return how many bytes wait in the node's sockets for its clients and for the other node."""
    streams = node.server.listeners["front"].gate.entered
    found = [getattr(one, "_transport", None) for one in streams]
    found += [one.stream._transport for one in node.entry.clients]
    for connection in node.broker.connections:
        relay = connection.relay
        if relay is not None and relay._relay is not None:
            found.append(relay._relay._stream._transport)  # type: ignore[attr-defined]
    return sum(one.get_write_buffer_size() for one in found if one is not None)


LARGE = Settings(
    broker=BrokerSettings(max_packet_size=2_000_000, max_held_inbound_bytes=1_000_000),
    session=SessionSettings(queue_bytes=64_000_000),
)


async def test_a_client_that_reads_slowly_does_not_fill_the_entry_nodes_memory() -> None:
    async with two_nodes(settings=LARGE) as (a, b):
        relayed = AsyncioClient(
            "relayed", session_expiry_interval=60, maximum_packet_size=2_000_000
        )
        await relayed.connect(a.port())
        await relayed.subscribe("t", 1)
        relayed.pause()
        local = await AsyncioClient("local").connect(b.port())
        most = 0
        for count in range(40):
            await local.publish("t", b"%02d" % count + MB, 1, expect=0)
            most = max(most, held(a))
        assert most < 4_000_000
        relayed.resume()
        for count in range(40):
            message = await relayed.message()
            assert message.payload[:2] == b"%02d" % count
            assert len(message.payload) == 1_000_002


async def test_an_owner_that_reads_slowly_does_not_fill_the_entry_nodes_memory() -> None:
    gate = asyncio.Event()

    class Waiting(Plugin):
        @hookimpl
        async def on_publish(self) -> None:
            await gate.wait()

    async with two_nodes(b={"plugins": (Waiting(None, Context("waiting")),)}, settings=LARGE) as (
        a,
        b,
    ):
        relayed = await AsyncioClient("relayed").connect(a.port())
        await relayed.subscribe("t")
        most = 0
        publish = encode(Publish("t", MB), 5)
        for _ in range(40):
            relayed.raw(publish)
        await b.until(lambda: relayed.unsent > 0 and a.counters.open_out == 1)
        for _ in range(3000):
            await asyncio.sleep(0)
            most = max(most, held(a), held(b))
        assert relayed.unsent > 20_000_000  # the client's own buffer has the rest
        assert most < 2_000_000
        gate.set()
        for _ in range(40):
            assert len((await relayed.message()).payload) == 1_000_000


# --- failures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "code"), [(5, 0x88), (4, 3)])
async def test_an_owner_that_cannot_be_reached_refuses_the_client(
    version: int, code: int, unused_tcp_port: int
) -> None:
    async with two_nodes() as (a, _):
        a.relay_to("b", f"127.0.0.1:{unused_tcp_port}")
        await AsyncioClient("relayed", version).connect(a.port(), expect=code)
        [logged] = a.runtime.events("cluster.relay_failed")
        assert logged["node"] == "b"
        assert logged["address"] == f"127.0.0.1:{unused_tcp_port}"
        assert "refused" in logged["reason"].lower() or "111" in logged["reason"]
        assert a.counters.failed_out == 1
        [refused] = a.runtime.events("connect.refused")
        assert refused["client_id"] == "relayed"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "secret": ({"secret": "other"}, "does not know the secret"),
    "cluster": ({"cluster": "other"}, "does not know the secret"),
    "listener": (
        {"listeners": (ListenerSettings("other", bind="127.0.0.1:0"),)},
        "listener 'front' is not open here",
    ),
    "mount_point": (
        {"listeners": (ListenerSettings("front", bind="127.0.0.1:0", mount_point="m/"),)},
        "mount_point of listener 'front' is 'm/' here, and '' there",
    ),
}


@pytest.mark.parametrize("what", WRONG)
async def test_nodes_that_do_not_fit_refuse_each_other(what: str) -> None:
    options, reason = WRONG[what]
    async with two_nodes(b=options) as (a, b):
        await AsyncioClient("relayed").connect(a.port(), expect=0x88)
        [logged] = a.runtime.events("cluster.relay_failed")
        assert reason in logged["reason"]
        await b.until(lambda: not b.entry.clients)
        assert not b.broker.connections
        assert b.counters.relayed_in == 0


async def test_an_owner_that_has_lost_the_lane_refuses_the_client() -> None:
    async with two_nodes() as (a, b):
        b.lanes.clear()
        await AsyncioClient("relayed").connect(a.port(), expect=0x88)
        [logged] = a.runtime.events("cluster.relay_failed")
        assert logged["reason"] == "refused: lane b is not here"
        [refused] = b.runtime.events("cluster.relay_refused")
        assert refused["peer"] == "a"


async def test_the_owners_limits_hold_for_relayed_clients() -> None:
    front = ListenerSettings("front", bind="127.0.0.1:0", max_connections=1)
    async with two_nodes(b={"listeners": (front,)}) as (a, b):
        first = await AsyncioClient("relayed1").connect(a.port())
        await AsyncioClient("relayed2").connect(a.port(), expect=0x88)
        await first.ping()
        assert b.server.connections()["front"] == 1


async def test_only_relays_to_a_dead_node_are_closed() -> None:
    async with two_nodes() as (a, b):
        relayed = await AsyncioClient("relayed1").connect(a.port())
        a.relay_to("c", b.entry.address, lane="b")  # the same node by another name
        other = await AsyncioClient("relayed2").connect(a.port())
        a.relays.end_to("b")
        await relayed.wait_closed()
        await other.ping()
        other.disconnect()


async def test_the_death_of_the_owner_closes_the_client() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "relay_nodes", "b", "secret",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOOKMQ_BUILD": "pure"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        _, address = (await process.stdout.readline()).decode().split()
        a = RelayNode("a")
        await a.start()
        a.relay_to("b", address)
        relayed = await AsyncioClient("relayed").connect(a.port())
        await relayed.subscribe("t")
        process.kill()
        await relayed.wait_closed()
        await AsyncioClient("relayed").connect(a.port(), expect=0x88)
        assert a.counters.open_out == 0
        assert not a.broker.connections
        await a.stop()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


# --- TLS and WebSocket --------------------------------------------------------------------------------------------------


def server_files(authority: trustme.CA, folder: Path) -> dict[str, str]:
    issued = authority.issue_cert("localhost", "127.0.0.1")
    files = {
        "certificate": folder / "s.pem",
        "key": folder / "s.key",
        "client_ca": folder / "ca.pem",
    }
    issued.cert_chain_pems[0].write_to_path(files["certificate"])
    issued.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["client_ca"])
    return {key: str(path) for key, path in files.items()}


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def context(authority: trustme.CA, name: str = "") -> ssl.SSLContext:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(found)
    if name:
        authority.issue_cert(name, common_name=name).configure_cert(found)
    return found


async def test_the_identity_in_a_client_certificate_arrives(
    authority: trustme.CA, tmp_path: Path
) -> None:
    files: dict[str, Any] = server_files(authority, tmp_path)
    tls = TlsSettings(client_certificates="required", **files)
    front = ListenerSettings(
        "front", "tls", bind="127.0.0.1:0", tls=tls, identity="common_name", close_timeout=2.0
    )
    async with two_nodes(listeners=(front,)) as (a, b):
        relayed = await AsyncioClient("relayed").connect(
            a.port(), ssl=context(authority, "device-7"), server_hostname="localhost"
        )
        client = b.broker.sessions["relayed"].client
        assert client.username == "device-7"
        assert client.peer.transport == "tls"
        certificate = client.peer.certificate
        assert certificate is not None
        assert certificate.common_name == "device-7"
        assert certificate.sans == ("device-7",)
        assert len(certificate.fingerprint) == 64
        await relayed.subscribe("t", 1)
        await relayed.publish("t", MB[:300_000], 1, expect=0)
        assert len((await relayed.message()).payload) == 300_000
        relayed.disconnect()
        await b.until(lambda: not b.broker.sessions)


async def test_a_websocket_client_is_relayed() -> None:
    web = ListenerSettings("front", "ws", bind="127.0.0.1:0", close_timeout=2.0)
    async with two_nodes(listeners=(web,)) as (a, b), aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{a.port()}/mqtt"
        socket = await session.ws_connect(url, protocols=("mqtt",), max_msg_size=0)
        await socket.send_bytes(encode(Connect("relayed", 4, True, 0), 4))
        assert await socket.receive_bytes() == b"\x20\x02\x00\x00"
        assert b.broker.sessions["relayed"].client.peer.transport == "ws"
        await socket.send_bytes(b"\x82\x06\x00\x01\x00\x01t\x00")
        assert await socket.receive_bytes() == b"\x90\x03\x00\x01\x00"
        await socket.send_bytes(encode(Publish("t", MB), 4))
        received = b""
        while len(received) < 1_000_007:
            received += await socket.receive_bytes()
        assert received.endswith(MB)
        await socket.send_bytes(b"\xe0\x00")
        await socket.close()
        await b.until(lambda: not b.broker.sessions)


async def test_nodes_may_use_tls_between_them(authority: trustme.CA) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    async with two_nodes(a={"tls_out": context(authority)}, b={"tls": server}, settings=LARGE) as (
        a,
        b,
    ):
        relayed = await AsyncioClient("relayed").connect(a.port())
        await relayed.subscribe("t", 2)
        for _ in range(5):
            await relayed.publish("t", MB, 2, expect=0)
        for _ in range(5):
            assert (await relayed.message()).payload == MB
        relayed.disconnect()
        await b.until(lambda: not b.broker.sessions)


async def test_a_node_without_a_trusted_certificate_gets_no_client(authority: trustme.CA) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(server)
    async with two_nodes(a={"tls_out": context(authority)}, b={"tls": server}) as (a, b):
        await AsyncioClient("relayed").connect(a.port(), expect=0x88)
        [logged] = a.runtime.events("cluster.relay_failed")
        assert "certificate" in logged["reason"].lower()
        assert b.counters.relayed_in == 0
