"""Bring clients that belong together to one node of this machine, so that their messages need not leave it."""

import re
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

from hookmq.cluster_api import Here, Transfer

from hookmq_cluster.transfer import Transfers

LONGEST: Final = 256
"""The longest client id that is searched: each search keeps all clients of the node waiting, and anybody can connect with
any id."""


class Together:
    """Chooses the node for clients without a session elsewhere.

    `pattern` is searched in a client id. Clients for which its first group matches the same text belong together.
    `members` returns the names of the other nodes that take clients.
    """

    def __init__(
        self,
        pattern: str,
        node: str,
        transfers: Transfers,
        members: Callable[[], Iterable[str]],
    ) -> None:
        self._pattern = re.compile(pattern)
        self._node = node
        self._transfers = transfers
        self._members = members

    def place(self, client_id: str) -> Here | Transfer:
        """Return this node or another one of this machine. All nodes with the same members choose the same one."""
        found = self._pattern.search(client_id) if len(client_id) <= LONGEST else None
        text = found[1] if found is not None else None
        if not text:
            return Here()
        nodes = [node for node in self._members() if self._transfers.reaches(node)]
        best = choose(text, [self._node, *nodes])
        # A node's home lane has its name.
        return Here() if best == self._node else self._transfers.transfer(best, best, Here())


def choose(text: str, nodes: Iterable[str]) -> str:
    """Return the node for `text`. If a node joins or leaves, only its own texts move (rendezvous hashing)."""
    # A plugin may give its client an id with surrogates.
    data = text.encode(errors="surrogatepass")
    return max(nodes, key=lambda node: blake2b(node.encode() + b"\0" + data).digest())
