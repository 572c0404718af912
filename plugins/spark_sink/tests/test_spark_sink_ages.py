"""Test how a message's age is estimated."""

from hookmq_spark_sink.ages import Ages

SECOND = 1_000_000


def test_messages_of_one_second_share_a_sample() -> None:
    ages = Ages(2)
    assert ages.time(0, 0) is None
    for number in range(100):
        ages.note(0, number + 1, number * SECOND // 10)
    for offset in range(100):
        found = ages.time(0, offset)
        assert found is not None
        assert 0 <= found - offset * SECOND // 10 <= 2 * SECOND
    assert ages.time(0, 100) is None
    assert ages.time(1, 0) is None


def test_the_number_of_samples_is_bounded_and_new_ones_are_exact() -> None:
    ages = Ages(1)
    for number in range(100_000):
        ages.note(0, number + 1, number * 2 * SECOND)
    assert len(ages._ends[0]) <= 2048
    for offset in range(99_500, 100_000):
        assert ages.time(0, offset) == offset * 2 * SECOND
    early = ages.time(0, 0)
    assert early is not None
    assert early < 200_000 * SECOND
