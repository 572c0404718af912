"""The other plugins of a configuration with `cluster`: which ones it refuses, and why."""

from collections.abc import Sequence

from hookmq.plugin import ConfigError, Plugin
from hookmq_toolkit.cluster import PerNode


def check_companions(cluster: Plugin, plugins: Sequence[Plugin], allowed: Sequence[str]) -> None:
    """Raise ConfigError if one of `plugins` cannot run together with `cluster`.

    These are plugins that store the same state, and each `PerNode` whose id is not in `allowed`.
    """
    others = [one for one in plugins if one is not cluster]
    for one in others:
        if hasattr(one, "provide_store") and "provide_store" not in one.idle_hooks:
            raise ConfigError(
                f"plugin {one.id!r} stores sessions and messages, but plugin {cluster.id!r} stores them in NATS",
                hint="remove one of the two; `hookmq cluster import` moves the contents of a store to a cluster",
            )
    refused = [one for one in others if _reason(one) and one.id not in allowed]
    if refused:
        reasons = "; ".join(f"{one.id!r}: {_reason(one)}" for one in refused)
        ids = ", ".join(one.id for one in refused)
        raise ConfigError(
            f"plugins that do not work in a cluster as on one broker: {reasons}",
            hint=f"remove them, or accept this with `per_node: [{ids}]` in the config of plugin {cluster.id!r}",
        )


def _reason(plugin: Plugin) -> str:
    return plugin.per_node if isinstance(plugin, PerNode) else ""
