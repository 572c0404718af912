"""The plan of one run: knobs, which are chosen once (swarm testing), and a script of steps.

Both are plain data. A failing plan can therefore be shrunk by removing steps and resetting knobs, and then kept as a
regression test.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from hookmq.model.settings import (
    AuthSettings,
    AuthzSettings,
    BrokerSettings,
    SessionSettings,
    Settings,
)


class Step(NamedTuple):
    """One step: at `at` seconds, client number `who` (-1: the world) does `what` with `args`."""

    at: float
    what: str
    who: int
    args: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Knobs:
    """The properties of a world. The defaults describe a calm world, and shrinking resets knobs to them."""

    seed: int = 0
    versions: tuple[int, ...] = (5, 5, 5, 4)
    """The MQTT version of each client. The first client watches wills and is never offline for long."""
    tainted: int = -1
    """The client whose id other clients use too, or -1. Only the general invariants are checked for it."""
    rude: int = 0
    duration: float = 20.0
    crash_at_turns: float = 0.0
    """The probability of a crash just after a session starts, resumes or ends. There is at most one such crash per
    second.
    """
    volatile: bool = False
    """Use a store without persistence. The broker never crashes then."""
    disk_latency: float = 0.005
    read_delay: float = 0.0
    max_records: int = 20000
    """A batch is split after this many records, if that is safe."""
    journals: tuple[str, ...] = ()
    """Names from `journal.JOURNALS`."""
    journal_latency: float = 0.005
    queues: bool = False
    """Whether the plugin `queues` runs, with its own clients."""
    keeper: float = 0.0
    """The mean time in seconds between changes by a plugin that keeps state; 0 for no such plugin."""
    latency: float = 0.002
    jitter: float = 0.002
    split: float = 0.0
    lag: float = 0.0
    high_water: int = 65536
    plugins: tuple[str, ...] = ()
    plugin_delay: float = 0.0
    plugin_fault: float = 0.0
    ack_delay: float = 0.0
    window: int = 20
    """Each client's Receive Maximum, and the limit on its own unacknowledged messages."""
    aliases: int = 0
    max_inflight: int = 256
    receive_maximum: int = 1024
    queue_messages: int = 10000
    queue_bytes: int = 16777216
    queue_drop: str = "newest"
    queue_page: int = 256
    queue_qos0: bool = False
    max_queue_bytes: int = 1 << 30
    overflow: str = "pending"
    fan_out_batch: int = 1000
    async_fan_out: bool = False
    max_held_inbound_bytes: int = 262144
    retry_interval: float = 0.0
    strategy: str = "round_robin"
    authz_cache: int = 1024
    outbound_alias: int = 16
    duplicate_client_id: str = "takeover"
    flapping: int = 10
    denied: str = "acknowledge"
    server_expiry: float = 60.0
    max_write_buffer: int = 1 << 20

    @property
    def evicts(self) -> bool:
        """Return whether clients with a full queue are disconnected."""
        small = (
            self.queue_messages < 10000
            or self.queue_bytes < 1 << 24
            or self.max_queue_bytes < 1 << 30
        )
        return small and self.queue_drop == "disconnect"

    def settings(self) -> Settings:
        """Return the broker's settings for this plan."""
        chosen: Any = self
        return Settings(
            BrokerSettings(
                receive_maximum=self.receive_maximum,
                async_fan_out=self.async_fan_out,
                fan_out_batch=self.fan_out_batch,
                max_held_inbound_bytes=self.max_held_inbound_bytes,
                shared_strategy=chosen.strategy,
                authz_cache=self.authz_cache,
                outbound_topic_alias=self.outbound_alias,
                duplicate_client_id=chosen.duplicate_client_id,
                flapping_takeovers=self.flapping,
                mqtt3_denied_publish=chosen.denied,
                max_queue_bytes=self.max_queue_bytes,
                max_write_buffer=self.max_write_buffer,
                hold_timeout=20.0,
            ),
            SessionSettings(
                max_expiry=self.server_expiry,
                max_inflight=self.max_inflight,
                queue_messages=self.queue_messages,
                queue_bytes=self.queue_bytes,
                queue_drop=chosen.queue_drop,
                queue_page=self.queue_page,
                queue_qos0=self.queue_qos0,
                inflight_overflow=chosen.overflow,
                backpressure_timeout=2.0,
                retry_interval=self.retry_interval,
                other_owner="replace",  # rude clients use the names of others, and must not keep them
            ),
            AuthSettings("allow"),
            AuthzSettings("allow"),
        )

    def changed(self) -> dict[str, Any]:
        """Return the knobs that differ from their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }


class Plan(NamedTuple):
    """The plan of one run."""

    knobs: Knobs
    steps: tuple[Step, ...]

    def __repr__(self) -> str:
        knobs = ", ".join(f"{name}={value!r}" for name, value in self.knobs.changed().items())
        steps = "\n".join(
            f"        Step({s.at}, {s.what!r}, {s.who}, {s.args!r})," for s in self.steps
        )
        return f"Plan(\n    Knobs({knobs}),\n    (\n{steps}\n    ),\n)"
