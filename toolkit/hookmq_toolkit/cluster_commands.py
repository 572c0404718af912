"""``hookmq cluster``: a command whose subcommands come from several plugins.

A plugin adds subcommands with an entry point in the ``hookmq.cluster_commands`` group. Its value is a function that takes
the subparsers of ``hookmq cluster``. The plugin `admin` adds those for a running broker, the plugin `cluster` those that
need only the cluster's log.
"""

import argparse
from importlib.metadata import entry_points
from typing import Final

GROUP: Final = "hookmq.cluster_commands"
"""The group of entry points that add subcommands."""
_EXAMPLES: Final = """\
examples:
  hookmq cluster check -c node.yaml
  hookmq cluster status --token-file admin.token
  hookmq cluster move gamma beta
  hookmq cluster import -c node.yaml --from /var/lib/hookmq
  hookmq cluster backup -c node.yaml cluster.backup

exit codes: 0 done, 1 refused, node not ready or not reachable, 2 usage error"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of all installed plugins."""
    parser.description = "See, fill, copy and change a cluster."
    parser.epilog = _EXAMPLES
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for point in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        point.load()(commands)
