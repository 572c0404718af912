"""Test that packets for another node are collected with their publishers."""

from hookmq.storage.cluster_packets import RemotePackets


def test_the_cluster_is_called_before_the_packets_of_another_publisher() -> None:
    calls: list[tuple[str, bool, int]] = []
    packets: RemotePackets

    def begin(sender: str, five: bool) -> None:
        calls.append((sender, five, len(packets.packets)))

    packets = RemotePackets(begin)
    one, two = "client-1", "client-2"
    for sender, five in ((one, False), (one, False), (two, False), (two, True), (one, True)):
        packets.add(sender, five, b"x")
    assert calls == [(one, False, 0), (two, False, 2), (two, True, 3), (one, True, 4)]
    assert packets.packets == [b"x"] * 5


def test_after_the_packets_are_taken_the_cluster_is_called_again() -> None:
    calls: list[tuple[str, bool]] = []
    packets = RemotePackets(lambda sender, five: calls.append((sender, five)))
    packets.add("client", True, b"x")
    packets.packets = []
    packets.sender = ""
    packets.add("client", True, b"y")
    assert calls == [("client", True)] * 2
    assert packets.packets == [b"y"]
