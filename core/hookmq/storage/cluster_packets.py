"""QoS 0 packets for another node of a cluster, exactly as their publishers sent them."""

from collections.abc import Callable


class RemotePackets:
    """Collects the QoS 0 packets of a turn for one other node. The fast path adds them. Compiled code must be quick here,
    so the cluster does everything else: it empties `packets`, and sets `sender` to an empty string.

    `begin` is called before a packet with another publisher or MQTT version than the packet before it, with the client id
    and whether the version is 5.
    """

    __slots__ = ("_begin", "_five", "packets", "sender")

    def __init__(self, begin: Callable[[str, bool], None]) -> None:
        self._begin = begin
        self._five = False
        self.sender = ""
        self.packets: list[bytes] = []

    def add(self, sender: str, five: bool, packet: bytes) -> None:
        """Add a PUBLISH without DUP, RETAIN, Topic Alias and Subscription Identifier."""
        if sender is not self.sender or five != self._five:
            self._begin(sender, five)
            self.sender, self._five = sender, five
        self.packets.append(packet)
