"""Moves everything from a store to a cluster, and back. No node of the cluster runs meanwhile."""

from collections.abc import Callable, Sequence

from hookmq.plugin import Runtime, StoreError
from hookmq.storage_api import Store

from hookmq_cluster.engine import Engine
from hookmq_cluster.lane_import import LaneImport
from hookmq_cluster.log_contents import LogContents, read_contents
from hookmq_cluster.log_writer import LogWriter, refuse_live_nodes
from hookmq_cluster.names import Names
from hookmq_cluster.store_export import StoreExport
from hookmq_cluster.store_items import Item, ItemCounts, items_of

Progress = Callable[[int], None]
"""Called with the number of items so far."""
STEP = 1000
"""Items between two calls of `Progress`."""


def _count(counts: ItemCounts, item: Item, progress: Progress) -> None:
    counts.add(item)
    if counts.total % STEP == 0:
        progress(counts.total)


async def contents_of(engine: Engine, names: Names, runtime: Runtime) -> ItemCounts:
    """Return the contents of a cluster. Raises StoreError if it cannot be read."""
    counts = ItemCounts()
    contents = await read_contents(engine, names, runtime)
    for lane in contents.lanes:
        async for item in contents.lane_items(runtime, lane):
            counts.add(item)
    for retained in contents.retained:
        counts.add(retained)
    return counts


def refuse_contents(cluster: str, counts: ItemCounts) -> None:
    """Raise StoreError if a cluster contains anything."""
    if counts.total:
        raise StoreError(
            f"cluster {cluster!r} already has {counts.sessions:,} sessions, {counts.queue_entries:,} queued messages, "
            f"{counts.retained:,} retained messages and {counts.plugin_state:,} keys of plugins; "
            "--replace deletes all of that first"
        )


async def import_store(
    engine: Engine,
    names: Names,
    runtime: Runtime,
    store: Store,
    lanes: Sequence[str],
    what: str,
    replace: bool = False,
    progress: Progress = lambda _: None,
) -> ItemCounts:
    """Fill a cluster with everything in `store`, spread over `lanes`. Return the number of items.

    Raises StoreError if a node is running, or if the cluster contains anything, unless `replace` is set. After a crash,
    the same call begins again.
    """
    counts = ItemCounts()
    writer = LogWriter(engine, names, runtime, what)
    await prepare(writer, engine, names, runtime, lanes, replace)
    filling = LaneImport(writer, engine, names, runtime, lanes)
    async for item in items_of(runtime, store.load(), store.read):
        await filling.put(item)
        _count(counts, item, progress)
    await filling.finish()
    await writer.finish()
    return counts


async def try_import(
    engine: Engine | None,
    names: Names,
    runtime: Runtime,
    store: Store,
    replace: bool = False,
    progress: Progress = lambda _: None,
) -> ItemCounts:
    """Read what `import_store` reads, and change nothing. Return the number of items. See `check_target`.

    Raises StoreError as `import_store` does.
    """
    await check_target(engine, names, runtime, replace)
    counts = ItemCounts()
    async for item in items_of(runtime, store.load(), store.read):
        _count(counts, item, progress)
    return counts


async def check_target(
    engine: Engine | None, names: Names, runtime: Runtime, replace: bool
) -> None:
    """Raise StoreError if a cluster must not be filled: a node is running, or it contains anything, unless `replace`.
    `engine` is None if it has no stream yet."""
    if engine is not None:
        await refuse_live_nodes(engine, runtime, names)
        if not replace:
            refuse_contents(names.cluster, await contents_of(engine, names, runtime))


async def prepare(
    writer: LogWriter,
    engine: Engine,
    names: Names,
    runtime: Runtime,
    lanes: Sequence[str],
    replace: bool,
) -> None:
    """Set the mark, and delete the contents of the cluster. Without `replace`, these must be empty, or what another
    attempt has left."""
    earlier = await writer.begin()
    if not earlier and not replace:
        try:
            refuse_contents(names.cluster, await contents_of(engine, names, runtime))
        except StoreError:
            await writer.abandon()
            raise
    await writer.clear(lanes)


async def export_contents(
    contents: LogContents,
    runtime: Runtime,
    store: Store | None,
    state_lane: str = "",
    progress: Progress = lambda _: None,
) -> ItemCounts:
    """Write the contents of a cluster into an empty store, or only count them if `store` is None. Return the number of
    items.

    Raises StoreError if messages in the log have not been delivered to sessions, or if two lanes have the same object.
    """
    if contents.undelivered:
        found = ", ".join(
            f"{count} in lane {name!r}" for name, count in contents.undelivered.items()
        )
        raise StoreError(
            f"messages of other nodes are not delivered yet (frames: {found}); start the nodes, then stop them all"
        )
    counts = ItemCounts()
    filling = None if store is None else StoreExport(store, runtime)
    async for item in contents.items(runtime, state_lane):
        if filling is not None:
            await filling.put(item)
        _count(counts, item, progress)
    if filling is not None:
        await filling.finish()
    return counts
