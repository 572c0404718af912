"""A run in which devices publish, `hookmq-pipelines` writes tables, and one process after another is killed at a random
moment.

Bronze is a Parquet table of all messages, written by Spark's file sink. Silver is a Delta table that is deduplicated by
message-id, with one transaction per batch. A third table holds dead letters: messages that are not JSON. One seed
determines all choices, but the exact moment of a kill also depends on the machine.
"""

import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from workspace import ROOT

from devices.fleet import Fleet, Topic
from devices.judging import Row, Verdict, judge
from devices.parts import PARTITIONS, TOKEN, Broker, Spark, batches, written

PLANTED: Final = ("transaction", "key", "block")
"""The bugs that can be planted."""
VICTIMS: Final = ("executor", "reader", "broker", "driver")
TABLES: Final = {"bronze": "bronze", "silver": "silver", "dead_letter": "silver"}
"""The query that writes each table. One query writes silver and the dead letters."""
SUPPORT: Final = ROOT / "pipelines" / "tests" / "support"
STUCK: Final = 240.0
"""Seconds without a batch after which the run has failed."""
EARLY: Final = 0.1
"""The probability that the next kill does not wait until every query has made progress.

It applies only in long runs, after each kind of process has been killed once.
"""
Say = Callable[[str], None]


class Broken(AssertionError):
    """A broken guarantee."""


@dataclass
class Summary:
    """The results of a run."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    between: int = 0
    """How often the driver was killed after it wrote a batch and before Spark recorded the batch as done."""
    sent: int = 0
    acknowledged: int = 0
    sessions_lost: int = 0
    refused: int = 0
    restarts: int = 0
    """How often the broker had to be started again."""
    overloaded: int = 0
    """How often the driver gave up because the machine was too busy to start Python within Spark's 10 s."""
    seconds: float = 0.0
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        """Return descriptions of the broken guarantees."""
        found = [f"{one.table}: {one.broken} {one.examples}" for one in self.verdicts if one.broken]
        if self.sessions_lost or self.refused:
            found.append(f"{self.sessions_lost} sessions lost, {self.refused} refused")
        return found

    def text(self) -> str:
        """Return the summary as text."""
        killed = ", ".join(f"{self.kills[name]} {name}" for name in VICTIMS)
        lines = [
            f"{sum(self.kills.values())} kills ({killed}) in {self.seconds:.0f} s, seed {self.seed}",
            f"{self.between} of the driver's between the write of a batch and Spark's note of it",
            f"{self.sent} messages sent, {self.acknowledged} acknowledged; {self.restarts} starts of the broker and"
            f" {self.overloaded} of the driver had to be repeated",
        ]
        lines += [
            f"{one.table}: {one.rows} rows ({one.repeated} sent again), {one.lost} lost, {one.duplicated} duplicated,"
            f" {one.invented} invented, {one.reordered} out of order, {one.gaps} offsets missing"
            for one in self.verdicts
        ]
        return "\n".join(lines)


