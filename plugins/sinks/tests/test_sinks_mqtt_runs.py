"""Test how the `mqtt` driver publishes whole runs of records: packets, windows and acknowledgements."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bridging import Client
from hookmq.config_api import bind_values
from hookmq.mqtt_api import EMPTY, Connack, Properties, Puback, encode
from hookmq.plugin import Message
from hookmq.storage_api import MessageColumns, make_message
from hookmq_sinks.driver import Batch, DriverContext, Position, Rejected, TargetUnavailable
from hookmq_sinks.drivers.mqtt import MqttDriver
from hookmq_sinks.mqtt.ack_window import AckWindow
from hookmq_sinks.mqtt.acks import expected_acks, packet_ids
from hookmq_sinks.mqtt.in_flight import IDS, packet_id
from hookmq_sinks.mqtt.link import MqttLink
from hookmq_sinks.record_maker import RecordMaker
from hookmq_sinks.record_run import RecordRun, RunRecords
from hookmq_sinks.testing import LOG_ID
from mosquitto import Mosquitto


def driver(port: int, **target: Any) -> MqttDriver:
    given = {
        "addresses": [f"127.0.0.1:{port}"],
        "broker": "here",
        "connect_timeout": "5s",
        **target,
    }
    settings: Any = bind_values(MqttDriver.Settings, given)
    return MqttDriver(settings, DriverContext("test", "test", LOG_ID))


def message(
    topic: str, payload: bytes = b"x", properties: Properties = EMPTY, **fields: Any
) -> Message:
    return make_message(
        topic, payload, 1, fields.get("retain", False), properties, "dev", received_at=1e9,
        expires_at=fields.get("expires_at"),
    )  # fmt: skip


def run(messages: Sequence[Message], first: int = 0) -> RecordRun:
    columns = MessageColumns()
    for one in messages:
        columns.add_message(one)
    return RecordRun(RecordMaker("test"), columns, first, 0, len(columns), LOG_ID, 0.0)


def batch(*runs: RecordRun) -> Batch:
    return Batch(RunRecords(runs), Position(LOG_ID, runs[-1].end))


MESSAGES = [
    message("plant/a"),
    message("plant/b", b""),
    message("plant/a", b"y" * 200),
    message("plant/ü", b"z" * 20_000),
    message("plant/a", b"kept", retain=True),
    message("plant/a", b"late", expires_at=4e9),
    message("plant/a", b"full", Properties(content_type="t/x", user_property=(("a", "b"),))),
    message("other", b"7"),
]


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("properties", [True, False])
def test_a_run_has_the_same_packets_as_its_records(
    protocol: str, qos: int, properties: bool
) -> None:
    rule = {"pattern": "#", "qos": qos, "local_prefix": "plant/", "remote_prefix": "hq/north/"}
    one = driver(
        1, protocol=protocol, qos=qos, properties=properties, rules=[rule], topic="rest/${topic.1}"
    )
    assert one._runs is not None
    made = run(MESSAGES, IDS - 4)
    coded = one._runs.encode(made, None)
    assert coded is not None
    each = [one._encode(at, record) for at, record in enumerate(made)]
    assert list(coded.packets) == [packet.data for packet in each if packet is not None]
    assert coded.qos == qos
    part = made.part(3, 6)
    coded = one._runs.encode(part, None)
    assert coded is not None
    assert list(coded.packets) == [packet.data for packet in each[3:6] if packet is not None]


def test_records_are_encoded_one_by_one_if_a_run_is_not_uniform() -> None:
    rules = [{"pattern": "#", "qos": 0, "local_prefix": "a/"}, {"pattern": "#", "qos": 1}]
    one = driver(1, rules=rules)
    assert one._runs is not None
    assert one._runs.encode(run([message("a/b"), message("b")]), None) is None
    assert one._runs.encode(run([message("b"), message("b", expires_at=1.0)]), None) is None
    assert one._runs.encode(run([message("b", b"x" * 100)]), 100) is None
    assert one._runs.encode(run([message("b", b"x" * 100)]), 200) is not None
    assert driver(1, qos=2)._runs is None
    assert driver(1, topic="${client_id}/${topic}")._runs is None


def test_packet_ids_begin_again_after_the_last() -> None:
    ids = [int.from_bytes(one, "big") for one in packet_ids(IDS - 2, 4)]
    assert ids == [IDS - 1, IDS, 1, 2] == [packet_id(IDS - 2 + at) for at in range(4)]
    assert expected_acks(0, 2) == encode(Puback(1), 4) + encode(Puback(2), 5)


# acknowledgements ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def window() -> AsyncIterator[tuple[AckWindow, MqttLink]]:
    """Yield a window whose link has received CONNACK."""
    made = AckWindow()
    link = made.link = MqttLink(5, 1 << 20, made.take)
    link.data_received(encode(Connack(0), 5))
    yield made, link
    link.connection_lost(None)


async def test_acknowledgements_in_order_are_counted() -> None:
    async with window() as (acks, link):
        acks.expect(10, 0, 5)
        data = expected_acks(10, 5)
        link.data_received(data[:7])
        assert acks.count == 4
        link.data_received(data[7:16])
        assert acks.count == 1
        acks.expect(15, 5, 2)
        assert acks.count == 3
        waiting = asyncio.create_task(acks.until(0))
        link.data_received(data[16:] + expected_acks(15, 2) + b"\xd0\0")
        await waiting
        assert (acks.count, acks.waiting, acks.codes, link._buffer) == (0, {}, {}, b"")


async def test_acknowledgements_in_another_order_or_with_reasons_count_too() -> None:
    async with window() as (acks, link):
        acks.expect(10, 0, 6)
        link.data_received(expected_acks(10, 2) + encode(Puback(packet_id(13), 0x87), 5))
        assert acks.count == 3
        for offset in (15, 12, 14, 12):
            link.data_received(encode(Puback(packet_id(offset), 0x10), 5))
        assert (acks.count, acks.codes) == (0, {3: 0x87})
        acks.expect(16, 6, 1)
        link.data_received(expected_acks(17, 1))  # nothing was sent with this packet id
        assert acks.count == 1
        link.data_received(expected_acks(16, 1))
        assert acks.count == 0
        with pytest.raises(TargetUnavailable, match="0x87"):
            acks.refusals(())


async def test_a_lost_connection_ends_the_wait() -> None:
    async with window() as (acks, link):
        link.lost.add_done_callback(lambda _: acks.wake())
        acks.expect(0, 0, 2)
        link.data_received(expected_acks(0, 1))
        waiting = asyncio.create_task(acks.until(0))
        await asyncio.sleep(0)
        link.connection_lost(None)
        with pytest.raises(TargetUnavailable, match="closed"):
            await waiting


# a remote broker -----------------------------------------------------------------------------------------------------


async def arrived(client: Client, count: int) -> list[str]:
    for _ in range(1000):
        if len(client.messages) >= count:
            break
        await asyncio.sleep(0.01)
    return client.payloads


@pytest.mark.parametrize("size", [1, 2, 7, 100])
async def test_runs_arrive_in_order_and_the_window_is_kept(tmp_path: Path, size: int) -> None:
    remote = Mosquitto(tmp_path / "remote", "max_inflight_messages 100")
    far = Client(remote.port, "far", "plant/#", 1)
    one = driver(remote.port, window=size if size < 100 else 0)
    await one.open()
    link, most = one._link, 0
    assert link is not None
    expect = link.expect

    def count(data: bytes, matched: Any) -> None:
        nonlocal most
        expect(data, matched)
        most = max(most, one._window.count)

    link.expect = count  # type: ignore[method-assign]
    values = [message("plant/a", b"%d" % at) for at in range(12 * size)]
    first, second = (
        run(values[: 6 * size], IDS - 7),
        run(values[6 * size : 8 * size], IDS + 5000),
    )
    # Without acknowledgements, as many whole parts of half a window are sent as fit into the window.
    link.pause_reading(True)
    writing = asyncio.create_task(
        one.write(batch(first, second))
    )  # some offsets are missing in between
    part = max(1, size // 2)
    full = size // part * part
    assert len(await arrived(far, full)) == full
    await asyncio.sleep(0)
    assert (one._window.count, writing.done()) == (full, False)
    link.pause_reading(False)
    await writing
    await one.write(batch(run(values[8 * size :], second.end)))
    assert await arrived(far, len(values)) == [str(at) for at in range(len(values))]
    assert full <= most <= size
    await one.close()
    far.close()
    remote.stop()


async def test_records_that_the_remote_broker_refuses_are_rejected_by_index(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("topic readwrite plant/#\n")
    rules.chmod(0o644)
    remote = Mosquitto(tmp_path / "remote", f"acl_file {rules}")
    far = Client(remote.port, "far", "plant/#", 1)
    one = driver(remote.port)
    await one.open()
    values = [message("secret" if at % 100 == 7 else "plant/a", b"%d" % at) for at in range(300)]
    with pytest.raises(Rejected) as caught:
        await one.write(batch(run(values[:100]), run(values[100:], 105)))
    assert (caught.value.stored, list(caught.value.reasons)) == (True, [7, 107, 207])
    assert len(await arrived(far, 297)) == 297
    await one.close()
    far.close()
    remote.stop()


async def test_a_run_with_an_invalid_topic_is_written_without_it(tmp_path: Path) -> None:
    remote = Mosquitto(tmp_path / "remote")
    far = Client(remote.port, "far", "#", 1)
    rule = {"pattern": "#", "qos": 1, "remote_prefix": "x" * 65_529 + "/"}
    one = driver(remote.port, rules=[rule])
    await one.open()
    with pytest.raises(Rejected) as caught:
        await one.write(batch(run([message("a"), message("too/long"), message("b")])))
    assert (caught.value.stored, list(caught.value.reasons)) == (True, [1])
    assert len(await arrived(far, 2)) == 2
    await one.close()
    far.close()
    remote.stop()
