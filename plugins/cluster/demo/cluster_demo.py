"""Show a cluster of three brokers and three NATS servers, and what happens when some of them are killed.

make demo-cluster                                     runs until Ctrl-C
make demo-cluster DEMO="--rounds 6"                   ends after six faults
make demo-cluster DEMO="--seconds 60 --rate 1000"     ends after a minute

All clients connect through a load balancer. In each round, the demo kills a broker, a NATS server, or both, with
SIGKILL. It starts them again once the other brokers have the sessions. The exit code is 1 if an acknowledged message is
lost, or if a message with QoS 2 arrives twice. It is 2 if nats-server is not installed.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from demo_balancer import Balancer
from demo_clients import Clients
from demo_cluster import LEASE, Broker, Process, Processes, ProcessFailed
from demo_screen import Figures, NodeFigures, Screen, figures_of
from hookmq_cluster.engine_errors import EngineError

FAULTS: Final = ("broker", "server", "broker and server")
"""The processes that the rounds kill, in turn."""
CALM: Final = 2.0
"""Seconds before a fault."""
DOWN: Final = 2.0
"""Seconds for which a process stays killed, at least."""
NOTICED: Final = 0.5
"""Seconds after a fault in which acknowledgements do not count yet: they may have been under way."""
RECOVERY: Final = 60.0
"""Seconds within which the cluster must have recovered from a fault."""
EVERY: Final = {True: 0.5, False: 1.0}
"""Seconds between two pages on a terminal, or two lines elsewhere."""
LOOK: Final = 0.4
"""Seconds between two questions to the brokers."""
GLANCE: Final = 0.05


class Interrupted(Exception):
    """The demo must end now: its time is over, or a signal has arrived."""


class Demo:
    """The running demo."""

    def __init__(self, screen: Screen, seconds: float) -> None:
        self.screen = screen
        self.interrupts = 0
        self.rounds = 0
        self.pauses: list[float] = []
        self._phase = ""
        self._nodes: dict[str, NodeFigures] = {}
        self._end = time.monotonic() + seconds
        loop = asyncio.get_running_loop()
        for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(which, self._interrupt)

    def _interrupt(self) -> None:
        self.interrupts += 1

    async def start(self, stack: AsyncExitStack, clients: Clients, rate: float) -> None:
        """Start all parts. `stack` stops them. Raises EngineError, ProcessFailed or Interrupted."""
        folder = Path(mkdtemp(prefix="hookmq-demo-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        processes = Processes(folder)
        self.processes = processes
        self.clients = clients
        stack.push_async_callback(processes.stop)
        await self._step("three NATS servers", processes.start(list(processes.servers)))
        await self._step("three brokers", processes.start(list(processes.brokers)))
        self.balancer = Balancer({one.name: one.port for one in processes.brokers})
        await self.balancer.start()
        stack.push_async_callback(self.balancer.close)
        stack.push_async_callback(clients.close)
        await self._step("the clients", clients.start(self.balancer.port, rate))
        watching = asyncio.create_task(self._watch())
        stack.callback(watching.cancel)

    async def _step(self, what: str, awaited: Awaitable[None]) -> None:
        began = time.monotonic()
        self.screen.say(f"  ▸ Starting {what}.")
        task = asyncio.ensure_future(awaited)
        while not task.done():
            if self.interrupts:
                task.cancel()
                raise Interrupted
            await asyncio.wait([task], timeout=GLANCE)
        task.result()
        self.screen.say(f"  ✓ {what[0].upper()}{what[1:]}: {time.monotonic() - began:.1f} s", "32")

    # --- rounds ----------------------------------------------------------------------------------------------------

    async def run(self, rounds: int | None) -> None:
        """Cause faults until `rounds` are over, the time is over, or a signal arrives."""
        try:
            for number in count() if rounds is None else range(rounds):
                await self._round(number)
                self.rounds += 1
            await self._pass(CALM / 2, "No more faults.")
        except Interrupted:
            pass

    async def _round(self, number: int) -> None:
        await self._pass(CALM, f"Round {number + 1}: all processes run.")
        kinds = FAULTS[number % len(FAULTS)]
        broker = self.processes.brokers[number % 3]
        server = self.processes.servers[(number // 3 + number) % 3]
        killed: list[Process] = []
        if "broker" in kinds:
            killed.append(broker)
        if "server" in kinds:
            killed.append(server)
        names = " and ".join(_title(one) for one in killed)
        self.clients.begin_round()
        began = time.monotonic()
        for one in killed:
            await one.kill()
        self._phase = f"Round {number + 1}: {names} killed."
        self.screen.say(f"■ {names} killed.", "33")
        if broker in killed:
            await self._until(lambda: bool(self._heir(broker)), "no node adopts the sessions")
            self.screen.say(f"  Broker {self._heir(broker)} has its sessions now.", "32")
        await self._until(partial(self._flows, began + NOTICED), "the clients do not come back")
        pause = self.clients.longest_pause()
        self.screen.say(
            f"  All clients are served. Longest pause of a publisher: {pause:.1f} s.", "32"
        )
        await self._pass(DOWN - (time.monotonic() - began))
        began = time.monotonic()
        self._phase = f"Round {number + 1}: {names} started again."
        for one in killed:
            await one.start()
        await self._until(partial(self._whole, began), "the cluster does not recover")
        took = time.monotonic() - began
        self.pauses.append(max(pause, self.clients.longest_pause()))
        self.screen.say(
            f"▶ {names} back after {took:.1f} s. Longest pause so far: {self.pauses[-1]:.1f} s.",
            "32",
        )

    def _heir(self, dead: Broker) -> str:
        """Return the living node that has the lane of a dead one, or an empty string."""
        living = (one for one in self._nodes.values() if one.name != dead.name)
        return next((one.name for one in living if dead.name in one.lanes), "")

    def _flows(self, since: float) -> bool:
        """Return whether all clients are connected, and each publisher got an acknowledgement after `since`."""
        newest = min(one.newest for one in self.clients.publishers)
        return self.clients.connected() and newest > since

    def _whole(self, since: float) -> bool:
        """Return whether each node has its own lane, and all clients have been served after `since`."""
        nodes = self._nodes.values()
        return self._flows(since) and all(
            one.state == "ready" and one.name in one.lanes for one in nodes
        )

    async def _pass(self, seconds: float, phase: str = "") -> None:
        """Let time pass. Raises Interrupted."""
        self._phase = phase or self._phase
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._check()
            await asyncio.sleep(GLANCE)

    async def _until(self, done: Callable[[], bool], problem: str) -> None:
        """Wait until `done` returns True. Raises Interrupted, or ProcessFailed if it takes too long."""
        end = time.monotonic() + RECOVERY
        while not done():
            self._check()
            if time.monotonic() > end:
                raise ProcessFailed(f"After {RECOVERY:.0f} seconds, {problem}.")
            await asyncio.sleep(GLANCE)

    def _check(self) -> None:
        self.processes.check()
        self.clients.check()
        if self.interrupts or time.monotonic() > self._end:
            raise Interrupted

    # --- figures -----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Ask the nodes for their state, and show the figures. Run this as a task."""
        shown = 0.0
        while True:
            for one in self.processes.brokers:
                self._nodes[one.name] = await self._look(one)
            if time.monotonic() - shown >= EVERY[self.screen.live]:
                shown = time.monotonic()
                self.screen.show(self._figures())
            await asyncio.sleep(LOOK)

    async def _look(self, broker: Broker) -> NodeFigures:
        through = self.balancer.open[broker.name]
        status, overview = await asyncio.gather(broker.ask("cluster"), broker.ask("overview"))
        if broker.killed:
            return NodeFigures(broker.name, "killed", through=through)
        return figures_of(broker.name, status, (overview or {}).get("connections", 0), through)

    def _figures(self) -> Figures:
        servers = {
            one.name: "killed" if one.killed else "running" for one in self.processes.servers
        }
        return Figures(
            self._phase, self.clients.stored, list(self._nodes.values()), servers, self._counts()
        )

    def _counts(self) -> list[tuple[str, Sequence[int]]]:
        return [
            (one.title, (len(one.got), len(one.missing), one.repeated, one.doubled))
            for one in self.clients.receivers
        ]

    # --- the end -----------------------------------------------------------------------------------------------------

    async def finish(self) -> bool:
        """Stop publishing, wait until everything has arrived, and print the counts. Return whether all guarantees were
        kept."""
        before = self.interrupts
        clients = self.clients
        self._phase = "The publishers have stopped. The last messages arrive."
        self.screen.say("\nStopping. The last messages arrive; Ctrl-C again skips this.")
        killed = [one for one in self.processes.everything if one.killed]
        await self.processes.start(killed)
        await clients.finish()
        end = time.monotonic() + RECOVERY
        while not clients.finished() and time.monotonic() < end and self.interrupts == before:
            clients.check()
            await asyncio.sleep(GLANCE)
        lost = sum(len(one.missing) for one in clients.receivers)
        doubled = sum(one.doubled for one in clients.receivers)
        waiting = sum(one.waiting for one in clients.publishers)
        say = self.screen.say
        say(f"{self.rounds} rounds, {clients.stored:,} messages acknowledged, {waiting} unanswered")
        if self.pauses:
            say(f"longest pause of a publisher: {max(self.pauses):.1f} s; lease: {LEASE} s")
        for line in self.screen.table(self._counts()):
            say(line)
        wrong = {
            "acknowledged messages lost": lost, "messages with QoS 2 doubled": doubled,
            "messages unanswered": waiting, "messages refused": clients.refused,
            "sessions lost": clients.sessions_lost,
        }  # fmt: skip
        for what, number in wrong.items():
            if number:
                say(f"{number:,} {what}", "31")
        if any(wrong.values()):
            return False
        say("Every acknowledged message arrived. None with QoS 2 arrived twice.", "32")
        return True


