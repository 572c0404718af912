"""The names of a cluster's stream and subjects.

Client ids and topics may contain any character and have 65,535 bytes, so subjects contain their hashes. Names of nodes
and lanes are checked in the configuration.
"""

from hashlib import blake2b


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


class Names:
    """The subjects of the cluster `cluster`. Those in the stream begin with ``hmq.``, messages that are not stored with
    ``hmqc.``.
    """

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.stream = f"HOOKMQ_{cluster}"
        self._stored = f"hmq.{cluster}."
        self._sent = f"hmqc.{cluster}."
        self.everything = self._stored + ">"
        """All subjects of the stream."""
        self.owners = self._stored + "own.*"
        """The owners of all lanes."""
        self.retained_messages = self._stored + "ret.*"
        """All retained messages."""
        self.lanes = self._stored + "lane.*"
        """The frames of all lanes."""
        self.sessions = self._stored + "sess.*"
        """The lanes of all durable sessions."""
        self.filling = self._stored + "filling"
        """The mark that a tool fills the cluster, or began to; see `hookmq_cluster.log_writer`."""
        self.facts = self._stored + "fact.*"
        """What plugins share; see `hookmq_cluster.facts`."""
        self.all_away = self._stored + "away.*"
        """The state of plugins that any node has stored without its home lane."""
        self.leases = self._stored + "lease.*"
        """The leases of all nodes."""
        self.secret = self._stored + "secret"
        """The secret by which nodes recognize each other when they relay connections."""
        self.everyone = self._sent + "all"
        """Messages for every node."""
        self.trials = (self._stored + "trial", self._sent + "trial")
        """Subjects to try out permissions. Nothing is stored there, and nobody listens."""

    def relative(self, subject: str) -> str:
        """Return a subject of the stream without the name of the cluster."""
        return subject.removeprefix(self._stored)

    def absolute(self, relative: str) -> str:
        """Return the subject of the stream that `relative` names in this cluster."""
        return self._stored + relative

    def own(self, lane: str) -> str:
        """The subject with the owner of `lane`. The sequence of its last message is the lane's fence."""
        return f"{self._stored}own.{lane}"

    def away(self, node: str) -> str:
        """The subject with the state of plugins that has changed while `node` did not have its home lane."""
        return f"{self._stored}away.{node}"

    def lane(self, lane: str) -> str:
        """The subject with the frames of `lane`."""
        return f"{self._stored}lane.{lane}"

    def retained(self, topic: str) -> str:
        """The subject with the retained message of `topic`."""
        return f"{self._stored}ret.{_hash(topic)}"

    def session(self, client_id: str) -> str:
        """The subject that names the lane of a client's durable session."""
        return f"{self._stored}sess.{_hash(client_id)}"

    def fact(self, space: str, key: str) -> str:
        """The subject with a fact that a plugin shares."""
        return f"{self._stored}fact.{_hash(space + chr(0) + key)}"

    def lease(self, node: str) -> str:
        """The subject with the lease of `node`."""
        return f"{self._stored}lease.{node}"

    def node(self, node: str) -> str:
        """The subject of messages for `node`."""
        return f"{self._sent}node.{node}"
