"""Test the `influxdb` driver. Tests with a real server of version 1 cover the driver contract, types, escapes, refused
points and mistakes.

Versions 2 and 3 are not available from Debian or PyPI. For them, a recorder checks the requests and responds as the
manuals describe.
"""

import itertools
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.driver import DriverContext, Rejected, TargetUnavailable
from hookmq_sinks.drivers.influxdb import InfluxDbDriver, InfluxDbSettings
from hookmq_sinks.record import Record
from hookmq_sinks.testing import DriverContract, make_batch, make_record
from influxdb_server import DATABASE, InfluxDbServer
from ports import free_port

NUMBERS = itertools.count()
MAX_BODY = 100_000


@pytest.fixture(scope="module")
def server() -> Iterator[InfluxDbServer]:
    found = InfluxDbServer(f"max-body-size = {MAX_BODY}")
    found.query(f"CREATE DATABASE {DATABASE}")
    yield found
    found.close()


class TestInfluxDb(DriverContract):
    """Runs the driver contract. Each test has its own measurement."""

    kind = InfluxDbDriver
    more: Mapping[str, Any] = {}

    @pytest.fixture(autouse=True)
    def _measurement(self, server: InfluxDbServer) -> None:
        self.server = server
        self.name = f"t{next(NUMBERS)}"

    def target_settings(self) -> Mapping[str, Any]:
        return {
            "version": 1,
            "url": self.server.url,
            "database": DATABASE,
            "measurement": self.name,
            "tags": {"topic": "${topic}"},
            "fields": {"id": "${id}", "n": "${payload.n}"},
            **self.more,
        }

    def points(self) -> list[dict[str, Any]]:
        found = self.server.query(f'SELECT * FROM "{self.name}"')
        return [
            {name: value for name, value in zip(one["columns"], row, strict=True) if value is not None}
            for one in found
            for row in one["values"]
        ]  # fmt: skip

    async def stored_ids(self) -> list[str]:
        return [one["id"] for one in self.points() if "id" in one]

    def poison(self, offset: int) -> Record:
        self.more = {"fields": {"id": "${id}", "n": "${payload.n}", "s": "${payload.s}"}}
        # From now on, the field s is a float, in the week of the tests' records.
        self.post(f"{self.name} s=1 1767300000000000000".encode())
        return make_record(offset, {"n": 1, "s": "text"})

    def post(self, lines: bytes) -> None:
        import urllib.request

        url = f"{self.server.url}/write?db={DATABASE}&precision=ns"
        with urllib.request.urlopen(url, lines, timeout=60) as answer:
            assert answer.status == 204

    async def stop_target(self) -> None:
        self.server.stop()

    async def start_target(self) -> None:
        self.server.start()

    async def written(self, *records: Record, **more: Any) -> list[dict[str, Any]]:
        """Write records with some settings changed. Return all points."""
        self.more = more
        driver, _ = await self._opened()
        assert list(await driver.check(records[0])) == []
        await driver.write(make_batch(records))
        await driver.close()
        return self.points()

    async def refused(self, *records: Record, **more: Any) -> Any:
        """Write records, and return the error that is raised."""
        self.more = more or self.more
        driver, _ = await self._opened()
        try:
            with pytest.raises((Rejected, TargetUnavailable)) as caught:
                await driver.write(make_batch(records))
        finally:
            await driver.close()
        return caught.value

    @pytest.mark.parametrize("compressed", [True, False])
    async def test_values_have_types(self, compressed: bool) -> None:
        value = {"i": 3, "f": 3, "t": "7", "b": True, "s": 'a "b" \\ c\nd', "l": [1], "d": 1.5}
        (found,) = await self.written(
            make_record(0, value),
            gzip=compressed,
            tags={"level": "${topic.2}", "none": "${payload.none}"},
            fields={name: f"${{payload.{name}}}" for name in (*value, "nothing")},
            types={"i": "integer", "t": "integer", "s": "string"},
        )
        assert found == {
            "time": 1_767_225_600_000_000_000, "level": "a", "i": 3, "f": 3.0, "t": 7, "b": True,
            "s": 'a "b" \\ c\nd', "l": "[1]", "d": 1.5,
        }  # fmt: skip
        rows = self.server.query(f'SHOW FIELD KEYS FROM "{self.name}"')[0]["values"]
        assert dict(rows) == {
            "i": "integer", "f": "float", "t": "integer", "b": "boolean", "s": "string", "l": "string", "d": "float",
        }  # fmt: skip

    @pytest.mark.parametrize(
        "text",
        [
            "a b", "a,b", "a=b", "a\\b", "a\\,b", "a\\\\ b", " a", ",a", "=", '"', "'", '"a', "ä€😀", "#", "\\ a",
            "a\\=\\\\=b",
        ],
    )  # fmt: skip
    async def test_any_text_can_be_a_tag_and_a_field(self, text: str) -> None:
        record = make_record(0, {"x": text})
        found = await self.written(
            record, tags={"a tag": "${payload.x}"}, fields={"a=,b": "${payload.x}"}
        )
        assert found == [{"time": 1_767_225_600_000_000_000, "a tag": text, "a=,b": text}]

    async def test_a_payload_that_is_not_decoded_can_be_a_number(self) -> None:
        fields = {"n": "${payload}"}
        (found,) = await self.written(make_record(0, b"21.5"), fields=fields, types={"n": "float"})
        assert found["n"] == 21.5

    async def test_a_measurement_is_escaped(self) -> None:
        self.name = 'a b,c="d'
        record = make_record(0, topic=self.name)
        self.more = {"measurement": "${topic}"}
        driver, _ = await self._opened()
        await driver.write(make_batch([record]))
        assert list(await driver.check(record)) == []
        await driver.close()
        rows = self.server.query("SHOW MEASUREMENTS")[0]["values"]
        assert [self.name] in rows

    @pytest.mark.parametrize("text", ["a\\", "a\nb", "\t"])
    async def test_texts_that_cannot_be_tags_are_rejected(self, text: str) -> None:
        error = await self.refused(make_record(0, {"x": text}), tags={"x": "${payload.x}"})
        assert isinstance(error, Rejected)
        assert error.reasons[0].startswith("the tag x ")

    async def test_written_again_nothing_changes(self) -> None:
        records = [self.record(n) for n in range(20)]
        first = await self.written(*records)
        assert await self.written(*records) == first
        assert len(first) == 20

    async def test_points_of_one_time_collide_unless_spread(self) -> None:
        records = [make_record(n, received_at=1_767_225_600.0) for n in range(3)]
        (found,) = await self.written(*records)
        assert found["n"] == 2
        self.name += "s"
        for _ in range(2):
            spread = await self.written(*records, timestamp="${timestamp.ms}", precision="ms", spread=True)  # fmt: skip
            start = 1_767_225_600_000_000_000
            assert [one["time"] - start for one in spread] == [0, 1, 2]

    @pytest.mark.parametrize(
        ("value", "precision", "time"),
        [
            (1_767_225_600, "s", 1_767_225_600_000_000_000),
            (1_767_225_600.25, "s", 1_767_225_600_250_000_000),
            ("1767225600123", "ms", 1_767_225_600_123_000_000),
            ("2026-01-01T00:00:00.000001Z", "ms", 1_767_225_600_000_001_000),
            ("2026-01-01T01:00:00+01:00", "ns", 1_767_225_600_000_000_000),
            ("2026-01-01", "ns", 1_767_225_600_000_000_000),
            (-1, "us", -1000),
        ],
    )
    async def test_times(self, value: Any, precision: str, time: int) -> None:
        record = make_record(0, {"n": 1, "at": value})
        (found,) = await self.written(record, timestamp="${payload.at}", precision=precision)
        assert found["time"] == time

    async def test_refused_points_are_found_among_many(self) -> None:
        self.poison(0)
        bad = {3, 4, 77, 199}
        records = [make_record(n, {"n": n, "s": "x" if n in bad else n}) for n in range(200)]
        error = await self.refused(*records)
        assert isinstance(error, Rejected)
        assert error.stored
        assert set(error.reasons) == bad
        assert 'input field "s"' in error.reasons[3]
        assert "is type string, already exists as type float" in error.reasons[3]
        assert len(await self.stored_ids()) == 196

    async def test_a_batch_of_refused_points_is_rejected_in_steps(self) -> None:
        self.poison(0)
        records = [make_record(n, {"n": n, "s": "x"}) for n in range(200)]
        records.append(make_record(200, {"n": 200, "s": 1}))
        driver, _ = await self._opened()
        steps = 0
        while True:
            with pytest.raises(Rejected) as caught:
                await driver.write(make_batch(records))
            steps += 1
            records = [one for at, one in enumerate(records) if at not in caught.value.reasons]
            if caught.value.stored:
                break
        await driver.close()
        assert 1 < steps < 10
        assert [one.offset for one in records] == [200]
        assert await self.stored_ids() == [records[0].id]

    async def test_a_point_that_is_too_large_is_rejected(self) -> None:
        records = [make_record(0), make_record(1, {"n": 1, "x": "x" * MAX_BODY}), make_record(2)]
        fields = {"id": "${id}", "x": "${payload.x}"}
        error = await self.refused(*records, fields=fields, gzip=False)
        assert isinstance(error, Rejected)
        assert error.reasons == {1: "Request Entity Too Large"}
        assert await self.stored_ids() == [records[0].id, records[2].id]

    @pytest.mark.parametrize(
        ("value", "change", "reason"),
        [
            ({"n": "x"}, {"types": {"n": "integer"}}, "field n: 'x' is not a whole number of 64 bits"),
            ({"n": 1.5}, {"types": {"n": "integer"}}, "field n: 1.5 is not a whole number of 64 bits"),
            ({"n": 1 << 63}, {"types": {"n": "integer"}}, f"field n: {1 << 63} is not a whole number"),
            ({"n": True}, {"types": {"n": "integer"}}, "field n: True is not a whole number of 64 bits"),
            ({"n": "inf"}, {"types": {"n": "float"}}, "field n: 'inf' is not a finite number"),
            ({"n": 10**400}, {}, "field n: 1000"),
            (b"\xff", {"fields": {"n": "${payload}"}}, "field n: the value is not UTF-8 text"),
            ({"n": 1}, {"types": {"n": "boolean"}}, "field n: 1 is not true or false"),
            ({"m": 1}, {"fields": {"n": "${payload.n}"}}, "no value for any of the fields"),
            ({"n": 1}, {"measurement": "${payload.m}"}, "no value for ${payload.m}"),
            ({"n": 1, "m": "#a"}, {"measurement": "${payload.m}"}, "the measurement begins with #"),
            ({"n": 1, "t": "noon"}, {"timestamp": "${payload.t}"}, "timestamp: 'noon' is not a time"),
            ({"n": 1, "t": True}, {"timestamp": "${payload.t}"}, "timestamp: True is not a time"),
            ({"n": 1, "t": 10**19}, {"timestamp": "${payload.t}"}, "outside the years 1677 to 2262"),
        ],
    )  # fmt: skip
    async def test_a_record_that_is_not_a_point_is_rejected(
        self, value: Any, change: dict[str, Any], reason: str
    ) -> None:
        error = await self.refused(make_record(0, value), **change)
        assert isinstance(error, Rejected)
        assert reason in error.reasons[0]
        self.more = change
        driver, _ = await self._opened()
        (problem,) = await driver.check(make_record(0, value))
        await driver.close()
        assert reason in problem.message

    async def test_check_names_a_field_of_another_type(self) -> None:
        await self.written(self.record(0))
        self.more = {"types": {"n": "integer"}}
        driver, _ = await self._opened()
        (problem,) = await driver.check(self.record(1))
        await driver.close()
        assert problem.key == "fields.n"
        assert (
            problem.message == f"the field n of {self.name} is float, but the sample's is integer"
        )

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"database": "absent"}, 'status 404: database not found: "absent"'),
            ({"retention_policy": "absent"}, "retention policy not found: absent"),
        ],
    )
    async def test_missing_databases_and_policies_are_an_operators_task(
        self, change: dict[str, Any], word: str
    ) -> None:
        self.more = change
        driver = self.make()
        with pytest.raises(TargetUnavailable) as caught:
            await self._open_and_write(driver)
        await driver.close()
        assert caught.value.permanent
        assert word in caught.value.reason


