"""Test the `s3` driver against moto's server: the driver contract, interrupted batches, formats, and mistakes."""

import asyncio
import gzip
import io
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.driver import Batch, DriverContext, Position, Rejected, TargetUnavailable
from hookmq_sinks.drivers.s3 import S3Driver, S3Settings
from hookmq_sinks.record import Record
from hookmq_sinks.testing import LOG_ID, DriverContract, make_batch, make_record
from s3_server import REGION, Door, S3Server

pytestmark = pytest.mark.slow

NUMBERS = itertools.count()
HOUR = "dt=2026-01-01/hour=00"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    found = S3Server()
    yield found
    found.close()


class TestS3(DriverContract):
    """Runs the driver contract. Each test has its own bucket."""

    kind = S3Driver
    more: Mapping[str, Any] = {}

    @pytest.fixture(autouse=True)
    async def _bucket(self, server: S3Server) -> AsyncIterator[None]:
        self.server = server
        self.s3 = server.client()
        self.bucket = f"t{next(NUMBERS)}-bucket"
        self.s3.create_bucket(
            Bucket=self.bucket, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        self.door = Door(server.port)
        await self.door.open()
        yield
        await self.door.close()

    def target_settings(self) -> Mapping[str, Any]:
        return {
            "bucket": self.bucket,
            "prefix": "plant/",
            "endpoint": f"http://127.0.0.1:{self.door.port}",
            "region": REGION,
            "access_key": self.server.key,
            "secret_key": self.server.secret,
            **self.more,
        }

    def keys(self) -> list[str]:
        """Return the names of the objects that contain messages."""
        found = self.s3.list_objects_v2(Bucket=self.bucket).get("Contents", ())
        return [one["Key"] for one in found if "/_hookmq/" not in one["Key"]]

    def data(self, key: str) -> bytes:
        data: bytes = self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return data

    def lines(self) -> list[dict[str, Any]]:
        texts = [gzip.decompress(self.data(key)) for key in self.keys()]
        return [json.loads(line) for text in texts for line in text.splitlines()]

    async def stored_ids(self) -> list[str]:
        # boto3 blocks, and the door runs in this loop. boto3 therefore connects to the server directly.
        return [one["id"] for one in self.lines()]

    def poison(self, offset: int) -> Record:
        return make_record(offset, {"n": float("nan")})

    async def stop_target(self) -> None:
        await self.door.close()

    async def start_target(self) -> None:
        await self.door.open()

    # names and formats -----------------------------------------------------------------------------------------------

    async def test_the_name_has_the_hour_the_log_and_the_offsets(self) -> None:
        driver, _ = await self._opened()
        await driver.write(make_batch([self.record(3), self.record(7)]))
        await driver.close()
        (key,) = self.keys()
        assert key == f"plant/{HOUR}/{LOG_ID}-{3:020d}-{7:020d}.jsonl.gz"
        assert self.lines()[1] == {
            "id": f"test:{LOG_ID}:7", "topic": "plant/a", "received_at": 1_767_225_607.0,
            "qos": 1, "payload": {"n": 7}, "client_id": "c",
        }  # fmt: skip

    async def test_a_batch_over_midnight_has_two_objects(self) -> None:
        driver, _ = await self._opened()
        records = [make_record(n, received_at=1_767_225_598.0 + n) for n in range(4)]
        await driver.write(make_batch(records))
        await driver.close()
        assert self.keys() == [
            f"plant/dt=2025-12-31/hour=23/{LOG_ID}-{0:020d}-{1:020d}.jsonl.gz",
            f"plant/{HOUR}/{LOG_ID}-{2:020d}-{3:020d}.jsonl.gz",
        ]

    async def test_fields_without_compression(self) -> None:
        self.more = {"compression": "none", "fields": {"n": "${payload.n}", "no": "${payload.no}"}}
        driver, _ = await self._opened()
        await driver.write(make_batch([self.record(0), self.record(1)]))
        await driver.close()
        (key,) = self.keys()
        assert key.endswith(".jsonl")
        assert self.data(key) == b'{"n":0,"no":null}\n{"n":1,"no":null}\n'

    @pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "zstd"])
    async def test_parquet_columns_have_types(self, compression: str) -> None:
        fields = {
            "topic": "${topic}", "n": "${payload.n}", "x": "${payload.x}", "ok": "${payload.ok}",
            "at": "${timestamp}", "raw": "${payload}",
        }  # fmt: skip
        types = {"n": "long", "x": "double", "ok": "boolean", "at": "timestamp", "raw": "binary"}
        self.more = {
            "format": "parquet", "compression": compression, "fields": fields, "types": types,
        }  # fmt: skip
        driver, _ = await self._opened()
        assert list(await driver.check(make_record(0, {"n": "a"}))) != []
        with pytest.raises(Rejected, match="n: 'a' is not a value of the type long") as caught:
            await driver.write(make_batch([self.record(0), make_record(1, {"n": "a"})]))
        assert list(caught.value.reasons) == [1]
        await driver.write(make_batch([make_record(0, {"n": 2.0, "x": 1, "ok": True})]))
        await driver.close()
        (key,) = self.keys()
        table = pq.read_table(io.BytesIO(self.data(key)))
        assert [str(one) for one in table.schema.types] == [
            "string", "int64", "double", "bool", "timestamp[us, tz=UTC]", "binary",
        ]  # fmt: skip
        assert table.to_pylist() == [
            {
                "topic": "plant/a", "n": 2, "x": 1.0, "ok": True,
                "at": datetime(2026, 1, 1, tzinfo=UTC), "raw": b'{"n":2.0,"x":1,"ok":true}',
            }
        ]  # fmt: skip

    async def test_parquet_without_fields(self) -> None:
        self.more = {"format": "parquet"}
        driver, _ = await self._opened()
        await driver.write(make_batch([make_record(0, b"\xff", user_properties=(("a", "b"),))]))
        await driver.close()
        (row,) = pq.read_table(io.BytesIO(self.data(self.keys()[0]))).to_pylist()
        assert (row["payload"], row["user_properties"]) == (b"\xff", [["a", "b"]])
        assert row["received_at"] == datetime(2026, 1, 1, tzinfo=UTC)

    @pytest.mark.parametrize("topic", ["a/../b", "_hookmq/a", "a//b", "x" * 1000, "a\tb"])
    async def test_bad_folders_are_rejected(self, topic: str) -> None:
        self.more = {"folder": "${topic}"}
        driver, _ = await self._opened()
        with pytest.raises(Rejected, match="folder"):
            await driver.write(make_batch([make_record(0, topic=topic)]))
        await driver.close()
        assert self.keys() == []

    async def test_encryption_by_the_server(self) -> None:
        self.more = {"encryption": "aws:kms", "kms_key": "my-key"}
        driver, _ = await self._opened()
        await driver.write(make_batch([self.record(0)]))
        await driver.close()
        found = self.s3.list_objects_v2(Bucket=self.bucket)["Contents"]
        assert len(found) == 2
        for one in found:
            head = self.s3.head_object(Bucket=self.bucket, Key=one["Key"])
            assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", "my-key")

    # interrupted batches ---------------------------------------------------------------------------------------------

    async def interrupt(self, allowed: int, records: list[Record]) -> None:
        """Write a batch that fails after `allowed` write requests."""
        driver: Any
        driver, _ = await self._opened()
        left, put, written = iter(range(allowed)), driver._client.put_object, asyncio.Event()
        done = 0

        async def some(**arguments: Any) -> Any:
            nonlocal done
            if next(left, None) is None:
                if allowed:
                    await written.wait()
                raise ConnectionResetError
            answer = await put(**arguments)
            done += 1
            if done == allowed:
                written.set()
            return answer

        driver._client.put_object = some
        with suppress(TargetUnavailable):
            await driver.write(make_batch(records))
        await driver.close()

    @pytest.mark.parametrize("allowed", range(6))
    async def test_each_message_is_in_one_object_whenever_a_batch_is_interrupted(
        self, allowed: int
    ) -> None:
        self.more = {"folder": "${topic}"}
        records = [make_record(n, topic=f"t{n % 3}") for n in range(2, 8)]
        driver, _ = await self._opened()
        await driver.write(make_batch([make_record(n, topic="t0") for n in range(2)]))
        await driver.close()
        await self.interrupt(allowed, records)
        driver, position = await self._opened()
        done = allowed >= 4  # the plan and three objects
        assert position == Position(LOG_ID, 8 if done else 2)
        # The next batches begin and end elsewhere.
        rest = [one for one in records if one.offset >= position.offset]
        for at in range(0, len(rest), 4):
            await driver.write(make_batch(rest[at : at + 4]))
        await driver.write(make_batch([make_record(8, topic="t0")]))
        await driver.close()
        offsets = sorted(int(one["id"].rpartition(":")[2]) for one in self.lines())
        assert offsets == list(range(9))

    async def test_opening_changes_nothing(self) -> None:
        self.more = {"folder": "${topic}"}
        await self.interrupt(2, [make_record(n, topic=f"t{n}") for n in range(3)])
        before = self.s3.list_objects_v2(Bucket=self.bucket)["Contents"]
        assert len(before) == 2
        for _ in range(2):
            driver, position = await self._opened()
            assert position is None
            await driver.check(self.record(0))
            await driver.close()
        assert self.s3.list_objects_v2(Bucket=self.bucket)["Contents"] == before

    async def test_an_older_object_of_the_same_name_is_not_part_of_a_plan(self) -> None:
        records = [self.record(0), self.record(1)]
        driver, _ = await self._opened()
        await driver.write(make_batch(records))
        await driver.write(make_batch([self.record(2)]))
        await driver.close()
        await self.interrupt(1, records)  # after a seek to the beginning
        driver, position = await self._opened()
        assert position == Position(LOG_ID, 3)
        await driver.write(make_batch(records))
        await driver.close()
        assert await self.stored_ids() == [self.record(n).id for n in range(3)]

    async def test_a_replay_keeps_the_position(self) -> None:
        driver, _ = await self._opened()
        await driver.write(make_batch([self.record(0), self.record(2)]))
        await driver.write(make_batch([self.record(1)], end=3))
        await driver.close()
        driver, position = await self._opened()
        assert position == Position(LOG_ID, 3)
        await driver.close()
        assert len(await self.stored_ids()) == 3

    @pytest.mark.parametrize("written", [True, False])
    async def test_a_second_process_is_excluded(self, written: bool) -> None:
        first, _ = await self._opened()
        if written:
            await first.write(make_batch([self.record(0)]))
        second, _ = await self._opened()
        await second.write(make_batch([self.record(1)]))
        with pytest.raises(TargetUnavailable, match="another process"):
            await first.write(make_batch([self.record(1)]))
        await first.close()
        await second.close()
        assert (await self.stored_ids())[-1:] == [self.record(1).id]

    async def test_the_position_of_another_log_is_ignored(self) -> None:
        driver, _ = await self._opened()
        await driver.write(make_batch([self.record(0)]))
        await driver.close()
        settings: Any = bind_values(S3Settings, self.target_settings())
        other = S3Driver(settings, DriverContext("test", "test", "0" * 32))
        assert await other.open() is None
        await other.write(Batch((self.record(0),), Position("0" * 32, 1)))
        await other.close()
        assert len(self.keys()) == 2

    async def test_a_damaged_position_is_an_operators_task(self) -> None:
        self.s3.put_object(Bucket=self.bucket, Key="plant/_hookmq/test.json", Body=b"{}")
        driver = self.make()
        with pytest.raises(TargetUnavailable, match=r"_hookmq/test\.json is damaged") as caught:
            await driver.open()
        await driver.close()
        assert caught.value.permanent

    # mistakes --------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("change", "word", "permanent"),
        [
            (lambda self: {"bucket": "missing"}, "NoSuchBucket", True),
            (lambda self: {"secret_key": "hunter2"}, "SignatureDoesNotMatch", True),
            (lambda self: {"access_key": "AKIANOBODY"}, "InvalidAccessKeyId", True),
            (lambda self: {"access_key": "", "secret_key": "", "profile": "no"}, "profile", True),
            (lambda self: {"tls": {"ca_file": "/no.pem"}}, "/no.pem: No such file", True),
            (lambda self: {"endpoint": "http://127.0.0.1:1"}, "cannot connect", False),
        ],
    )
    async def test_targets_that_cannot_be_used(
        self, change: Callable[[Any], Mapping[str, Any]], word: str, permanent: bool
    ) -> None:
        self.more = change(self)
        driver = self.make()
        with pytest.raises(TargetUnavailable, match=word) as caught:
            await driver.open()
        await driver.close()
        assert caught.value.permanent is permanent
        assert "hunter2" not in caught.value.reason

    async def test_credentials_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.more = {"access_key": "", "secret_key": ""}
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/does/not/exist")
        driver = self.make()
        with pytest.raises(TargetUnavailable, match="credentials") as caught:
            await driver.open()
        await driver.close()
        assert caught.value.permanent
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", self.server.key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", self.server.secret)
        driver, _ = await self._opened()
        await driver.close()

    async def test_a_store_that_does_not_answer(self) -> None:
        self.more = {"request_timeout": 0.2}
        await self.door.close()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                await reader.read()
            writer.close()

        async with await asyncio.start_server(silent, "127.0.0.1", self.door.port):
            driver = self.make()
            with pytest.raises(TargetUnavailable, match="no answer within request_timeout"):
                await driver.open()
            await driver.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bucket": "a b"}, "bucket: 'a b' is not the name of a bucket"),
        ({"prefix": "/a"}, "prefix: '/a' cannot begin a name"),
        ({"endpoint": "a:9000"}, "endpoint: expected https://"),
        ({"endpoint": "http://u:hunter2@a"}, "endpoint: contains a user"),
        ({"secret_key": "hunter2"}, "access_key: needs `secret_key`"),
        ({"session_token": "hunter2"}, "access_key: required with `session_token`"),
        ({"access_key": "a", "secret_key": "hunter2", "profile": "p"}, "profile: an access key"),
        ({"kms_key": "a"}, "kms_key: needs `encryption: aws:kms`"),
        ({"compression": "zstd"}, "compression: zstd needs `format: parquet`"),
        ({"types": {"a": "long"}}, "types: needs `format: parquet`"),
        ({"types": {"a": "long"}, "format": "parquet"}, "types: a is not one of the fields"),
        ({"types": {"a": "int"}, "format": "parquet", "fields": {"a": "${topic}"}}, "types"),
    ],
)
def test_mistakes_in_settings(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_values(S3Settings, {"bucket": "lake", **change})
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)
