"""Test suites for the driver and source contracts. They require pytest; see DRIVERS.md and SOURCES.md."""

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from hookmq.config_api import bind_values

from hookmq_sinks.driver import (
    Batch,
    Driver,
    DriverContext,
    Position,
    Record,
    Rejected,
    TargetUnavailable,
)
from hookmq_sinks.plain import plain_value
from hookmq_sinks.record_template import templates_of
from hookmq_sinks.source import Incoming, Source, SourceContext, SourceUnavailable

LOG_ID = "5eed" * 8


def make_record(offset: int, payload: Any = None, topic: str = "plant/a", **fields: Any) -> Record:
    """Return a record like those that the engine makes. A payload that is not bytes is encoded as JSON, and becomes
    the record's decoded value.
    """
    from hookmq_sinks.record import to_bytes

    value = {"n": offset} if payload is None else payload
    return Record(
        f"test:{LOG_ID}:{offset}", offset, topic, to_bytes(value), value,
        **{"qos": 1, "client_id": "c", "received_at": 1_767_225_600.0 + offset, **fields},
    )  # fmt: skip


def make_batch(records: Sequence[Record], end: int | None = None) -> Batch:
    """Return a batch that contains the records. By default, its position follows its last record."""
    return Batch(tuple(records), Position(LOG_ID, records[-1].offset + 1 if end is None else end))


class DriverContract:
    """Tests of the driver contract. Subclass this in a test module, set `kind`, and implement `target_settings` and
    `stored_ids`.

    Give each test a fresh target, or different names in a shared one. Override `stop_target` and `start_target` if the
    target can be stopped, and `poison` if the target refuses some records.
    """

    kind: ClassVar[type[Driver]]

    def target_settings(self) -> Mapping[str, Any]:
        """Return a sink's `target`, as it appears in the configuration."""
        raise NotImplementedError

    async def stored_ids(self) -> list[str]:
        """Return the ids of the records in the target, in the order in which the target stored them."""
        raise NotImplementedError

    async def stop_target(self) -> None:
        """Make the target unavailable."""
        pytest.skip("the target cannot be stopped")

    async def start_target(self) -> None:
        """Make the target available again, with its data intact."""

    def record(self, offset: int) -> Record:
        """Return a record that the target accepts."""
        return make_record(offset)

    def poison(self, offset: int) -> Record:
        """Return a record that the target can never accept."""
        pytest.skip("the target takes every record")

    # helpers ---------------------------------------------------------------------------------------------------------

    def make(self, slot: str = "test") -> Driver:
        """Return a new driver object."""
        context = DriverContext("test", slot, LOG_ID, lambda level, event, **fields: None)
        return self.kind(bind_values(self.kind.Settings, self.target_settings()), context)

    async def _opened(self, slot: str = "test") -> tuple[Driver, Position | None]:
        driver = self.make(slot)
        return driver, await driver.open()

    async def _open_and_write(self, driver: Driver) -> None:
        await driver.open()
        await driver.write(make_batch([self.record(1)]))

    # tests -----------------------------------------------------------------------------------------------------------

    def test_its_settings_survive_the_way_to_the_process(self) -> None:
        settings: Any = bind_values(self.kind.Settings, self.target_settings())
        assert bind_values(self.kind.Settings, plain_value(settings)) == settings
        list(templates_of(settings))

    def test_it_refuses_an_unknown_setting(self) -> None:
        from hookmq.plugin import ConfigError

        with pytest.raises(ConfigError, match="no_such_setting"):
            bind_values(self.kind.Settings, {**self.target_settings(), "no_such_setting": 1})

    async def test_it_stores_batches_in_order(self) -> None:
        driver, position = await self._opened()
        assert position is None
        offsets = itertools.count()
        records = [self.record(next(offsets)) for _ in range(30)]
        for start in range(0, 30, 10):
            await driver.write(make_batch(records[start : start + 10]))
        await driver.close()
        assert await self.stored_ids() == [one.id for one in records]

    async def test_a_good_sample_has_no_problems(self) -> None:
        driver, _ = await self._opened()
        assert list(await driver.check(self.record(0))) == []
        assert list(await driver.check(None)) == []
        await driver.close()
        assert await self.stored_ids() == []

    async def test_it_holds_the_position(self) -> None:
        if not self.kind.holds_position:
            pytest.skip("the driver does not store the position")
        driver, _ = await self._opened()
        await driver.write(make_batch([self.record(0), self.record(1)]))
        await driver.close()
        driver, position = await self._opened()
        assert position == Position(LOG_ID, 2)
        await driver.write(Batch((), Position(LOG_ID, 7)))
        await driver.write(make_batch([self.record(7)]))
        await driver.close()
        driver, position = await self._opened()
        assert position == Position(LOG_ID, 8)
        await driver.close()
        driver, position = await self._opened("other")
        assert position is None
        await driver.close()
        assert await self.stored_ids() == [self.record(at).id for at in (0, 1, 7)]

    async def test_a_poisonous_record_is_rejected_by_its_index(self) -> None:
        poison = self.poison(1)
        driver, _ = await self._opened()
        with pytest.raises(Rejected) as caught:
            await driver.write(make_batch([self.record(0), poison, self.record(2)]))
        assert list(caught.value.reasons) == [1]
        assert caught.value.reasons[1]
        left = [self.record(0), self.record(2)]
        if not caught.value.stored:
            assert await self.stored_ids() == []
            await driver.write(make_batch(left))
        await driver.close()
        assert await self.stored_ids() == [one.id for one in left]

    async def test_a_target_that_is_down_is_unavailable_and_comes_back(self) -> None:
        driver, _ = await self._opened()
        await driver.write(make_batch([self.record(0)]))
        await self.stop_target()
        with pytest.raises(TargetUnavailable):
            await driver.write(make_batch([self.record(1)]))
        await driver.close()
        again = self.make()
        with pytest.raises(TargetUnavailable):
            await self._open_and_write(again)
        await again.close()
        await self.start_target()
        driver, _ = await self._opened()
        await driver.write(make_batch([self.record(1)]))
        await driver.close()
        stored = await self.stored_ids()
        assert list(dict.fromkeys(stored)) == [self.record(0).id, self.record(1).id]

    async def test_it_can_be_closed_without_being_open(self) -> None:
        await self.make().close()
        driver = self.make()
        with suppress(TargetUnavailable):
            await driver.open()
        await driver.close()