async def test_credentials() -> None:
    server = InfluxDbServer("auth-enabled = true")
    try:
        server.query("CREATE USER root WITH PASSWORD 'secret-word' WITH ALL PRIVILEGES")
        known = {"u": "root", "p": "secret-word"}
        server.query(f"CREATE DATABASE {DATABASE}", **known)
        server.query("CREATE USER guest WITH PASSWORD 'hunter2'", **known)
        for user, password, status in (
            ("", "", 401), ("root", "hunter2", 401), ("guest", "hunter2", 403), ("root", "secret-word", 0),
        ):  # fmt: skip
            driver = make_driver(url=server.url, user=user, password=password)
            if not status:
                await driver.open()
                await driver.write(make_batch([make_record(0)]))
                await driver.close()
                continue
            with pytest.raises(TargetUnavailable, match=f"status {status}") as caught:
                await driver.open()
            await driver.close()
            assert caught.value.permanent
            assert "hunter2" not in caught.value.reason
    finally:
        server.close()


async def test_nobody_listens() -> None:
    driver = make_driver(url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TargetUnavailable) as caught:
        await driver.open()
    await driver.close()
    assert not caught.value.permanent
    assert caught.value.reason == "Connection refused"


async def test_tls_files_and_certificates(tmp_path: Path) -> None:
    driver = make_driver(url="https://127.0.0.1:1", tls={"ca_file": str(tmp_path / "absent.pem")})
    with pytest.raises(TargetUnavailable, match=r"absent\.pem: No such file") as caught:
        await driver.open()
    assert caught.value.permanent
    await driver.close()
    authority, other = trustme.CA(), trustme.CA()
    own = authority.issue_cert("localhost")
    own.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    other.cert_pem.write_to_path(tmp_path / "other.pem")
    server = InfluxDbServer(
        f'https-enabled = true\nhttps-certificate = "{tmp_path}/server.pem"', "https", tmp_path / "ca.pem"
    )  # fmt: skip
    try:
        server.query(f"CREATE DATABASE {DATABASE}")
        driver = make_driver(url=server.url, tls={"ca_file": str(tmp_path / "ca.pem")})
        await driver.open()
        await driver.write(make_batch([make_record(0)]))
        await driver.close()
        assert server.query("SELECT n FROM m")[0]["values"] == [[1_767_225_600_000_000_000, 0]]
        driver = make_driver(url=server.url, tls={"ca_file": str(tmp_path / "other.pem")})
        with pytest.raises(TargetUnavailable, match="certificate") as caught:
            await driver.open()
        await driver.close()
        assert caught.value.permanent
    finally:
        server.close()