class Run:
    """A whole run in `folder`. If `planted` names a bug of pipelines/tests/support/planted.py, the
    checks must find it.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        rate: float,
        say: Say,
        planted: str = "",
    ) -> None:
        self.folder = folder
        self.say = say
        self.summary = Summary(seed)
        self.draw = random.Random(seed)
        self.fleet = Fleet(6, rate, seed)
        self.broker = Broker(folder / "broker")
        self.spark = Spark(folder / "spark")
        self.planted = planted
        self.tables = folder / "tables"
        self.config = self.configure()

    @property
    def done(self) -> list[int]:
        """Return the number of batches that each query has finished."""
        return [batches(self.tables / "checkpoints" / name) for name in sorted({*TABLES.values()})]

    def command(self, what: str) -> list[str | Path]:
        """Return the driver's command line. `what` is `run`, `drain` or `tell`."""
        if what == "tell":
            return [SUPPORT / "tables.py", self.tables]
        program = (
            [SUPPORT / "planted.py", self.planted] if self.planted else ["-m", "mqtt_pipelines"]
        )
        once = ["--once"] if what == "drain" else []
        return [*program, "run", "bronze", "silver", *once, "-c", self.config]

    def configure(self) -> Path:
        """Write the configuration and return its path.

        It sets up a driver and two executors, each in its own process and as small as possible.
        """
        folder = self.tables
        folder.mkdir()
        small = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        conf = {
            "version": 1,
            "name": "devices",
            "source": {
                "mqtt": {
                    "url": self.broker.url,
                    "stream": "devices",
                    "token": TOKEN,
                    "maxOffsetsPerTrigger": 20_000,
                    "fetchOffset.retryIntervalMs": 200,
                    "fetchOffset.numRetries": 600,
                }
            },
            "checkpoints": str(folder / "checkpoints"),
            "trigger": "1s",
            "silver": {
                "schema": "n bigint not null, value double not null, note string not null",
                "device": {"topic_level": 1},
                "late": "1h",
            },
            "tables": {
                "bronze": {"path": str(folder / "bronze")},
                "silver": {"path": str(folder / "silver"), "format": "delta"},
                "dead_letter": {"path": str(folder / "dead_letter"), "format": "delta"},
            },
            "spark": {
                "master": "local-cluster[2,1,1024]",
                "settings": {
                    "spark.ui.enabled": False,
                    "spark.ui.showConsoleProgress": False,
                    "spark.sql.shuffle.partitions": 2,
                    "spark.sql.adaptive.enabled": False,
                    "spark.driver.host": "127.0.0.1",
                    "spark.driver.bindAddress": "127.0.0.1",
                    "spark.driver.memory": "1g",
                    "spark.driver.extraJavaOptions": small,
                    "spark.executor.extraJavaOptions": small,
                },
            },
        }
        file = folder / "pipeline.yaml"
        file.write_text(json.dumps(conf))  # JSON is YAML.
        return file

    async def run(self, kills: int) -> Summary:
        """Kill `kills` times, drain the stream, and check the tables."""
        began = time.monotonic()
        await asyncio.to_thread(self.broker.start)
        log_id, _ = await asyncio.to_thread(self.broker.ends)
        self.fleet.start(self.broker.port)
        self.spark.start(self.command("run"))
        try:
            for number, victim in enumerate(victims(self.draw, kills)):
                waits = number < len(VICTIMS) or self.draw.random() > EARLY
                await self._kill(victim, waits)
                self.say(
                    f"kill {number + 1}/{kills}, {victim}: {self.fleet.acknowledged} acknowledged, batches {self.done},"
                    f" {time.monotonic() - began:.0f} s"
                )
            await self._all_go_on()
            await self.fleet.idle(STUCK)
            await asyncio.to_thread(self.spark.kill)
            self.summary.kills["driver"] += 1
            await self._to_the_end("drain")
            found, ends = await asyncio.to_thread(self.broker.ends)
            if found != log_id:
                raise Broken(f"the log was {log_id} and is {found}")
            await self._to_the_end("tell")
        finally:
            await self.fleet.stop()
            await asyncio.to_thread(self.spark.close)
            code = await asyncio.to_thread(self.broker.stop)
        if code:
            raise Broken(f"the broker ended with {code}")
        return self._judge(ends, time.monotonic() - began)

    async def _all_go_on(self) -> None:
        """Wait until each query has finished another batch and the broker has acknowledged more messages."""
        before, acknowledged = self.done, self.fleet.acknowledged
        until = time.monotonic() + STUCK
        while True:
            now = self.done
            moved = all(new > old for new, old in zip(now, before, strict=True))
            if moved and self.fleet.acknowledged > acknowledged:
                return
            self.fleet.look()
            if self._supervise():
                until = time.monotonic() + STUCK
            if not self.broker.alive():
                raise Broken("the broker ended by itself")
            if time.monotonic() > until:
                raise Broken(
                    f"stuck at batches {now}, {self.fleet.acknowledged} acknowledged: {self.spark.end_of_log()}"
                )
            await asyncio.sleep(0.05)

    def _supervise(self) -> bool:
        if not self.spark.ended():
            return False
        self.summary.overloaded += 1
        self.spark.start(self.command("run"))
        return True

    async def _kill(self, victim: str, waits: bool) -> None:
        if waits:
            await self._all_go_on()
        await asyncio.sleep(self.draw.uniform(0, 1.5))
        if victim == "driver":
            # The first kill is at the moment that transactions are for. Later kills are at this moment, another one, or
            # any time.
            moments = (*TABLES, "") if self.summary.kills[victim] else ("silver",)
            await self._kill_driver(self.draw.choice(moments))
            self.spark.start(self.command("run"))
        elif victim == "broker":
            await asyncio.to_thread(self.broker.kill, self.draw)
            await asyncio.sleep(self.draw.choice((0.0, 0.0, 1.0)))
            await asyncio.to_thread(self.broker.start)
        else:
            one = self.broker.kill_reader
            kill = one if victim == "reader" else lambda: self.spark.kill_executor(self.draw)
            until = time.monotonic() + STUCK
            while not kill():
                self._supervise()
                assert time.monotonic() < until, f"there is no {victim}"
                await asyncio.sleep(0.05)
        self.summary.kills[victim] += 1

    async def _kill_driver(self, table: str) -> None:
        """Kill the driver. If `table` is set, wait until that table has another batch first."""
        if table:
            before = written(self.tables / table)
            until = time.monotonic() + STUCK
            while (now := written(self.tables / table)) == before:
                if self._supervise():
                    until = time.monotonic() + STUCK
                if time.monotonic() > until:
                    raise Broken(f"stuck at batch {now} of {table}: {self.spark.end_of_log()}")
                await asyncio.sleep(0.001)
            checkpoint = self.tables / "checkpoints" / TABLES[table]
            noted = batches(checkpoint)
        await asyncio.to_thread(self.spark.kill)
        if table:
            self.summary.between += noted == batches(checkpoint)

    async def _to_the_end(self, what: str) -> None:
        while True:
            self.spark.start(self.command(what))
            if await asyncio.to_thread(self.spark.finish, 2 * STUCK) == 0:
                return
            if not self.spark.ended():
                raise Broken(f"{what} failed: {self.spark.end_of_log()}")
            self.summary.overloaded += 1

    def _judge(self, ends: dict[int, int], seconds: float) -> Summary:
        fleet, summary = self.fleet, self.summary
        summary.seconds = seconds
        summary.sent, summary.acknowledged = fleet.sent, fleet.acknowledged
        summary.sessions_lost = fleet.ledger.counts.sessions_lost
        summary.refused = fleet.ledger.counts.refused
        summary.restarts = self.broker.early
        topics = list(fleet.topics)
        bronze, silver, dead = (rows_of(self.tables / f"{name}.json") for name in TABLES)
        summary.verdicts = [
            judge("bronze (Parquet)", bronze, topics, PARTITIONS, ends=ends),
            judge("silver (Delta)", silver, topics, PARTITIONS, once=True, belongs=Topic.good),
            judge(
                "dead letters (Delta)",
                dead,
                topics,
                PARTITIONS,
                belongs=lambda topic, number: not topic.good(number),
            ),
        ]
        return summary


def victims(draw: random.Random, kills: int) -> list[str]:
    """Return the order in which victims are killed.

    The order is random, but every kind of victim is killed equally often, give or take one kill.
    """
    first = VICTIMS if kills > len(VICTIMS) else VICTIMS[:-1]
    rounds = [draw.sample(first, len(first))]
    rounds += [draw.sample(VICTIMS, len(VICTIMS)) for _ in range(math.ceil(kills / len(VICTIMS)))]
    return [victim for one in rounds for victim in one][: kills - 1]


def rows_of(file: Path) -> list[Row]:
    """Return the rows of a dumped table."""
    with file.open(encoding="utf-8") as lines:
        return [
            Row(one[0], one[1], one[2], one[3].encode(), one[4]) for one in map(json.loads, lines)
        ]
