"""The broker's process in the simulated world: started, crashed and restarted from disk.

The class also implements the interfaces that clients and plugins use.
"""

import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from hookmq.broker import Broker
from hookmq.broker.state import BrokerState
from hookmq.hooks.manager import Hooks
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.model.events import Direction, DropReason
from hookmq.model.message import Message
from hookmq.mqtt.packets import Packet, Publish
from hookmq.mqtt.reason_codes import PacketType
from hookmq.plugin import BrokerHandle, Plugin
from hookmq.storage.memory_store import MemoryStore
from hookmq.storage.protocols import Store
from hookmq_testing.runtime import EPOCH, VirtualRuntime

from simulator.client import Client
from simulator.clock import Clock, SimRuntime
from simulator.coverage import Cell
from simulator.disk import Disk, OpenDisk
from simulator.journal import Journals, OpenJournal
from simulator.keeper import PLUGIN as KEEPER
from simulator.keeper import Keeper
from simulator.ledger import Ledger
from simulator.misbehaving_client import Rude
from simulator.network import Endpoint, Link, Weather
from simulator.plan import Plan
from simulator.plugins import PARTS, certificate_of
from simulator.queues import Queues
from simulator.wills import Wills

JOURNALS_SEED: Final = 0x6A6F7572
"""A seed offset that separates the random numbers of the journals from all others."""
KEEPER_SEED: Final = 0x6B657074
"""A seed offset that separates the random numbers of the keeper's changes from all others."""


@dataclass(slots=True)
class Result:
    """The result of a run. `invariant` is empty if all invariants held."""

    seed: int
    invariant: str = ""
    text: str = ""
    at: float = 0.0
    hash: int = 0
    events: int = 0
    packets: int = 0
    delivered: int = 0
    crashes: int = 0
    commits: int = 0
    takeovers: int = 0
    full_windows: int = 0
    cells: Counter[Cell] = field(default_factory=Counter)

    @property
    def failed(self) -> bool:
        """Return whether an invariant was violated."""
        return bool(self.invariant)


