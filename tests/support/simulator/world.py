"""The world of one run: the broker and its processes, the disk, the network, the clients and the faults.

A run has five parts: the plan's steps with their faults; a recovery of thirty virtual seconds, after which every
guarantee must hold; the departure of all clients; a check of the remaining state; and, with journals, a change of the
store.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from hookmq.storage import group_commit as committer

from simulator import checks
from simulator.misbehaving_client import Rude
from simulator.plan import Plan
from simulator.process import Result
from simulator.store_change import Epochs

LIVENESS: Final = 30.0
"""Virtual seconds after the last fault within which every guarantee must hold."""
SWEEP: Final = 8
"""Number of events between two checks of the broker's state."""


class World(Epochs):
    """One run of one plan, executed by `run`. If `say` is given, it receives every packet and step."""

    def run(self) -> Result:
        """Execute the run and return its result."""
        usual, committer.MAX_RECORDS = committer.MAX_RECORDS, self.knobs.max_records
        try:
            return self._run()
        finally:
            committer.MAX_RECORDS = usual

    def _run(self) -> Result:
        knobs = self.knobs
        self._start()
        for step in self.plan.steps:
            self.clock.at(step.at, partial(self._do, step))
        if knobs.keeper:
            self.clock.after(0.0, self._keep)
        if self.queues is not None:
            self.clock.after(0.0, self.queues.start)
        parts: tuple[tuple[float, Callable[[], None]], ...] = (
            (knobs.duration + 0.5, self._heal),
            (LIVENESS, self._check_promises),
        )
        if knobs.queues:
            parts += ((0.0, self._crash_once_more), (10.0, self._check_queues))
        parts += (
            (0.0, self._depart),
            (15.0, self._leave),
            (LIVENESS + max(60.0, knobs.server_expiry) + 15.0, self._check_leaks),
        )
        if knobs.journals:
            parts += ((0.0, self._begin_anew), (5.0, self._go_down), (5.0, self._check_epochs))
        for seconds, then in parts:
            if not self._pass(seconds):
                break
            self._note(f"--- {then.__name__.strip('_').replace('_', ' ')}")
            then()
            if self.result.failed:
                break
        self._close()
        return self.result

    def _pass(self, seconds: float) -> bool:
        result = self.result
        events = 0
        for _ in self.clock.until(self.clock.now + seconds):
            events += 1
            if events % SWEEP == 0 and self.broker is not None and self.ready:
                checks.check_step(self.broker, self.settings, bool(result.crashes), self.complain)
                self.journals.check_step()
                if self.queues is not None:
                    self.queues.check_step()
            if result.invariant:
                break
        result.events += events
        return not result.failed

    def _close(self) -> None:
        result = self.result
        result.packets += self._packets()
        result.delivered = self.ledger.delivered
        if self.disk is not None:
            result.commits = self.disk.commits
        if self.runtime is not None:
            self.runtime.kill()
        if self.queues is not None:
            self.queues.crash(() if self.broker is None else tuple(self.broker.state.journals))
            self.queues.close()

    def _packets(self) -> int:
        return self.broker.metrics.packets_received if self.broker is not None else 0

    # --- the end -----------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        self.calm = True
        disk = self.disk
        if disk is not None:
            disk.trouble = ""
            disk.latency = min(disk.latency, 0.01)
            disk.read_delay = min(disk.read_delay, 0.01)
        self.journals.calm()
        if self.queues is not None:
            self.queues.heal()
        self.weather.latency = min(self.weather.latency, 0.005)
        self.weather.jitter = min(self.weather.jitter, 0.005)
        self.denied.clear()
        for link in self.rude_links:
            link.unstall()
            link.hang_up()
        for link in self.links:
            link.end_now()
        for client in self.clients:
            client.mute(False)
            client.unstall()
            client.online = True
            if client.link is None:
                client.connect((False, *client.wanted[1:]))

    def _check_promises(self) -> None:
        if self.broker is None:
            self.complain("liveness", "the broker is not up")
            return
        if self.knobs.evicts:
            # A client that receives its own message may be disconnected for it whenever it returns to resend it.
            return
        for client in self.clients:
            if client.tainted:
                continue
            if not client.open:
                self.complain("liveness", f"{client.client_id} is not connected")
            if client.outbox or client.backlog:
                rest = [str(sent) for sent, *_ in (*client.outbox.values(), *client.backlog)][:3]
                self.complain("liveness", f"{client.client_id} waits for the end of {rest}")
        lives = [c.life for c in self.clients if c.life is not None and not c.tainted]
        self.ledger.check_owed(lives)
        self.wills.check(self.clients[0].life, self.clients[0].client_id, self.clock.now)
        checks.check_settled(self.broker, self.disk, self.complain)
        self.journals.check_settled()
        self.keeper.check_settled(self.broker, self.disk)
        retained = self.broker.state.retained
        self.ledger.check_retained(
            {topic: out.message.payload for topic, out in retained.match("r/#")}
        )

    def _crash_once_more(self) -> None:
        """Crash the broker to check that everything settled by queue consumers is on disk."""
        self._check_queues()
        self.crash(0.1)

    def _check_queues(self) -> None:
        assert self.queues is not None
        self.queues.check_settled()

    def _depart(self) -> None:
        if self.queues is not None:
            self.queues.depart()
        self.result.full_windows = 0
        for client in self.clients:
            client.connect((True, 0, None, 65535, 0, False))
        for number in range(self.knobs.rude):
            Rude(self, f"rude{number}", "bye", number, 5).start()

    def _leave(self) -> None:
        for client in self.clients:
            client.leave("normal")

    def _check_leaks(self) -> None:
        if self.broker is None:
            self.complain("10 leak", "the broker is not up")
            return
        checks.check_gone(self.broker, self.runtime, self.disk, self.hooks, self.complain)
        self.journals.check_settled()


def run(plan: Plan, say: Callable[[str], None] | None = None) -> Result:
    """Run a plan and return its result."""
    return World(plan, say).run()
