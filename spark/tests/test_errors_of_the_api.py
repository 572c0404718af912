"""Test that failures between a reader and the read API lead to a retry, or to one line with advice."""

from collections.abc import Iterator
from typing import Any

import pytest
from fakelog import FakeLog, encode, record, serving
from pyspark_mqtt.arrow import batches
from pyspark_mqtt.client import Client
from pyspark_mqtt.errors import DataLossError, MqttError
from pyspark_mqtt.offsets import Offsets, Range
from pyspark_mqtt.options import reading
from pyspark_mqtt.schema import Column

COLUMNS = [Column("offset"), Column("payload")]


@pytest.fixture
def log() -> Iterator[FakeLog]:
    rows = [record("a/b", str(n).encode()) for n in range(1000)]
    with serving(FakeLog({0: rows, 1: []})) as served:
        yield served


OPEN: list[Client] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def client(log: FakeLog, **options: str) -> Client:
    OPEN.append(Client(reading(log.options | options)))
    return OPEN[-1]


def read(one: Client, wanted: Range, log_id: str = "0" * 32) -> list[int]:
    found: list[int] = []
    blocks = one.blocks(wanted, log_id, ["offset", "payload"], [])
    for batch in batches(blocks, COLUMNS, wanted, 10_000):
        assert [str(n).encode() for n in batch.column("offset").to_pylist()] == batch.column(
            "payload"
        ).to_pylist()
        found += batch.column("offset").to_pylist()
    return found


@pytest.mark.parametrize(
    "faults",
    [
        ["drop"],
        [503],
        [-50],
        [-5000],
        [b""],
        ["drop", 503, -7],
        [encode(0, 0, [record("a/b", b"0")])[:-1] + b"x"],
        [encode(0, 500, [record("a/b", b"0")])],
        [encode(1, 120, [record("a/b", b"0")])],
    ],
    ids=["dropped", "busy", "cut", "cut in a block", "empty", "in a row", "damaged", "gap", "wrong partition"],
)  # fmt: skip
def test_a_range_that_was_cut_goes_on_where_it_was(log: FakeLog, faults: list[Any]) -> None:
    log.faults += faults
    assert read(client(log), Range(0, 120, 880)) == list(range(120, 880))
    assert not log.faults


def test_progress_gives_new_tries(log: FakeLog) -> None:
    log.block_rows = 10
    log.faults += [-9000, -5000, -50]
    one = client(log, **{"fetchOffset.numRetries": "1"})
    # Each of these answers ends within a block, after some that are whole.
    assert read(one, Range(0, 0, 1000)) == list(range(1000))
    assert not log.faults


def test_blocks_that_were_joined_meanwhile_bring_nothing_twice(log: FakeLog) -> None:
    log.block_rows = 10
    log.faults += [-9000]
    wanted = Range(0, 5, 995)
    blocks = client(log).blocks(wanted, log.log_id, ["offset", "payload"], [])
    some = [next(blocks), next(blocks)]
    log.block_rows = 500
    found = []
    for batch in batches([*some, *blocks], COLUMNS, wanted, 10_000):
        found += batch.column("offset").to_pylist()
    assert found == list(range(5, 995))


