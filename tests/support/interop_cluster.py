"""Brokers that are a cluster. Their clients connect to random nodes."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from nats_server import NatsCluster
from serving import Served, serving

SEED = 1
PLUGIN = """\
plugins:
  - use: cluster
    config: {{node: {name}, servers: ["{server}"], replicas: 1, allow_single_replica: true}}
"""


class RandomPorts(dict[str, int]):
    """The ports of a cluster by listener. Each lookup returns that of a random node."""

    def __init__(self, nodes: list[dict[str, int]]) -> None:
        super().__init__(nodes[0])
        self._nodes = nodes
        self._random = random.Random(SEED)

    def __getitem__(self, listener: str) -> int:
        return self._random.choice(self._nodes)[listener]


@contextmanager
def serving_cluster(folder: Path, text: str, count: int) -> Iterator[Served]:
    """Run `count` brokers with the configuration `text`, and one NATS server, until the block ends.

    Each broker must end as with `serving`.
    """
    with ExitStack() as stack:
        nats = NatsCluster(1)
        stack.callback(nats.close)
        nats.start()
        nodes: list[Served] = []
        for number in range(count):
            file = folder / f"n{number}.yaml"
            file.write_text(text + PLUGIN.format(name=f"n{number}", server=nats.nodes[0].url))
            nodes.append(stack.enter_context(serving("-c", str(file))))
        yield replace(nodes[0], ports=RandomPorts([node.ports for node in nodes]))
