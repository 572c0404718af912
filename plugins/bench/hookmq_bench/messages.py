"""One process of a message run. The process runs publishers and subscribers, from connecting to the final account."""

import asyncio
import socket
import time
from collections.abc import Mapping
from typing import Final

from hookmq.mqtt_api import Publish, encode

from hookmq_bench.address import BenchError
from hookmq_bench.connection import Connection
from hookmq_bench.credit import Credit
from hookmq_bench.flow import Flow
from hookmq_bench.outcome import Account, FlowSum, Mark, Sample
from hookmq_bench.plan import SECOND
from hookmq_bench.process import Ended, Process, calm
from hookmq_bench.publisher import Publisher
from hookmq_bench.schedule import Schedule
from hookmq_bench.subscriber import Subscriber, no_credit
from hookmq_bench.ticks import Alarm

STALL: Final = 1.0
"""Seconds without an arrival after which a QoS 0 publisher gives up its outstanding messages."""
GRAIN: Final = 100_000
"""Nanoseconds between two checks for messages that are due."""


class Messages:
    """The publishers and subscribers that `process` runs. `others` holds the sockets to the other processes."""

    def __init__(self, process: Process, others: Mapping[int, socket.socket]) -> None:
        plan = self.plan = process.plan
        self.process = process
        homes = plan.homes()
        index, turn, tally = process.index, process.turn, process.tally
        waits = ""
        if plan.publishers and plan.window:
            waits = "arrival" if plan.subscribers else "" if plan.qos else "pong"
        self.publishers = {
            number: Publisher(turn, plan, number, tally, process.offset, waits)
            for number in range(plan.publishers)
            if homes.publisher(number) == index
        }
        for number, publisher in self.publishers.items():
            if plan.count and not plan.rate:
                publisher.quota = max(
                    1, plan.count // plan.publishers + (number < plan.count % plan.publishers)
                )
        self.credit = Credit(turn, homes, self.publishers, others)
        self.subscribers: dict[int, Subscriber] = {}
        self.flows: list[dict[int, Flow]] = []
        together: dict[int, Flow] | None = None
        for number in range(plan.subscribers):
            if homes.subscriber(0 if plan.shared else number) != index:
                continue
            if together is None or not plan.shared:
                together = {plan.key(one): Flow() for one in plan.sources_of(number)}
                if not plan.publishers:
                    together = {}
                self.flows.append(together)
            self.subscribers[number] = Subscriber(
                turn,
                plan.target.version,
                tally,
                together,
                process.offset,
                joins=not plan.publishers,
                credit=self.credit.arrived if waits == "arrival" else no_credit,
            )
        self._schedule: Schedule | None = None
        self._order = list(self.publishers.values())
        self._alarm: Alarm | None = None
        self._stop_at = 0
        self._stopped = False
        self._sending = bool(self.publishers) or not plan.publishers
        self._receive_maximum = 65_535
        self._granted = 2
        self._progress = 0
        self._progressed = 0

    @property
    def connections(self) -> list[Connection]:
        """All connections that this process opened."""
        return [*self.subscribers.values(), *self.publishers.values()]

    async def run(self) -> Account:
        """Run each phase when the parent tells it to, and return this process's account."""
        process = self.process
        tasks = [process.sampling(self._look)]
        try:
            await self.credit.start()
            await process.each(list(self.subscribers), self._open_subscriber)
            await process.each(list(self.publishers), self._open_publisher)
            calm()
            tasks += [
                process.keep_alive_of(lambda: self.connections),
                asyncio.create_task(self._watch()),
            ]
            process.tell("ready")
            begin, end = await self._load(await process.wait_for("go"))
            while (await process.told.get())[0] != "finish":
                pass
        except Ended:
            self._close()
            raise
        finally:
            for task in tasks:
                task.cancel()
        account = self._account(begin, end)
        if self._alarm is not None:
            self._alarm.close()
        await self._clean_up()
        self.credit.close()
        return account

    # before the run

    async def _open_subscriber(self, number: int) -> None:
        subscriber = self.subscribers[number]
        plan = self.plan
        try:
            await self.process.open(subscriber, self.process.connect_packet(f"s{number}"))
            wanted = plan.filter_of(number)
            granted = await subscriber.subscribe(wanted, plan.qos, plan.properties_of("subscribe"))
        except BenchError as error:
            raise BenchError(f"subscriber {number}: {error}") from None
        self._granted = min(self._granted, granted)
        if plan.publishers:
            subscriber.qos = min(plan.qos, granted)

    async def _open_publisher(self, number: int) -> None:
        publisher = self.publishers[number]
        plan = self.plan
        try:
            told = await self.process.open(publisher, self.process.connect_packet(f"p{number}"))
        except BenchError as error:
            raise BenchError(f"publisher {number}: {error}") from None
        maximum = 2 if told.maximum_qos is None else told.maximum_qos
        if plan.qos > maximum:
            raise BenchError(f"the broker accepts at most QoS {maximum}")
        if plan.retain and told.retain_available == 0:
            raise BenchError("the broker does not support retained messages")
        largest = told.maximum_packet_size
        if largest is not None and plan.size >= largest:
            raise BenchError(f"the broker accepts packets of at most {largest} bytes")
        receive_maximum = told.receive_maximum or 65_535
        self._receive_maximum = min(self._receive_maximum, receive_maximum)
        publisher.limit(receive_maximum)

    # during the run

    async def _load(self, start: int) -> tuple[Mark, Mark]:
        """Send until time runs out or everything has been sent. Return the counts at the start and the end of the
        measured time.
        """
        plan, process = self.plan, self.process
        begin_at = start + int(plan.warm_up * SECOND)
        self._stop_at = begin_at + int(plan.duration * SECOND) if plan.duration else 1 << 62
        # Without a warm-up, everything counts, even a message that a timer sends slightly early.
        process.tally.since = begin_at + process.offset if plan.warm_up else 0
        await process.until(start)
        if plan.rate:
            self._schedule = Schedule(
                plan.rate, plan.ramp_up, plan.publishers, list(self.publishers), start, plan.count
            )
            self._alarm = Alarm(process.loop, self._tick)
            self._tick()
        else:
            for publisher in self._order:
                publisher.running = True
                process.turn.mark(publisher)
        ended = await self._or_all_sent(begin_at)  # not None if everything has been sent already
        begin = ended or process.mark()
        end = ended or await self._or_all_sent(self._stop_at) or process.mark()
        self._stop()
        return begin, end

    async def _or_all_sent(self, at: int) -> Mark | None:
        """Sleep until `at`, or until everything has been sent. In the second case, return the counts at that moment.
        Otherwise, return None.
        """
        if not self.publishers:
            # Only the publishers' processes know when everything is sent, so wait for the parent to end the run.
            waiting = asyncio.create_task(self.process.told.get())
            done, _ = await asyncio.wait([waiting], timeout=(at - time.monotonic_ns()) / SECOND)
            if done:
                self.process.told.put_nowait(waiting.result())
                return self.process.mark()
            waiting.cancel()
            return None
        while time.monotonic_ns() < at:
            left = (at - time.monotonic_ns()) / SECOND
            await asyncio.sleep(min(left, 0.02))
            if self._all_sent() or not self.process.told.empty():
                return self.process.mark()
        return None

    def _all_sent(self) -> bool:
        plan = self.plan
        if all(one.closed for one in self._order):
            return True
        if not plan.count:
            return False
        if self._schedule is not None:
            return self._schedule.following is None and not any(one.backlog for one in self._order)
        return all(one.closed or one.sent >= one.quota for one in self._order)

    def _stop(self) -> None:
        self._sending = False
        self._stopped = True
        for publisher in self._order:
            publisher.running = False

    def _tick(self) -> None:
        """Hand all messages that are now due to their publishers."""
        schedule, alarm = self._schedule, self._alarm
        if schedule is None or alarm is None or self._stopped:
            return
        now = time.monotonic_ns()
        tally, offset, order = self.process.tally, self.process.offset, self._order
        for place, at in schedule.due(min(now, self._stop_at)):
            if at + offset >= tally.since:
                tally.lag.add(now - at)
            order[place].due(at + offset)
        following = schedule.following
        if following is not None and following < self._stop_at:
            alarm.set(max(following, now + GRAIN))

    async def _watch(self) -> None:
        """Write off lost QoS 0 messages. They are not acknowledged, so publishers would otherwise wait for them
        forever.
        """
        seen = [-1] * len(self._order)
        while True:
            await asyncio.sleep(STALL)
            for place, publisher in enumerate(self._order):
                progress = publisher.arrivals + publisher.sent
                if publisher.closed:
                    continue
                if progress == seen[place] and publisher.outstanding > len(publisher.unacked):
                    publisher.forgive()
                    self.process.tally.stalls += 1
                seen[place] = progress

    def _look(self) -> Sample:
        tally = self.process.tally
        progress = missing = 0
        for flows in self.flows:
            for flow in flows.values():
                progress += flow.next - flow.first
                missing += flow.missing
        return Sample(
            time.monotonic_ns(),
            tally.sent,
            tally.acked,
            tally.received,
            progress,
            missing,
            sum(one.outstanding for one in self._order),
            sum(len(one.unacked) for one in self._order if not one.closed),
            sum(one.backlog for one in self._order),
            sum(not one.closed for one in self.connections),
            self.process.connects,
            tally.lost_connections.total(),
            time.process_time_ns(),
            self._sending,
            self.process.latencies(),
        )

    # after the run

    def _account(self, begin: Mark, end: Mark) -> Account:
        process = self.process
        flows: dict[int, FlowSum] = {}
        for together in self.flows:
            for key, flow in together.items():
                entry = flows.setdefault(key, FlowSum())
                entry.flows += 1
                entry.received += flow.received
                entry.missing += flow.missing
                entry.duplicates += flow.duplicates
                entry.reordered += flow.reordered
                entry.highest = max(entry.highest, flow.next)
        return Account(
            process.tally,
            begin,
            end,
            {number: one.sent for number, one in self.publishers.items()},
            {number: len(one.unacked) for number, one in self.publishers.items()},
            flows,
            sum(one.backlog for one in self._order),
            self._alarm is None or self._alarm.precise,
            self._receive_maximum,
            self._granted,
            process.offset,
        )

    def _close(self) -> None:
        for connection in self.connections:
            connection.close()

    async def _clean_up(self) -> None:
        """Remove this run's durable sessions and retained messages from the broker, unless `--keep` is set."""
        plan, process = self.plan, self.process
        for subscriber in self.subscribers.values():
            subscriber.close()
        if plan.retain and not plan.keep:
            for number, publisher in self.publishers.items():
                empty = Publish(plan.topic_of(number), b"", retain=True)
                publisher.out.append(encode(empty, plan.target.version))
        self._close()
        if not plan.target.clean_start and not plan.keep:
            names = [f"s{one}" for one in self.subscribers] + [f"p{one}" for one in self.publishers]
            await process.each(names, self._forget)

    async def _forget(self, name: str) -> None:
        connection = Connection(self.process.turn, self.plan.target.version)
        await self.process.open(connection, self.process.connect_packet(name, clean=True))
        connection.close()