def test_tries_end(log: FakeLog) -> None:
    waits: list[float] = []
    options = reading(
        log.options | {"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "700"}
    )
    log.faults += ["drop"] * 6
    with pytest.raises(
        MqttError, match=r"tried 3 times: It closed the connection .*. Is the broker"
    ):
        Client(options, waits.append).log()
    assert waits == [0.7, 0.7]


def test_a_kept_connection_that_was_closed_costs_no_try(log: FakeLog) -> None:
    one = client(log, **{"fetchOffset.numRetries": "0"})
    one.log()
    log.faults += ["drop"]
    assert one.log().latest == {0: 1000, 1: 0}


def test_nobody_listens() -> None:
    with serving(FakeLog({0: []})) as log:
        pass
    with pytest.raises(MqttError, match=r"tried 1 times: Connection refused"):
        client(log, **{"fetchOffset.numRetries": "0"}).log()


def test_a_host_that_is_not_known(log: FakeLog) -> None:
    log.url = "http://no-such-host.invalid:1"
    with pytest.raises(MqttError, match="The host's name is not known"):
        client(log, **{"fetchOffset.numRetries": "0"}).log()


def test_another_server(log: FakeLog) -> None:
    log.faults += [b"<html>"]
    with pytest.raises(MqttError, match="is not the read API of a broker"):
        client(log).log()
    log.faults += [b"<html>" * 20]
    with pytest.raises(MqttError, match="holds no blocks"):
        read(client(log), Range(0, 0, 10))


def test_a_server_without_tls(log: FakeLog) -> None:
    log.url = log.url.replace("http:", "https:")
    with pytest.raises(MqttError, match="does not speak TLS: give `url` with http://"):
        client(log).log()


def test_a_newer_broker(log: FakeLog) -> None:
    block = bytearray(encode(0, 0, [record("a", b"0")]))
    block[16] = 3
    log.faults += [bytes(block)]
    with pytest.raises(MqttError, match="upgrade pyspark-mqtt"):
        read(client(log), Range(0, 0, 10))


def test_a_token(log: FakeLog, tmp_path: Any) -> None:
    log.token = "s3cret"
    with pytest.raises(MqttError, match="knows no such token"):
        client(log, token="guess").log()
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    assert client(log, tokenFile=str(file)).log().latest[0] == 1000
    with pytest.raises(MqttError, match="must be on every node"):
        client(log, tokenFile=str(tmp_path / "none")).log()


@pytest.mark.parametrize("token", ["s3cret\nX-Other: 1", "s3cret\N{EURO SIGN}"])
def test_a_token_that_cannot_be_sent_is_not_told(log: FakeLog, token: str) -> None:
    with pytest.raises(MqttError, match="The token cannot be sent: it must be one line") as raised:
        client(log, token=token).log()
    assert "s3cret" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_a_stream_that_is_not_there(log: FakeLog) -> None:
    with pytest.raises(MqttError, match="no stream other"):
        client(log, stream="other").log()


def test_what_was_lost(log: FakeLog) -> None:
    log.earliest[0] = 300
    with pytest.raises(DataLossError, match="has lost offsets 100 to 299 of partition 0"):
        read(client(log), Range(0, 100, 500))
    with pytest.raises(DataLossError, match="before 1100"):
        read(client(log), Range(0, 900, 1100))
    with pytest.raises(DataLossError, match="is another log now"):
        read(client(log), Range(0, 300, 500), "f" * 32)


def test_what_was_lost_may_be_left_out(log: FakeLog) -> None:
    log.earliest[0] = 300
    one = client(log, failOnDataLoss="false")
    assert read(one, Range(0, 100, 500)) == list(range(300, 500))
    assert read(one, Range(0, 100, 200)) == []
    assert read(one, Range(0, 900, 1100)) == []
    assert read(one, Range(0, 300, 500), "f" * 32) == []


def test_what_was_lost_while_it_was_read_costs_nothing_that_was(log: FakeLog) -> None:
    log.faults += [-5000]
    one = client(log, failOnDataLoss="false")
    wanted = Range(0, 0, 1000)
    blocks = one.blocks(wanted, log.log_id, ["offset", "payload"], [])
    first = next(blocks)
    log.earliest[0] = 990
    rows = [n for block, new in [first, *blocks] for n in range(new, block.end)]
    assert rows[:100] == list(range(100))
    assert rows == sorted(set(rows))
    assert rows[-10:] == list(range(990, 1000))


def test_a_report_is_tried_once(log: FakeLog) -> None:
    log.faults += [503]
    with pytest.raises(MqttError):
        client(log).commit("etl", Offsets(log.log_id, {0: 10}))
    client(log).commit("etl", Offsets(log.log_id, {0: 10, 1: 0}))
    assert log.commits == [{"log_id": log.log_id, "offsets": {"0": 10, "1": 0}}]
