"""Packets are taken in order with their publishers, and early if many wait."""

from hookmq_cluster.packet_runs import FULL, PacketRuns


def test_runs_have_the_packets_of_one_publisher_and_version() -> None:
    ready: list[bool] = []
    runs = PacketRuns(ready.append)
    assert runs.take() == []
    add = runs.collector.add
    one, two = "one", "two"
    add(one, True, b"1")
    add(one, True, b"2")
    add(two, True, b"3")
    add(two, False, b"4")
    add(one, True, b"5")
    assert ready == [False]
    assert runs.take() == [
        (one, True, 2, b"12"),
        (two, True, 1, b"3"),
        (two, False, 1, b"4"),
        (one, True, 1, b"5"),
    ]
    assert runs.take() == []
    add(one, True, b"6")
    assert ready == [False, False]
    assert runs.take() == [(one, True, 1, b"6")]


def test_many_bytes_are_taken_before_the_next_publisher() -> None:
    taken: list[list[tuple[str, bool, int, bytes]]] = []

    def ready(full: bool) -> None:
        if full:
            taken.append(runs.take())

    runs = PacketRuns(ready)
    large = bytes(FULL)
    runs.collector.add("one", True, large)
    runs.collector.add("one", True, b"1")
    assert taken == []
    runs.collector.add("two", True, b"2")
    assert taken == [[("one", True, 2, large + b"1")]]
    assert runs.take() == [("two", True, 1, b"2")]