def _title(process: Process) -> str:
    kind = "broker" if isinstance(process, Broker) else "NATS server"
    return f"{kind} {process.name}"


async def demonstrate(chosen: argparse.Namespace) -> int:
    """Run the demo, and return its exit code."""
    screen = Screen()
    code = 1
    async with AsyncExitStack() as stack:
        demo = Demo(screen, chosen.seconds or float("inf"))
        try:
            await demo.start(stack, Clients(chosen.publishers, chosen.members), chosen.rate)
            await demo.run(chosen.rounds)
            code = 0 if await demo.finish() else 1
        except EngineError as error:
            print(error, file=sys.stderr)
            return 2
        except (ProcessFailed, AssertionError, OSError) as error:
            print(error, file=sys.stderr)
            return 1
        except Interrupted:
            return 1
    screen.say("All processes are stopped, and their files are deleted.")
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    title, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=title, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help="end after this many faults")
    parser.add_argument("--seconds", type=float, help="end after this time")
    parser.add_argument("--publishers", type=int, default=4, help="number of publishers; default 4")
    parser.add_argument(
        "--members", type=int, default=3, help="members of the shared subscription; default 3"
    )
    parser.add_argument("--rate", type=float, default=200, help="messages per second; default 200")
    chosen = parser.parse_args(arguments)
    if min(chosen.publishers, chosen.members) < 1 or not 0 < chosen.rate <= 5000:
        parser.error("--publishers and --members must be at least 1, and --rate between 0 and 5000")
    if (chosen.rounds is not None and chosen.rounds < 0) or (chosen.seconds or 1) <= 0:
        parser.error("--rounds and --seconds must be positive")
    return asyncio.run(demonstrate(chosen))


if __name__ == "__main__":
    sys.exit(main())