def make_driver(**settings: Any) -> InfluxDbDriver:
    given = {
        "version": 1, "measurement": "m", "fields": {"n": "${payload.n}"}, "database": DATABASE, **settings,
    }  # fmt: skip
    if given["version"] == 2:
        del given["database"]
    return InfluxDbDriver(
        bind_values(InfluxDbSettings, given), DriverContext("test", "test", "5eed")
    )


class Recorder:
    """Records requests, and returns the responses that a test has set."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], str, bytes]] = []
        self.answers: list[tuple[int, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()  # aiohttp has decompressed it
        assert request.headers.get("Content-Encoding") == ("gzip" if body else None)
        known = request.headers.get("Authorization", "")
        self.requests.append((request.method, request.path, dict(request.query), known, body))
        status, given = self.answers.pop(0) if self.answers else (204, None)
        return web.Response(status=status, text="" if given is None else json.dumps(given))


@pytest.fixture
async def recorder() -> AsyncIterator[tuple[Recorder, str]]:
    found = Recorder()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield found, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


VERSIONS: Mapping[int, tuple[dict[str, Any], str, dict[str, str], str]] = {
    2: (
        {"org": "acme & co", "bucket": "plant/1"},
        "/api/v2/write", {"org": "acme & co", "bucket": "plant/1", "precision": "ns"}, "Token hunter2",
    ),
    3: (
        {},
        "/api/v3/write_lp", {"db": DATABASE, "precision": "nanosecond", "accept_partial": "true"}, "Bearer hunter2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
async def test_requests_of_versions_2_and_3(recorder: tuple[Recorder, str], version: int) -> None:
    found, url = recorder
    more, path, query, known = VERSIONS[version]
    driver = make_driver(version=version, url=url, token="hunter2", **more)
    await driver.open()
    await driver.write(make_batch([make_record(0), make_record(1)]))
    await driver.close()
    opened, written = found.requests
    assert opened[:2] == (("GET", "/health") if version == 3 else ("POST", path))
    assert written == (
        "POST", path, query, known, b"m n=0.0 1767225600000000000\nm n=1.0 1767225601000000000",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("version", "answer", "reason"),
    [
        (2, (400, {"code": "invalid", "message": "partial write: field type conflict dropped=1"}), "field type conflict"),
        (2, (422, {"code": "unprocessable entity", "message": "beyond retention"}), "beyond retention"),
        (
            3,
            (400, {"error": "partial write occurred", "data": [{"error_message": "invalid column type"}]}),
            "invalid column type",
        ),
    ],
)  # fmt: skip
async def test_refused_points_of_versions_2_and_3(
    recorder: tuple[Recorder, str], version: int, answer: Any, reason: str
) -> None:
    found, url = recorder
    driver = make_driver(version=version, url=url, token="hunter2", **VERSIONS[version][0])
    await driver.open()
    found.answers = [answer, (204, None), answer]
    with pytest.raises(Rejected) as caught:
        await driver.write(make_batch([make_record(0), make_record(1)]))
    await driver.close()
    assert caught.value.reasons == {1: reason}
    assert caught.value.stored


@pytest.mark.parametrize(
    ("status", "answer", "permanent"),
    [
        (401, {"message": "unauthorized access"}, True),
        (404, {"message": 'bucket "x" not found'}, True),
        (400, {"message": "organization name \"x\" not found"}, True),
        (302, None, True),
        (408, None, False),
        (429, {"message": "too many requests"}, False),
        (500, None, False),
        (503, None, False),
    ],
)  # fmt: skip
async def test_other_answers(
    recorder: tuple[Recorder, str], status: int, answer: Any, permanent: bool
) -> None:
    found, url = recorder
    driver = make_driver(version=2, url=url, token="hunter2", **VERSIONS[2][0])
    await driver.open()
    found.answers = [(status, answer)]
    with pytest.raises(TargetUnavailable) as caught:
        await driver.write(make_batch([make_record(0)]))
    await driver.close()
    assert caught.value.permanent is permanent
    assert str(status) in caught.value.reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 4}, "version: expected 1, 2 or 3, found 4"),
        ({"url": "udp://a"}, "url: expected http://"),
        ({"url": "http://a:hunter2@b"}, "url: contains a user"),
        ({"url": "http://a/?db=b"}, "url: contains ? or #"),
        ({"url": "http://a:99999"}, "url: Port out of range"),
        ({"tls": {}}, "tls: needs https://"),
        ({"database": ""}, "database: required with `version: 1`"),
        ({"version": 2}, "org: required with `version: 2`"),
        ({"version": 2, "org": "a", "bucket": "b"}, "version: 2 does not use `database`"),
        ({"version": 3, "user": "a"}, "version: 3 does not use `user`"),
        ({"token": "hunter2"}, "version: 1 does not use `token`"),
        ({"password": "hunter2"}, "user: required with `password`"),
        ({"user": "a:b"}, "user: contains a colon"),
        ({"fields": {}}, "fields: empty"),
        ({"fields": {"n": 5}}, "fields.n: expected a template, found 5"),
        ({"fields": {"time": "a"}}, "fields.time: the name belongs to the timestamp"),
        ({"fields": {"a\\": "a"}}, "fields: 'a\\\\': the name ends with a backslash"),
        ({"tags": {"": "a"}}, "tags: '': the name is empty"),
        ({"tags": {"n": "a"}}, "fields.n: is a tag, too"),
        ({"types": {"m": "float"}}, "types.m: there is no such field"),
        ({"types": {"n": "int"}}, "types.n: expected integer, float, boolean, string, found 'int'"),
        ({"precision": "h"}, "precision"),
    ],
)
def test_mistakes_in_settings(change: dict[str, Any], message: str) -> None:
    good = {"version": 1, "database": "a", "measurement": "m", "fields": {"n": "${payload.n}"}}
    with pytest.raises(ConfigError) as caught:
        bind_values(InfluxDbSettings, {**good, **change})
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)