REFUSED = 0x99
"""The code of a message that can never be published."""


class SourceContract:
    """Tests of the source contract. Subclass this in a test module, set `kind`, and implement `origin_settings` and
    `send`.

    Give each test a fresh origin, or different names in a shared one. Implement `unacknowledged` if the origin knows
    how many entries are not acknowledged. Override `stop_origin` and `start_origin` if the origin can be stopped, and
    `send_poison` if an entry can be invalid.
    """

    kind: ClassVar[type[Source]]
    repeats: ClassVar[bool] = True
    """Whether the origin sends unacknowledged entries again."""
    once: ClassVar[bool] = False
    """Whether the source uses marks, so that a committed message is not published again."""

    def origin_settings(self) -> Mapping[str, Any]:
        """Return a source's `origin`, as it appears in the configuration."""
        raise NotImplementedError

    async def send(self, payloads: Sequence[bytes]) -> None:
        """Add one entry per payload to the origin, in this order."""
        raise NotImplementedError

    async def send_poison(self) -> None:
        """Add an entry to the origin that cannot become a message."""
        pytest.skip("every entry can be a message")

    async def unacknowledged(self) -> int:
        """Return the number of entries that the origin has not sent yet, or would send again."""
        pytest.skip("the origin does not tell")

    async def stop_origin(self) -> None:
        """Make the origin unavailable."""
        pytest.skip("the origin cannot be stopped")

    async def start_origin(self) -> None:
        """Make the origin available again, with its entries intact."""

    # helpers ---------------------------------------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _marks(self) -> None:
        self.marks: dict[str, str] = {}
        """The marks that the broker has stored. They outlive the source object."""

    async def _forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.marks.pop(key, None)

    def make(self, name: str = "test") -> Source:
        """Return a new source object, as there would be after a restart."""
        context = SourceContext(name, self.marks, self._forget)
        return self.kind(bind_values(self.kind.Settings, self.origin_settings()), context)

    async def opened(self) -> Source:
        """Return a new, open source."""
        source = self.make()
        async with asyncio.timeout(30):
            await source.open()
        return source

    def commit(self, messages: Sequence[Incoming]) -> list[int]:
        """Store the marks of messages as the broker would, and return the reason codes."""
        for one in messages:
            if one.mark is not None and not one.problem:
                self.marks[one.mark[0]] = one.mark[1]
        return [REFUSED if one.problem else 0 for one in messages]

    async def take(self, source: Source, count: int, acknowledge: bool = True) -> list[Incoming]:
        """Read `count` messages. Commit each batch, and acknowledge it unless `acknowledge` is False."""
        found: list[Incoming] = []
        async with asyncio.timeout(30):
            while len(found) < count:
                messages = await source.read()
                assert messages, "read returned nothing"
                found += messages
                if acknowledge:
                    await source.acknowledge(messages, self.commit(messages))
        return found

    # tests -----------------------------------------------------------------------------------------------------------

    def test_its_settings_survive_the_way_to_the_process(self) -> None:
        settings: Any = bind_values(self.kind.Settings, self.origin_settings())
        assert bind_values(self.kind.Settings, plain_value(settings)) == settings
        list(templates_of(settings))

    def test_it_refuses_an_unknown_setting(self) -> None:
        from hookmq.plugin import ConfigError

        with pytest.raises(ConfigError, match="no_such_setting"):
            bind_values(self.kind.Settings, {**self.origin_settings(), "no_such_setting": 1})

    async def test_messages_arrive_in_order(self) -> None:
        source = await self.opened()
        payloads = [b"%d" % at for at in range(200)]
        await self.send(payloads[:100])
        found = await self.take(source, 100)
        await self.send(payloads[100:])
        found += await self.take(source, 100)
        await source.close()
        assert [one.payload for one in found] == payloads

    async def test_the_origin_keeps_what_is_not_acknowledged(self) -> None:
        if not self.repeats:
            pytest.skip("the origin keeps nothing")
        source = await self.opened()
        await self.send([b"1", b"2", b"3"])
        first = await self.take(source, 3, acknowledge=False)
        assert await self.unacknowledged() == 3
        await source.close()
        again = await self.opened()
        second = await self.take(again, 3)
        assert await self.unacknowledged() == 0
        await again.close()
        assert [one.payload for one in second] == [one.payload for one in first]

    async def test_a_death_between_commit_and_acknowledgement_loses_nothing(self) -> None:
        if not self.repeats:
            pytest.skip("the origin keeps nothing")
        source = await self.opened()
        await self.send([b"1", b"2"])
        self.commit(await self.take(source, 2, acknowledge=False))
        await source.close()
        again = await self.opened()
        await self.send([b"3"])
        found = [one.payload for one in await self.take(again, 1 if self.once else 3)]
        assert found == ([b"3"] if self.once else [b"1", b"2", b"3"])
        reading = asyncio.ensure_future(again.read())
        async with asyncio.timeout(30):
            while await self.unacknowledged():
                pass
        assert not reading.done()
        reading.cancel()
        await asyncio.wait([reading])
        await again.close()

    async def test_marks_do_not_pile_up(self) -> None:
        source = await self.opened()
        await self.send([b"%d" % at for at in range(50)])
        await self.take(source, 50)
        await source.close()
        assert len(self.marks) < 2

    async def test_poison_is_reported_and_stops_nothing(self) -> None:
        source = await self.opened()
        await self.send([b"1"])
        await self.send_poison()
        await self.send([b"2"])
        found = await self.take(source, 3)
        assert [bool(one.problem) for one in found] == [False, True, False]
        await source.close()
        again = await self.opened()
        await self.send([b"3"])
        (last,) = await self.take(again, 1)
        assert (last.payload, last.problem) == (b"3", "")
        await again.close()

    async def test_an_origin_that_is_down_is_unavailable_and_comes_back(self) -> None:
        source = await self.opened()
        await self.send([b"1"])
        await self.take(source, 1)
        await self.stop_origin()
        with pytest.raises(SourceUnavailable):
            await self.take(source, 1)
        await source.close()
        down = self.make()
        with pytest.raises(SourceUnavailable):
            async with asyncio.timeout(30):
                await down.open()
        await down.close()
        await self.start_origin()
        source = await self.opened()
        await self.send([b"2"])
        found = await self.take(source, 1)
        await source.close()
        assert found[-1].payload == b"2"

    async def test_a_read_can_be_cancelled(self) -> None:
        source = await self.opened()
        reading = asyncio.ensure_future(source.read())
        await asyncio.wait([reading], timeout=0.05)
        assert not reading.done()
        reading.cancel()
        await asyncio.wait([reading])
        await source.close()
        source = await self.opened()
        await self.send([b"1"])
        assert [one.payload for one in await self.take(source, 1)] == [b"1"]
        await source.close()

    async def test_it_can_be_closed_without_being_open(self) -> None:
        await self.make().close()
