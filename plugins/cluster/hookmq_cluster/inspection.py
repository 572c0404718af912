"""The checks of NATS that a node makes when it starts, without changing anything: for `hookmq cluster check`."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

from hookmq.plugin import Runtime, StoreError
from hookmq_toolkit.network_errors import network_reason

from hookmq_cluster.config import ClusterConfig
from hookmq_cluster.engine_errors import EngineError
from hookmq_cluster.filling import refuse_unfinished
from hookmq_cluster.log_writer import read_members
from hookmq_cluster.names import Names
from hookmq_cluster.nats_child import check_program, find_program
from hookmq_cluster.nats_connection import NatsConnection, NatsOptions
from hookmq_cluster.nats_engine import NatsEngine
from hookmq_cluster.nats_stream import check_server, no_copies
from hookmq_cluster.nats_sync import read_sync
from hookmq_cluster.permissions import missing_permissions
from hookmq_cluster.waiting import ended

PATIENCE: Final = 10.0
"""Seconds until JetStream must answer."""


class Finding(NamedTuple):
    """One line of the report. With `failed`, a node with this configuration would not start, or not work."""

    state: Literal["ok", "note", "failed"]
    part: Literal["server", "permission", "stream", "sync", "node"]
    text: str


async def inspect_own_server() -> Finding:
    """Check the nats-server that a broker with workers starts."""
    try:
        version = await check_program(find_program())
    except EngineError as error:
        return Finding("failed", "server", str(error))
    return Finding("ok", "server", f"the broker starts nats-server {version} for its workers")


class Inspection:
    """Checks the NATS servers in a configuration, with the same rules as the start of a node."""

    def __init__(
        self, config: ClusterConfig, nodes: tuple[str, ...], options: NatsOptions, runtime: Runtime
    ) -> None:
        self._config = config
        self._nodes = nodes
        self._names = Names(config.name)
        self._options = options
        self._runtime = runtime
        self._infos: dict[str, dict[str, Any]] = {}
        """The INFO of each server that can be used, by its URL."""

    async def run(self) -> AsyncIterator[Finding]:
        """Yield all findings. A server that cannot be reached is only noted if another one can be used."""
        for finding in await self._servers():
            yield finding
        if not self._infos:
            return
        async for finding in self._log():
            yield finding
        async for finding in self._sync():
            yield finding

    async def _servers(self) -> list[Finding]:
        found: list[Finding] = []
        lost: dict[str, str] = {}
        waiting = list(self._options.servers)
        for server in waiting:
            connection = NatsConnection(
                self._options, self._runtime, lambda *_: None, lambda _: None
            )
            try:
                await connection.open(server)
            except EngineError as error:
                hint = "; check the user, token or credentials" if "Auth" in str(error) else ""
                found.append(Finding("failed", "server", f"{server}: {error}{hint}"))
                continue
            except (OSError, TimeoutError) as error:
                lost[server] = network_reason(error)
                continue
            info = dict(connection.info)
            connection.close()
            if problem := check_server(info):
                found.append(Finding("failed", "server", f"{server}: {problem}"))
                continue
            self._infos[server] = info
            cluster = f", part of the cluster {info['cluster']}" if info.get("cluster") else ""
            text = f"{server}: nats-server {info['version']} with JetStream{cluster}"
            found.append(Finding("ok", "server", text))
        state: Literal["note", "failed"] = "note" if self._infos else "failed"
        return found + [
            Finding(state, "server", f"{one}: {why}; is it running?") for one, why in lost.items()
        ]

    async def _log(self) -> AsyncIterator[Finding]:
        names, config = self._names, self._config
        options = replace(self._options, servers=tuple(self._infos))
        engine = NatsEngine(
            options, names.stream, names.everything, self._runtime,
            config.replicas, config.allow_single_replica,
        )  # fmt: skip
        found, failure = None, ""
        try:
            try:
                found = await engine.open(PATIENCE, create=False)
                if found is None and config.replicas > 1 and not self._clustered():
                    raise no_copies(config.replicas)
            except EngineError as error:
                failure = str(error)
            denied = await missing_permissions(options, names, self._nodes[0], found is None)
            for text in denied:
                yield Finding("failed", "permission", f"{text}: add it to the user of NATS")
            if not denied:
                yield Finding("ok", "permission", "the user may use all subjects of the cluster")
            if failure and not (denied and "Permissions Violation" in failure):
                yield Finding("failed", "stream", failure)
            elif not failure:
                findings = stream_findings(found, names.stream, config.replicas)
                for finding in findings:
                    yield finding
                failure = next((one.text for one in findings if one.state == "failed"), "")
            if found is not None and not denied and not failure:
                async for finding in self._contents(engine):
                    yield finding
        finally:
            await ended(self._runtime, engine.close)

    def _clustered(self) -> bool:
        return any(info.get("cluster") for info in self._infos.values())

    async def _contents(self, engine: NatsEngine) -> AsyncIterator[Finding]:
        names = self._names
        try:
            await refuse_unfinished(engine, self._runtime, names)
            members = await read_members(engine, self._runtime, names)
        except StoreError as error:
            yield Finding("failed", "stream", str(error))
            return
        live = {member.node: member.address for member in members}
        for node in self._nodes:
            if node in live:
                text = f"{node} is running, with the address {live[node]}, or was until a lease ago"
                yield Finding("note", "node", f"{text}; a second process with this name would end")
            else:
                yield Finding("ok", "node", f"no other process is node {node}")
        others = ", ".join(node for node in live if node not in self._nodes)
        yield Finding("ok", "node", f"other live nodes: {others or 'none'}")

    async def _sync(self) -> AsyncIterator[Finding]:
        config = self._config
        if config.sync == "lazy":
            text = "lazy, as configured: a power cut of all machines loses up to two minutes"
            yield Finding("ok", "sync", text)
            return
        if not config.monitoring:
            text = (
                "not verified: set `monitoring` to check that the servers write each commit to disk"
            )
            yield Finding("note", "sync", text)
        for address, (refused, unknown) in (await read_sync(config.monitoring)).items():
            if refused:
                yield Finding("failed", "sync", refused)
            elif unknown:
                yield Finding("note", "sync", f"{address}: not verified: {unknown}")
            else:
                yield Finding("ok", "sync", f"{address}: each commit is written to disk")


def stream_findings(found: dict[str, Any] | None, name: str, replicas: int) -> list[Finding]:
    """Check a stream. `found` is JetStream's information about it, or None if the stream does not exist."""
    copies = f"{replicas} {'copy' if replicas == 1 else 'copies'}"
    if found is None:
        text = f"{name} does not exist; the first node creates it with {copies}"
        return [Finding("ok", "stream", text)]
    state, cluster = found.get("state") or {}, found.get("cluster") or {}
    leader = f", leader {cluster['leader']}" if cluster.get("leader") else ""
    text = f"{name} exists with {copies}{leader}, and has {state.get('messages', 0):,} entries"
    late = [
        str(one.get("name"))
        for one in cluster.get("replicas") or ()
        if one.get("offline") or not one.get("current")
    ]
    findings = [Finding("ok", "stream", text)]
    findings += [Finding("note", "stream", f"the copy on {one} is not up to date") for one in late]
    if 2 * len(late) >= replicas:
        text = (
            f"no majority: {len(late)} of {copies} are not up to date; start the other NATS servers"
        )
        findings.append(Finding("failed", "stream", text))
    return findings
