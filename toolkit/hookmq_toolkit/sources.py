"""A service for managing sources: one plugin provides it, and another can offer it to operators.

A plugin offers a `SourceManager` in `Plugin.offered_services` under the name `SERVICE`. A source receives messages from
another system, such as a queue, and publishes them here. Its methods raise `hookmq_toolkit.sinks.SinkError`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from hookmq_toolkit.sinks import DeadLetterPage, ReplayResult, SinkProblem, SinkState

SERVICE: Final = "sources"
"""The name of the service in `Plugin.offered_services`."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The state of a source.

    - `driver`: the kind of origin; `identity`: the identity under which the source publishes.
    - `reason`: why the source is retrying or failed; empty otherwise.
    - `dead_letters`: the number of dead letters on disk.
    - `counts`: counters since the broker started: `received` (messages that the broker accepted), `refused` (messages
      that it did not accept) and `restarts` (of the source's process).
    - `process_counts`: counters since the source's process started: `batches`, `connections`, `delayed` and `skipped`.
    - `origin_counts`: the driver's counters since it connected.
    """

    name: str
    driver: str
    identity: str
    state: SinkState
    reason: str
    dead_letters: int
    counts: Mapping[str, float]
    process_counts: Mapping[str, float] = field(default_factory=dict)
    origin_counts: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class SourceManager(Protocol):
    """Manages sources. Call the methods only on the event loop. Each of them raises SinkError."""

    def list_sources(self) -> Sequence[SourceStatus]:
        """Return all sources in the order of the configuration."""

    def show_source(self, name: str) -> SourceStatus:
        """Return one source."""

    async def pause_source(self, name: str, paused: bool) -> None:
        """Pause or resume a source. This lasts until the next such call, even across a restart. A paused source has no
        connection.
        """

    async def list_source_letters(self, name: str, after: int | None, limit: int) -> DeadLetterPage:
        """Return messages that could not be published, oldest first, starting after number `after`."""

    async def test_source(self, name: str) -> Sequence[SinkProblem]:
        """Connect to the origin and disconnect again, without receiving anything. This may create a group of consumers. A
        source that is connected has no problems.

        Returns all problems that the test found.
        """

    async def replay_source_letters(self, name: str) -> ReplayResult:
        """Publish all dead letters again. Messages that the broker still does not accept remain dead letters. If the
        broker ends during a replay, the next replay may publish some of the messages again.
        """

    async def purge_source_letters(self, name: str) -> int:
        """Delete all dead letters, and return their number."""