class Process:
    """The state of one run. The sequence of events is in `world`."""

    def __init__(self, plan: Plan, say: Callable[[str], None] | None = None) -> None:
        knobs = plan.knobs
        self.plan = plan
        self.knobs = knobs
        self.say = say
        self.clock = Clock()
        root = Random(knobs.seed)
        self.chance = Random(root.getrandbits(64))
        self._broker_seeds = Random(root.getrandbits(64))
        self.result = Result(knobs.seed)
        self.ledger = Ledger(self.complain, "shaper" in knobs.plugins)
        self.wills = Wills(self.ledger, self.complain)
        self.disk: Disk | None = None
        if not knobs.volatile:
            self._disk_random = Random(root.getrandbits(64))
            self.disk = self._make_disk("sim")
        self.store: Store = MemoryStore()
        self.journals = Journals(
            knobs.journals, self.clock, knobs.seed ^ JOURNALS_SEED, knobs.journal_latency, self.ledger, self.complain,
            lambda: self.store.last_commit(), self.mix,
        )  # fmt: skip
        self.keeper = Keeper(Random(knobs.seed ^ KEEPER_SEED), self.complain)
        self.queues: Queues | None = None
        if knobs.queues:
            self.queues = Queues(self, knobs.seed, self.ledger.crashed_between)
        self.weather = Weather(knobs.latency, knobs.jitter, knobs.split, knobs.high_water)
        self.calm = False
        self.denied: set[tuple[str, str]] = set()
        self.allowed: set[tuple[str, bytes]] = set()
        self.links: list[Link] = []
        self.present: dict[str, bool] = {}
        self.broker: Broker | None = None
        self.runtime: SimRuntime | None = None
        self.hooks = Hooks()
        self.settings = knobs.settings()
        self.ready = False
        """Whether the broker has started."""
        self.clients = [
            Client(
                self, number, version, root.getrandbits(64), knobs.ack_delay, knobs.aliases, knobs.server_expiry,
                number == knobs.tainted,
            )
            for number, version in enumerate(knobs.versions)
        ]  # fmt: skip
        self.victim = f"client{knobs.tainted}" if knobs.tainted >= 0 else ""
        self.rude_links: list[Link] = []

    def complain(self, invariant: str, text: str) -> None:
        """Record a violated invariant. The first one ends the run."""
        result = self.result
        if not result.invariant:
            result.invariant, result.text, result.at = invariant, text, self.clock.now
            self._note(f"!!! {invariant}: {text}")

    def mix(self, data: bytes) -> None:
        """Add bytes and the current time to the hash of the trace."""
        result = self.result
        result.hash = zlib.crc32(data, result.hash ^ int(self.clock.now * 1e6) & 0xFFFFFFFF)

    def heard(self, who: str, direction: str, packet: Packet) -> None:
        """Add a packet to the trace."""
        if self.say is not None:
            payload = f" {packet.payload[:12]!r}" if isinstance(packet, Publish) else ""
            self._note(f"{who} {direction} {packet}{payload}")

    def _note(self, text: str) -> None:
        if self.say is not None:
            self.say(f"{self.clock.now:9.4f}  {text}")

    def _make_disk(self, identity: str) -> Disk:
        knobs = self.knobs
        disk = Disk(
            self.clock,
            self._disk_random,
            knobs.disk_latency,
            knobs.read_delay,
            self.complain,
            identity,
        )
        disk.begins = self._store_begins
        return disk

    def _store_begins(self, number: int) -> None:
        self.journals.store_begins(number)

    # --- the broker --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.runtime = runtime = SimRuntime(
            self.clock, self._broker_seeds.getrandbits(64), self.knobs.lag, self._logged
        )
        store = self.disk.open() if self.disk is not None else None
        self.hooks = self._make_hooks()
        self.broker = broker = Broker(self.settings, runtime, self.hooks, store)
        self.store = broker.store
        self._watch_drops(broker.state)
        broker.on_failure = partial(self._store_failed, runtime)
        self.ready = False
        if self.queues is None:
            broker.start(self._is_up)
            return
        self.queues.watch(tuple(broker.state.journals))

        def loaded(error: BaseException | None) -> None:
            if error is not None:
                self._is_up(error)
                return
            self.hooks.startup(started)

        def started(error: BaseException | None) -> None:
            if error is not None:
                self._is_up(error)
                return
            broker.start(self._is_up)

        broker.load(loaded)

    def _is_up(self, error: BaseException | None) -> None:
        if error is not None:
            self.complain("start", f"the broker does not start: {error}")
        self.ready = True
        self.journals.check_started()
        if self.broker is not None:
            self.keeper.check_started(self.broker)
        self._get_ready()
        self._note("=== the broker is up")

    def _get_ready(self) -> None:
        """Run `on_ready`. From then on, timers are called."""
        self.hooks.ready(lambda: None)

    def _keep(self) -> None:
        """While the broker is up and faults are injected, let the keeper make a change now and then."""
        if self.calm:
            return
        keeper = self.keeper
        instance = self.hooks.instance(KEEPER)
        if self.broker is not None and self.ready and instance is not None:
            assert instance.broker is not None
            keeper.act(instance.broker, self.current())
        self.clock.after(keeper.random.expovariate(1 / self.knobs.keeper), self._keep)

    def _make_hooks(self) -> Hooks:
        names = ("warden", *self.knobs.plugins, *self.knobs.journals)
        if self.knobs.keeper:
            names += (KEEPER,)
        made: list[Plugin] = [PARTS[name](self, name) for name in names]
        if self.queues is not None:
            made.append(self.queues.make())
        return Hooks.of(*made)

    def _watch_drops(self, core: BrokerState) -> None:
        def dropped(
            message: Message | None,
            client: ClientInfo | None,
            reason: DropReason,
            direction: Direction,
            detail: str,
        ) -> None:
            sent = self.ledger.find(message.payload) if message is not None else None
            if sent is not None:
                if direction is Direction.IN:
                    sent.lost = True
                else:
                    whose = client.client_id if client is not None else detail
                    sent.excused[whose] = self.clock.now
                self._note(
                    f"*** {sent} dropped {direction}: {reason} {client and client.client_id} {detail}"
                )

        core.on_drop = dropped

    def _logged(self, level: str, event: str, fields: dict[str, object]) -> None:
        if event == "internal.error":
            cause = fields.get("traceback")
            trace = cause.__traceback__ if isinstance(cause, BaseException) else None
            where = "".join(traceback.format_tb(trace)[-3:])
            self.complain("internal", f"{fields.get('error')}\n{where}")
        elif event == "client.connected":
            self.present[str(fields["client_id"])] = fields["session"] == "resumed"
            self.wrap(str(fields["client_id"]))
        elif event == "client.disconnected":
            if fields["by"] == "client" and fields["code"] == "0x00":
                client = self._client(str(fields["client_id"]))
                if client is not None:
                    self.wills.heard_goodbye(client.number, self.clock.now)
        elif event == "protocol.error":
            number = int(str(fields["peer"]).rpartition(":")[2]) - 1
            if any(self.links[number] is link for link in self.rude_links):
                return
            self.complain("accused", f"{fields['client_id']}: {fields['code']} {fields['detail']}")
        if self.say is not None and event not in ("client.connected",):
            self._note(f"    {event} { ({k: v for k, v in fields.items() if k != 'traceback'}) }")

    def _client(self, client_id: str) -> Client | None:
        return next((c for c in self.clients if c.client_id == client_id), None)

    def wrap(self, client_id: str) -> None:
        """Skip packet ids up to that of the oldest message in flight, as if 65,535 ids had been used."""
        session = self.broker.sessions.get(client_id) if self.broker is not None else None
        if session is not None and session.inflight:
            session.last_packet_id = (min(session.inflight) - 1) or 65535

    def crash(self, downtime: float) -> None:
        """End the broker's process and restart it after `downtime` seconds."""
        if self.broker is None or self.disk is None:
            return
        self.result.crashes += 1
        self.wills.crashing()
        self._kill()
        self.ledger.crashes.append(self.clock.now)
        for link in self.links:
            link.crash()
        self.clock.after(downtime, self._restart)

    def _kill(self) -> None:
        """End the process immediately."""
        runtime, broker = self.runtime, self.broker
        assert runtime is not None
        assert broker is not None
        self._note("=== the broker is down")
        result = self.result
        result.packets += broker.metrics.packets_received
        result.takeovers += broker.metrics.takeovers
        runtime.kill()
        if self.queues is not None:
            self.queues.crash(tuple(broker.state.journals))
        self.runtime = self.broker = None
        if isinstance(self.store, OpenDisk):
            self.store.lost = True
        if self.disk is not None:
            self.disk.crash()
        self.journals.crash()

    def _restart(self) -> None:
        assert self.disk is not None
        sessions = self.disk.image.sessions
        now = self.clock.now
        self.wills.crashed(sessions, now)
        for client in self.clients:
            kept = sessions.get(client.client_id)
            life = client.life
            if life is None:
                continue
            if kept is None or kept.ended_at is None:
                life.restarted_at = now
            else:
                life.restarted_at = max(life.restarted_at, kept.ended_at - EPOCH)
        self._start()

    def _store_failed(self, runtime: SimRuntime, reason: str) -> None:
        # Like the server: disconnect the clients, then end the process.
        broker = self.broker

        def drain() -> None:
            if self.broker is broker and broker is not None:
                broker.drain("", lambda: None)

        def end() -> None:
            if self.broker is broker:
                self.crash(0.5)

        self.clock.after(0.01, drain)
        self.clock.after(0.1, end)

    # --- calls from clients and plugins ------------------------------------------------------------------------------

    def dial(self, client: Endpoint, random: Random) -> Link:
        """Open a connection. Data sent on it waits until the broker has accepted it."""
        link = Link(self.clock, self.weather, random, len(self.links), client, self._fed)
        self.links.append(link)
        if isinstance(client, Rude):
            self.rude_links.append(link)
        self.clock.after(self.weather.latency, partial(self._accept, link))
        return link

    def _accept(self, link: Link) -> None:
        if self.broker is None or not self.ready:
            link.crash()
            return
        link.connection = self.broker.accept(
            link,
            Peer("10.0.0.1", link.number + 1, "memory", certificate_of(link.number + 1)),
            Scope(),
        )
        link.accepted()

    def _fed(self, link: Link, data: bytes, kind: PacketType | None) -> None:
        self.mix(data)
        if self.say is not None and link.connection is not None:
            who = link.connection.client
            self._note(
                f"    ({link.number} {who and who.client_id} {link.connection.phase.name} takes {data[:24]!r})"
            )
        if kind is not None and link.connection is not None:
            self.result.cells[link.connection.phase, kind] += 1

    def resumed(self, client_id: str) -> bool:
        """Implement `client.World.resumed`."""
        return self.present.get(client_id, False)

    def asked(self, client_id: str, packet: Publish) -> None:
        """Implement `client.World.asked`."""
        if "acl" not in self.knobs.plugins or not packet.payload or packet.dup:
            return
        if (client_id, packet.payload.partition(b".")[0]) not in self.allowed:
            self.complain("2 right", f"{client_id} got {packet} {packet.payload[:8]!r} unasked")

    def current(self) -> VirtualRuntime:
        """Implement `plugins.World.current`."""
        assert self.runtime is not None
        return self.runtime

    def plugin_delay(self) -> float:
        """Implement `plugins.World.plugin_delay`."""
        most = self.knobs.plugin_delay
        if self.calm or not most or self.chance.random() < 0.7:
            return 0.0
        return self.chance.random() * most

    def plugin_fails(self) -> bool:
        """Implement `plugins.World.plugin_fails`."""
        return not self.calm and self.chance.random() < self.knobs.plugin_fault

    def unsure(self, client_id: str, filter: str) -> None:
        """Implement `plugins.World.unsure`."""
        client = self._client(client_id)
        if client is not None and client.life is not None:
            for sub in client.life.subs:
                if sub.text == filter and sub.certain_until is None:
                    sub.certain_until = self.clock.now

    def turned(self) -> None:
        """Implement `plugins.World.turned`."""
        often, clock = self.knobs.crash_at_turns, self.clock
        if not often or self.calm or not self.ready or self.chance.random() >= often:
            return
        if not self.ledger.crashed_between(clock.now - 1.0, clock.now):
            clock.after(self.chance.random() * 0.02, partial(self._crash_of, self.broker))

    def _crash_of(self, broker: Broker | None) -> None:
        if broker is self.broker:
            self.crash(0.1)

    def timer_called(self, key: str, data: bytes, broker: BrokerHandle) -> None:
        """Implement `plugins.World.timer_called`."""
        self.keeper.called(key, data, broker)

    def journal(self, name: str) -> OpenJournal:
        """Implement `plugins.World.journal`."""
        return self.journals.disks[name].open()

    def echo(self) -> bytes:
        """Implement `plugins.World.echo`."""
        sent, payload = self.ledger.write(-1, "e/0", 2, origin="plugin")
        self.ledger.sending(sent, self.clock.now)
        return payload
