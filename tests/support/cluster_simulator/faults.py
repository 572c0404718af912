"""The faults of a run: each kind begins at a random moment, and most of them end by themselves."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from cluster_simulator.world import World

SPANS: Final = (0.2, 0.6, 1.5, 4.0)
"""How long a fault lasts, in leases."""


class FaultMaker:
    """Begins faults in `world`. `names` are all nodes; `counts` has the number of faults so far, by kind."""

    def __init__(self, world: World, random: Random, names: str) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._random = random
        self._names = names
        self._kinds: dict[str, Callable[[str], bool]] = {
            "kill": self._kill,
            "stop": self._stop,
            "pause": self._pause,
            "cut": self._cut,
            "split": self._split,
            "election": self._election,
            "drain": self._drain,
        }
        count = random.randrange(1, len(self._kinds) + 1)
        self.kinds = random.sample(sorted(self._kinds), count)
        """The kinds of faults in this run."""

    def begin(self) -> str:
        """Begin a fault. Return its description, or an empty string if it is not possible now."""
        kind = self._random.choice(self.kinds)
        names = [name for name in self._names if name in self._world.nodes]
        if not names:
            return ""
        name = self._random.choice(names)
        if not self._kinds[kind](name):
            return ""
        self.counts[kind] += 1
        return f"{kind} {name}"

    def operate(self) -> str:
        """Act as an operator: start a node, put a drained one back into service, or move a lane. Return a description, or
        an empty string if none of these is possible now."""
        for operation in self._random.sample((self.start, self._undrain, self._move), 3):
            if text := operation():
                return text
        return ""

    def start(self) -> str:
        """Start a node that does not run. Return a description, or an empty string if there is none."""
        names = [name for name in self._names if name not in self._world.nodes]
        if not names:
            return ""
        name = self._random.choice(names)
        self._world.boot(name)
        return f"start {name}"

    def _undrain(self) -> str:
        world = self._world
        names = [name for name in world.nodes if world.drain_state(name)]
        if not names:
            return ""
        name = self._random.choice(names)
        if not world.undrain(name):
            return ""
        self.counts["undrain"] += 1
        return f"undrain {name}"

    def _move(self) -> str:
        """Move an adopted lane."""
        world = self._world
        ready = [name for name in world.nodes if world.is_ready(name)]
        for name in ready:
            adopted = sorted(world.cluster(name).keeper.open - {name})
            others = [one for one in ready if one != name]
            if adopted and others:
                lane, to = self._random.choice(adopted), self._random.choice(others)
                if world.move(name, lane, to):
                    self.counts["move"] += 1
                    return f"move lane {lane} from {name} to {to}"
        return ""

    def end(self) -> None:
        """End all faults."""
        world = self._world
        world.log.start()
        world.log.mend_routes()
        for clock in world.clocks.values():
            clock.resume()
        for name in world.nodes:
            world.engines[name].heal()

    def _later(self, call: Callable[[], None]) -> None:
        span = self._random.choice(SPANS) * self._world.lease * self._random.uniform(0.5, 1.5)
        self._world.clock.call_later(span, call)

    def _kill(self, name: str) -> bool:
        self._world.kill(name)
        return True

    def _stop(self, name: str) -> bool:
        self._world.stop(name)
        return True

    def _pause(self, name: str) -> bool:
        clock = self._world.clocks[name]
        if clock.paused:
            return False
        clock.pause()
        self._later(clock.resume)
        return True

    def _cut(self, name: str) -> bool:
        engine = self._world.engines[name]
        if engine.is_cut:
            return False
        engine.cut()
        self._later(engine.heal)
        return True

    def _split(self, name: str) -> bool:
        """Lose the messages between two nodes that are not stored, one way or both ways."""
        world, others = self._world, [one for one in self._world.nodes if one != name]
        if not others:
            return False
        one, other = world.engines[name], world.engines[self._random.choice(others)]
        world.log.break_route(one, other, one_way=self._random.random() < 0.5)
        self._later(partial(world.log.mend_route, one, other))
        return True

    def _election(self, name: str) -> bool:
        """Stop the log for a moment, as an election does, or for longer."""
        log = self._world.log
        if not log.available:
            return False
        log.stop()
        seconds = self._random.choice((0.5, 2.0, 5.0, 1.5 * self._world.lease))
        self._world.clock.call_later(self._random.random() * seconds, log.start)
        return True

    def _drain(self, name: str) -> bool:
        """Drain a node, or try again after an attempt that has failed."""
        seconds = self._random.choice((0.0, 0.0, 0.5, 3.0))
        return self._world.drain(name, seconds, self._random.random() < 0.5)
