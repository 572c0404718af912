"""Test the client over a network connection, with a real broker or with a scripted server that can
misbehave.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, TypeVar

import pytest
from hookmq.broker import Broker
from hookmq.model.settings import AuthSettings, AuthzSettings, BrokerSettings, Settings
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    SubscribeRequest,
)
from hookmq.mqtt.properties import Properties
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.server import Server
from hookmq.server.settings import ListenerSettings
from hookmq_testing import AsyncioClient, LoopThread, will
from hookmq_testing.decoder import Decoder

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])
P = TypeVar("P")
Wait = Callable[..., Any]


@asynccontextmanager
async def broker(port: int = 0, auth: Literal["allow", "deny"] = "allow") -> AsyncIterator[int]:
    """Run a broker with one TCP listener and yield its port."""
    runtime = AsyncioRuntime()
    made = Settings(
        broker=BrokerSettings(shutdown_timeout=2.0),
        auth=AuthSettings(auth),
        authz=AuthzSettings("allow"),
    )
    listener = ListenerSettings(name="tcp", type="tcp", bind=f"127.0.0.1:{port}", close_timeout=1.0)
    node = Server(Broker(made, runtime), [listener], runtime)
    await node.start()
    try:
        yield int(node.addresses()["tcp"].rpartition(":")[2])
    finally:
        await node.stop()
        await runtime.close()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with broker() as found:
        yield found


class Script:
    """A server whose responses are chosen by the test. It listens on `port`."""

    def __init__(self) -> None:
        self.port = 0
        self.version = 5
        self._packets: asyncio.Queue[Packet] = asyncio.Queue()
        self._writer: asyncio.StreamWriter | None = None
        self._served = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._served.clear()
        decoder = Decoder()
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                for packet in decoder.feed(data):
                    self._packets.put_nowait(packet)
        writer.close()
        self._served.set()

    def raw(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)

    def send(self, *packets: Packet) -> None:
        self.raw(b"".join(encode(packet, self.version) for packet in packets))

    def close(self) -> None:
        assert self._writer is not None
        self._writer.close()

    async def ended(self) -> None:
        """Wait until the last connection has ended."""
        if self._writer is not None:
            self._writer.close()
            async with asyncio.timeout(60):
                await self._served.wait()

    async def take(self, kind: type[P]) -> P:
        async with asyncio.timeout(60):
            packet = await self._packets.get()
        assert isinstance(packet, kind), packet
        return packet

    async def accept(self, client: AsyncioClient, present: bool = False, **given: Any) -> Connect:
        """Connect a client and accept it."""
        await client.open(self.port)
        packet = await self.take(Connect)
        self.version = packet.version
        self.send(Connack(0, present, Properties(**given)))
        assert await client.until(lambda: client.connected)
        return packet

    def nothing(self) -> bool:
        """Return whether all packets have been read."""
        return self._packets.empty()


@pytest.fixture
async def script() -> AsyncIterator[Script]:
    made = Script()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()
    await made.ended()


async def leave(*clients: AsyncioClient) -> None:
    for client in clients:
        client.disconnect()
        await client.wait_closed()


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_conversation(port: int, version: int, qos: int) -> None:
    one, two = [await AsyncioClient(name, version).connect(port) for name in "ab"]
    assert (await two.subscribe("t/+", 2)).codes == (2,)
    answer = await one.publish("t/x", b"hello", qos, expect=0)
    assert type(answer) is {0: type(None), 1: Puback, 2: Pubcomp}[qos]
    message = await two.message()
    assert (message.topic, message.payload, message.qos) == ("t/x", b"hello", qos)
    await two.ping()
    await two.unsubscribe("t/+", "u")
    assert (one.acknowledged, two.received) == (min(qos, 1), 1)
    assert (one.inflight, one.unread) == ({}, type(one.unread)())
    await leave(one, two)
    assert one.closed


async def test_connect_has_the_given_fields(script: Script) -> None:
    given = will("w", b"x", 1, True, 3)
    client = AsyncioClient("c", 5, False, 9, "u", b"p", given, {"receive_maximum": 5}, topic_alias_maximum=7)  # fmt: skip
    properties = Properties(receive_maximum=5, topic_alias_maximum=7)
    wanted = Connect("c", 5, False, 9, "u", b"p", given, properties=properties)
    assert await script.accept(client) == wanted
    client.disconnect(0x04)
    assert await script.take(Disconnect) == Disconnect(0x04)


async def test_an_assigned_client_id(port: int) -> None:
    client = await AsyncioClient().connect(port)
    assert client.client_id
    await leave(client)


@VERSIONS
async def test_a_refusal(version: int) -> None:
    code = 0x87 if version == 5 else 5
    async with broker(auth="deny") as port:
        with pytest.raises(AssertionError, match=f"expected code 0x00 .* got 0x{code:02X}"):
            await AsyncioClient("c", version).connect(port)
        client = await AsyncioClient("c", version).connect(port, expect=code)
        assert (client.closed, client.connected) == (True, False)
        await AsyncioClient("c", version).connect(port, expect=None)


async def test_a_subscription_has_its_options(port: int) -> None:
    client = await AsyncioClient("c").connect(port)
    codes = (
        await client.subscribe(["a", ("b", 0), SubscribeRequest("c", 2)], 1, no_local=True, identifier=9)
    ).codes  # fmt: skip
    assert codes == (1, 0, 2)
    for topic in "abc":
        await client.publish(topic, b"x", 1)
    await client.ping()
    assert [m.topic for m in client.messages] == ["c"]  # the other subscriptions are No Local
    assert client.messages[0].properties.subscription_identifier == (9,)
    await leave(client)


@pytest.mark.parametrize("wait", [
    lambda c: c.subscribe("a"), lambda c: c.unsubscribe("a"), lambda c: c.publish("a", b"", 1), lambda c: c.ping(),
    lambda c: c.message(), lambda c: c.expect(Auth),
], ids=["subscribe", "unsubscribe", "publish", "ping", "message", "expect"])  # fmt: skip
async def test_a_waiting_call_raises_when_the_connection_ends(script: Script, wait: Wait) -> None:
    client = AsyncioClient("c")
    await script.accept(client)
    waiting = asyncio.create_task(wait(client))
    await asyncio.sleep(0)
    script.send(Disconnect(0x8B))
    script.close()
    with pytest.raises(ConnectionError, match=r"(?s)'c' \(v5\): expected .*closed.*Disconnect"):
        await waiting


async def test_a_waiting_call_raises_after_its_timeout(script: Script) -> None:
    client = AsyncioClient("c")
    await script.accept(client)
    with pytest.raises(TimeoutError, match="expected PUBLISH"):
        await client.message(0.01)
    assert not await client.until(lambda: False, 0.01)
    with pytest.raises(TimeoutError, match="end of the connection"):
        await client.wait_closed(0.01)
    await leave(client)
    with pytest.raises(ConnectionError):
        await client.publish("a")
    with pytest.raises(ConnectionError):
        await client.subscribe("a")


async def test_a_connection_that_cannot_be_made(script: Script) -> None:
    opening = asyncio.create_task(AsyncioClient("c").connect(script.port))
    await script.take(Connect)
    script.close()
    with pytest.raises(ConnectionError, match="expected CONNACK"):
        await opening


async def test_a_cancelled_call_leaves_no_connection(script: Script) -> None:
    client = AsyncioClient("c")
    opening = asyncio.create_task(client.connect(script.port))
    await script.take(Connect)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await client.wait_closed()


@pytest.mark.parametrize("qos", [1, 2])
async def test_an_acknowledgement_of_another_kind(script: Script, qos: int) -> None:
    """PUBCOMP completes a QoS 2 message after its PUBREC. Only PUBACK completes a QoS 1 message."""
    client = AsyncioClient("c")
    await script.accept(client)
    client.send_publish("t", b"", qos)
    number = (await script.take(Publish)).packet_id
    wrong = Pubcomp(number) if qos == 2 else Pubrec(number)
    script.send(wrong)
    assert await client.expect(type(wrong)) == wrong
    assert (list(client.inflight), client.acknowledged) == ([number], 0)
    await leave(client)


async def test_the_end_is_reported(script: Script) -> None:
    ends: list[bool] = []
    client = AsyncioClient("c", on_closed=lambda: ends.append(client.closed))
    await script.accept(client)
    assert ends == []
    await leave(client)
    assert ends == [True]


async def test_a_broker_that_violates_mqtt_is_found_out(script: Script) -> None:
    client = AsyncioClient("c")
    await script.accept(client)
    script.raw(b"\x01\x00")
    with pytest.raises(AssertionError, match="the broker violated MQTT"):
        await client.until(lambda: False)
    assert client.closed


async def test_an_alias_that_was_never_set(script: Script) -> None:
    client = AsyncioClient("c", topic_alias_maximum=5)
    await script.accept(client)
    script.send(Publish("t", b"1", properties=Properties(topic_alias=1)))
    script.send(Publish("", b"2", properties=Properties(topic_alias=1)))
    assert [(await client.message()).topic for _ in range(2)] == ["t", "t"]
    script.send(Publish("", b"3", properties=Properties(topic_alias=2)))
    with pytest.raises(AssertionError, match="topic alias 2 before it set it"):
        await client.message()


async def test_an_exception_of_a_callback_is_raised_by_the_waiting_call(script: Script) -> None:
    def refuse(message: Publish) -> None:
        raise ValueError(message.topic)

    client = AsyncioClient("c", on_message=refuse)
    await script.accept(client)
    script.send(Publish("t", b""))
    with pytest.raises(ValueError, match="t"):
        await client.until(lambda: False)


@VERSIONS
async def test_a_session_that_is_resumed(script: Script, version: int) -> None:
    """When a session is resumed, unacknowledged messages are sent again in their original order:
    with DUP, or as PUBREL after PUBREC.
    """
    script.version = version
    client = AsyncioClient("c", version, False)
    await script.accept(client)
    for topic, qos in (("a", 1), ("b", 2), ("c", 2), ("d", 1)):
        client.send_publish(topic, b"x", qos)
    sent = [await script.take(Publish) for _ in range(4)]
    assert not any(one.dup for one in sent)
    script.send(Puback(sent[0].packet_id), Pubrec(sent[1].packet_id))
    assert await script.take(Pubrel) == Pubrel(sent[1].packet_id)
    script.close()
    await client.wait_closed()
    assert list(client.inflight) == [one.packet_id for one in sent[1:]]
    client.send_publish("later", b"x", 1)
    await script.accept(client, present=True)
    assert await script.take(Pubrel) == Pubrel(sent[1].packet_id)
    for one in sent[2:]:
        again = await script.take(Publish)
        assert (again.dup, again.packet_id, again.topic) == (True, one.packet_id, one.topic)
    later = await script.take(Publish)
    assert (later.topic, later.dup) == ("later", False)
    script.send(Pubcomp(sent[1].packet_id), Pubrec(sent[2].packet_id), Puback(sent[3].packet_id))
    assert await script.take(Pubrel) == Pubrel(sent[2].packet_id)
    script.send(Pubcomp(sent[2].packet_id), Puback(later.packet_id))
    assert await client.until(lambda: not client.inflight)
    assert client.acknowledged == 5
    await leave(client)


async def test_a_session_that_is_gone(script: Script) -> None:
    client = AsyncioClient("c", clean_start=False)
    await script.accept(client)
    client.send_publish("a", b"x", 1)
    await script.take(Publish)
    script.send(Publish("in", b"1", 2, packet_id=7))
    assert await script.take(Pubrec) == Pubrec(7)
    script.close()
    await client.wait_closed()
    await script.accept(client)
    assert client.inflight == {}
    script.send(Publish("in", b"2", 2, packet_id=7))  # not the message from the previous session
    assert await client.until(lambda: client.received == 2)
    assert await script.take(Pubrec) == Pubrec(7)
    assert script.nothing()
    await leave(client)


async def test_a_message_of_qos_2_is_taken_once(script: Script) -> None:
    client = AsyncioClient("c", clean_start=False)
    await script.accept(client)
    message = Publish("in", b"1", 2, packet_id=7)
    script.send(message)
    await script.take(Pubrec)
    script.close()
    await client.wait_closed()
    await script.accept(client, present=True)
    script.send(message)
    await script.take(Pubrec)
    assert client.received == 1
    script.send(Pubrel(7))
    assert await script.take(Pubcomp) == Pubcomp(7)
    script.send(message)
    await script.take(Pubrec)
    assert client.received == 2
    await leave(client)


@pytest.mark.parametrize(("window", "given"), [(2, None), (9, 2)], ids=["own", "the broker's"])
async def test_the_window(script: Script, window: int, given: int | None) -> None:
    client = AsyncioClient("c", max_inflight=window)
    await script.accept(client, receive_maximum=given)
    for topic in "abc":
        client.send_publish(topic, b"", 1)
    first, second = await script.take(Publish), await script.take(Publish)
    assert (len(client.inflight), len(client.queued)) == (2, 1)
    script.send(Puback(second.packet_id))
    assert (await script.take(Publish)).topic == "c"
    assert first.packet_id in client.inflight
    await leave(client)


async def test_a_refused_message_is_finished(script: Script) -> None:
    told: list[tuple[str, Packet]] = []
    client = AsyncioClient("c", on_acknowledged=lambda m, answer: told.append((m.topic, answer)))
    await script.accept(client)
    publishing = asyncio.create_task(client.publish("a", b"", 2))
    packet = await script.take(Publish)
    script.send(Pubrec(packet.packet_id, 0x87))
    assert await publishing == Pubrec(packet.packet_id, 0x87)
    assert told == [("a", Pubrec(packet.packet_id, 0x87))]
    publishing = asyncio.create_task(client.publish("b", b"", 1, expect=0))
    packet = await script.take(Publish)
    script.send(Puback(packet.packet_id, 0x97))
    with pytest.raises(AssertionError, match="got 0x97"):
        await publishing
    script.send(Puback(99))  # does not acknowledge anything
    assert await client.expect(Puback) == Puback(99)
    await leave(client)


async def test_acknowledging_by_hand(script: Script) -> None:
    client = AsyncioClient("c", auto_ack=False)
    await script.accept(client)
    for qos in (1, 2):
        script.send(Publish("t", b"", qos, packet_id=qos))
    first, second = await client.message(), await client.message()
    assert script.nothing()
    client.ack(second, 0x10)
    client.ack(first)
    assert await script.take(Pubrec) == Pubrec(2, 0x10)
    assert await script.take(Puback) == Puback(1)
    await leave(client)


async def test_a_paused_client_gets_messages_after_it_resumes(port: int) -> None:
    client = await AsyncioClient("c").connect(port)
    await client.subscribe("t")
    client.pause()
    await client.publish("t", b"x")
    assert not await client.until(lambda: client.received > 0, 0.01)
    client.resume()
    await client.message()
    await leave(client)


async def test_all_packets_are_seen(script: Script) -> None:
    seen: list[Packet] = []
    client = AsyncioClient("c", on_packet=seen.append)
    await script.accept(client)
    script.send(Publish("t", b""), Disconnect(0x8B))
    script.close()
    assert await client.expect_disconnect(0x8B) == Disconnect(0x8B)
    assert [type(one) for one in seen] == [Connack, Publish, Disconnect]


async def test_coming_back(port: int) -> None:
    client = await AsyncioClient("c", session_expiry_interval=60).connect(port)
    await client.subscribe("t", 1)
    other = await AsyncioClient("o").connect(port)
    client.drop()
    await client.wait_closed()
    await other.publish("t", b"x", 1)
    await client.reconnect(keep_alive=9)
    assert client.session_present
    assert client.connect_packet.keep_alive == 9
    assert (await client.message()).payload == b"x"
    await leave(client, other)


async def test_staying_connected() -> None:
    client = AsyncioClient("c", session_expiry_interval=60)
    async with broker() as port:
        staying = asyncio.create_task(client.stay_connected(port))
        assert await client.until(lambda: client.connected)
    assert await client.until(lambda: client.closed)
    client.send_publish("t", b"x", 1)
    async with broker(port):
        assert await client.until(lambda: client.acknowledged == 1)
        staying.cancel()
        await leave(client)


def test_from_a_thread() -> None:
    with LoopThread() as thread:
        stack = broker()
        port = thread.run(stack.__aenter__())
        client = thread.run(AsyncioClient("c").connect(port))
        thread.run(client.subscribe("t"))
        thread.call(client.send_publish, "t", b"x")
        assert thread.run(client.message()).payload == b"x"
        with pytest.raises(TimeoutError):
            thread.run(client.message(), 0.01)
        with pytest.raises(AttributeError):
            thread.call(getattr, client, "nothing")
        never = thread.start(asyncio.Event().wait())
        thread.call(client.disconnect)
        thread.run(client.wait_closed())
        thread.run(stack.__aexit__(None, None, None))
    assert never.cancelled()
    thread.close()
