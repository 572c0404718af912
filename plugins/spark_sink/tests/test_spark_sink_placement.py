"""Test how partitions are chosen. The choice never changes, and even a few similar topics are spread evenly. With
`round_robin`, the partitions take turns.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import StoreError
from hookmq_spark_sink import placement
from hookmq_spark_sink.placement import by_crc32, by_name
from hookmq_spark_sink.plugin import SparkSinkPlugin
from hookmq_testing import make_plugin
from hypothesis import given
from hypothesis import strategies as st

Keep = Callable[..., Any]

PATTERNS = (
    "plant/d{}",
    "sensors/{}/temp",
    "device-{:03}/state",
    "v1/devices/{}/telemetry",
    "werk/linie{}",
    "spBv1.0/plant1/DDATA/edge{}",
)


def spread(topics: list[str], partitions: int) -> list[int]:
    """Return the number of topics in each partition."""
    found = Counter(by_name(topic, partitions) for topic in topics)
    return [found[place] for place in range(partitions)]


@pytest.mark.parametrize(
    ("topic", "places"),
    [
        ("", (0, 0, 34, 180)),
        ("a", (1, 2, 66, 47)),
        ("plant/d0", (1, 0, 65, 137)),
        ("plant/d3", (0, 0, 68, 140)),
        ("sensors/17/temp", (1, 2, 76, 113)),
        ("line2/device-0042/état", (1, 2, 58, 77)),
        ("7", (0, 0, 28, 252)),
    ],
)
def test_partitions_never_change(topic: str, places: tuple[int, ...]) -> None:
    """If a topic's partition changed, an existing log would have the topic in two partitions."""
    assert tuple(by_name(topic, partitions) for partitions in (2, 3, 101, 256)) == places


@given(
    st.sampled_from(PATTERNS),
    st.integers(0, 900),
    st.integers(1, 10),
    st.integers(2, 16),
)
def test_numbers_of_one_decade_take_turns(
    pattern: str, decade: int, count: int, partitions: int
) -> None:
    topics = [pattern.format(decade * 10 + number) for number in range(count)]
    found = spread(topics, partitions)
    assert max(found) - min(found) <= 1


@given(
    st.sampled_from(PATTERNS),
    st.integers(0, 99),
    st.integers(0, 90),
    st.integers(2, 32),
    st.sampled_from((1, 2, 5, 10)),
    st.sampled_from((2, 3, 4, 5, 6, 7, 8, 10, 12, 16)),
)
def test_few_topics_fill_most_partitions(
    pattern: str, hundreds: int, first: int, count: int, step: int, partitions: int
) -> None:
    """Topics whose numbers rise in steps, within the same hundred, are spread almost evenly.

    A partition has at most 2.5 topics more than its share. With two partitions, all even numbers in a group of ten
    share a partition.
    """
    numbers = range(first, min(100, first + count * step), step)
    topics = [pattern.format(hundreds * 100 + number) for number in numbers]
    found = spread(topics, partitions)
    assert max(found) <= len(topics) / partitions + 2.5


def test_the_four_devices_that_filled_two_partitions() -> None:
    topics = [f"plant/d{number}" for number in range(4)]
    assert len({by_crc32(topic, 4) for topic in topics}) == 2
    assert spread(topics, 4) == [1, 1, 1, 1]


@pytest.mark.parametrize("partitions", [2, 3, 4, 8, 16])
def test_many_topics_of_any_kind_are_even(partitions: int) -> None:
    kinds = {
        "words": [f"site/{a}{b}{c}" for a in "abcdefghij" for b in "aeiou" for c in "klmnprstvw"],
        "grid": [f"line{a}/dev{b}/temp" for a in range(50) for b in range(40)],
        "constant": [f"dev{a}/sensor1" for a in range(2000)],
        "pair": [f"gw{a}/dev{a + 1}" for a in range(2000)],
        "even": [f"d{2 * a}" for a in range(2000)],
        "hex": [f"id/{a * 2654435761 % (1 << 32):08x}" for a in range(2000)],
    }
    for kind, topics in kinds.items():
        found = spread(topics, partitions)
        expected = len(topics) / partitions
        assert max(found) < expected + 5 * expected**0.5, kind
        assert min(found) > expected - 5 * expected**0.5, kind


def test_topics_are_cached_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "_REMEMBERED", 10)
    made = placement.make(placement.NAMES, 4, [0] * 4)
    for number in range(100):
        assert made.place(f"t/{number}") == by_name(f"t/{number}", 4)
        assert len(made.places) <= 10


# streams --------------------------------------------------------------------------------------------------------------


def test_round_robin_uses_all_partitions_for_one_topic(keep: Keep) -> None:
    kept = keep(partitions=4, partition_by="round_robin")
    for number in range(8):
        kept.publish(b"%d" % number, b"again")
    assert kept.stream.latest == [4, 4, 4, 4]
    assert kept.stream.counts.blocks == 8  # a commit is one block
    kept.publish(*[b"x"] * 2500)
    assert sorted(kept.stream.latest) == [4, 504, 1004, 1004]
    fewest = kept.stream.latest.index(4)
    kept.open()
    kept.publish(b"first after the start")
    assert kept.stream.latest[fewest] == 5


def test_an_old_log_keeps_its_hash(keep: Keep) -> None:
    kept = keep(partitions=4)
    described = json.loads((kept.stream.folder / "stream.json").read_text())
    assert described.pop("placement") == "names"
    kept.close()
    (kept.stream.folder / "stream.json").write_text(json.dumps(described))
    kept.open()
    for number in range(20):
        kept.publish(b"x", topic=f"plant/d{number}")
    for place in range(4):
        assert all(by_crc32(row["topic"], 4) == place for row in kept.rows(place))


def test_another_placement_is_refused(keep: Keep) -> None:
    kept = keep(partitions=4)
    with pytest.raises(
        StoreError, match=r"created with partition_by: topic, but .* says round_robin"
    ):
        kept.open(partition_by="round_robin")
    described = json.loads((kept.stream.folder / "stream.json").read_text())
    (kept.stream.folder / "stream.json").write_text(json.dumps({**described, "placement": "?"}))
    with pytest.raises(StoreError, match=r"stream.json has the placement '\?'"):
        kept.open(partition_by="topic")


def test_notes_tell_the_consequence(tmp_path: Path) -> None:
    topics = ["plant/kitchen", "plant/hall", "plant/d0", "plant/d1"]

    def notes(**stream: Any) -> list[str]:
        given = {"name": "all", "topics": topics, "partitions": 4, **stream}
        [made] = [make_plugin(SparkSinkPlugin, {"path": tmp_path, "streams": [given]})]
        assert isinstance(made.plugin, SparkSinkPlugin)
        return list(made.plugin.notes)

    assert notes(topics=["#"]) == notes(partitions=1) == []
    assert notes(topics=[f"plant/d{n}" for n in range(4)]) == []
    assert notes() == ["stream all: its topics are in 3 of 4 partitions; the others remain empty"]
    [order] = notes(partition_by="round_robin")
    assert order.endswith("partition_by is round_robin, so the messages of a topic are in no order")
    (tmp_path / "all").mkdir()
    old = {"format": 1, "name": "all", "partitions": 4, "log_id": "x"}
    (tmp_path / "all" / "stream.json").write_text(json.dumps(old))
    [hash_used] = notes(topics=["#"])
    assert "created with the placement crc32" in hash_used
