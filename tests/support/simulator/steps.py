"""Execute the steps of a plan."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hookmq.broker import Broker

from simulator import checks
from simulator.client import Client
from simulator.misbehaving_client import Rude
from simulator.plan import Step
from simulator.process import Process


class Steps(Process):
    """Executes steps. `_do_NAME` executes the step NAME."""

    def _do(self, step: Step) -> None:
        if self.say is not None and step.what not in ("publish",):
            self._note(f">>> {step.what} {step.who} {step.args}")
        getattr(self, "_do_" + step.what)(step.who, *step.args)

    def _do_connect(self, who: int, *wanted: Any) -> None:
        self.clients[who].connect(wanted)

    def _do_publish(
        self, who: int, topic: str, qos: int, retain: bool, size: int, expiry: int
    ) -> None:
        self.clients[who].publish(topic, qos, retain, size, expiry)

    def _do_subscribe(self, who: int, *requests: Any) -> None:
        self._when_open(who, lambda client: client.subscribe(requests))

    def _when_open(self, who: int, call: Callable[[Client], None], tries: int = 20) -> None:
        """Call `call` once the client is connected. Give up after `tries` attempts."""
        client = self.clients[who]
        if client.open:
            call(client)
        elif tries and client.online:
            self.clock.after(0.1, partial(self._when_open, who, call, tries - 1))

    def _do_unsubscribe(self, who: int, text: str) -> None:
        self.clients[who].unsubscribe(text)

    def _do_leave(self, who: int, how: str) -> None:
        self.clients[who].leave(how)

    def _do_cut(self, who: int, lost: bool) -> None:
        self.clients[who].cut(lost)

    def _do_dark(self, who: int, seconds: float) -> None:
        self.clients[who].dark(seconds)

    def _do_stall(self, who: int, seconds: float) -> None:
        client = self.clients[who]
        client.stall()
        link = client.link
        if link is not None:
            self.clock.after(seconds, link.unstall)

    def _do_mute(self, who: int, seconds: float) -> None:
        client = self.clients[who]
        client.mute(True)
        self.clock.after(seconds, partial(client.mute, False))

    def _do_crash(self, who: int, downtime: float) -> None:
        self.crash(downtime)

    def _do_drain(self, who: int, downtime: float) -> None:
        broker = self.broker
        if broker is None:
            return

        def done() -> None:
            self.clock.after(0.1, partial(self._stop, broker, downtime))

        broker.drain("", done)

    def _stop(self, broker: Broker, downtime: float) -> None:
        if self.broker is broker:
            self.crash(downtime)

    def _do_kick(self, who: int) -> None:
        handle = self._handle()
        if handle is not None:
            handle.disconnect(self.clients[who].client_id)

    def _handle(self) -> Any:
        instance = self.hooks.instance("warden")
        return instance.broker if self.broker is not None and instance is not None else None

    def _do_invalidate(self, who: int, one: bool) -> None:
        handle = self._handle()
        if handle is not None:
            handle.invalidate_authz(self.clients[who].client_id if one else None)

    def _do_right(self, who: int, filter: str, allowed: bool) -> None:
        client = self.clients[who]
        if "acl" not in self.knobs.plugins:
            return
        if allowed:
            self.denied.discard((client.client_id, filter))
            return
        self.denied.add((client.client_id, filter))
        now = self.clock.now
        for sub in client.life.subs if client.life is not None else ():
            if checks.contains(filter, sub.filter):
                if sub.certain_until is None:
                    sub.certain_until = now
                if sub.possible_until is None and self.broker is not None:
                    sub.possible_until = now + 3.0
        handle = self._handle()
        if handle is not None:
            handle.invalidate_authz(client.client_id, filter)

    def _do_wrap(self, who: int) -> None:
        self.wrap(self.clients[who].client_id)

    def _do_reload(self, who: int) -> None:
        if self.broker is not None:
            self.hooks = self._make_hooks()
            self.broker.reload(self.settings, self.hooks)
            if self.ready:
                self._get_ready()

    def _do_reauth(self, who: int) -> None:
        self.clients[who].re_authenticate()

    def _do_disk(self, who: int, trouble: str) -> None:
        if self.disk is not None:
            self.disk.trouble = trouble

    def _do_journal(self, who: int, number: int, trouble: str) -> None:
        names = list(self.journals.disks)
        if names:
            self.journals.disks[names[number % len(names)]].trouble = trouble

    def _do_queue_publish(self, who: int, topic: str, count: int) -> None:
        if self.queues is not None:
            self.queues.feeder.publish(topic, count)

    def _do_queue_come(self, who: int) -> None:
        if self.queues is not None:
            self.queues.clients[who].connect()

    def _do_queue_leave(self, who: int, lost: bool) -> None:
        if self.queues is not None:
            self.queues.clients[who].leave(lost)

    def _do_queue_disk(self, who: int, trouble: str) -> None:
        if self.queues is not None:
            self.queues.trouble = trouble

    def _do_want(self, who: int, number: int, filters: tuple[str, ...]) -> None:
        names = list(self.journals.disks)
        handle = self._handle()
        if names and handle is not None:
            self.journals.disks[names[number % len(names)]].want(filters)
            handle.invalidate_routes()

    def _do_slow(self, who: int, seconds: float, latency: float) -> None:
        disk = self.disk
        if disk is not None:
            disk.latency = latency
            self.clock.after(seconds, self._fast_again)

    def _fast_again(self) -> None:
        if self.disk is not None and not self.calm:
            self.disk.latency = self.knobs.disk_latency

    def _do_storm(self, who: int) -> None:
        for client in self.clients:
            client.cut(True)

    def _do_rude(self, who: int, kind: str, number: int, version: int) -> None:
        Rude(self, f"rude{who}", kind, number, version).start()
