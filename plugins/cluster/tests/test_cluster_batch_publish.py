"""Commits as bytes, and what servers answer."""

import pytest
from hookmq_cluster.batch_publish import (
    NO_RESPONDERS,
    PublishAnswer,
    check_commit,
    decode_answer,
    encode_commit,
    encode_probe,
    found_sequence,
)
from hookmq_cluster.engine import Entry


def test_a_single_entry_has_no_batch() -> None:
    assert encode_commit([Entry("s", b"x")], "", "b", "i.1") == b"PUB s i.1 1\r\nx\r\n"
    entry = Entry("s", b"x", ("own", 7), True, 5)
    header = (
        b"NATS/1.0\r\nNats-Msg-Id: key\r\nNats-Expected-Last-Subject-Sequence: 7\r\n"
        b"Nats-Expected-Last-Subject-Sequence-Subject: own\r\nNats-Rollup: sub\r\nNats-TTL: 5s\r\n\r\n"
    )
    assert encode_commit([entry], "key", "b", "i.1") == (
        b"HPUB s i.1 %d %d\r\n%bx\r\n" % (len(header), len(header) + 1, header)
    )


def test_only_the_last_message_of_a_batch_is_answered_and_only_the_first_has_the_key() -> None:
    data = encode_commit([Entry("a", b"1"), Entry("b", b"2"), Entry("c", b"3")], "key", "id", "i.1")
    messages = data.split(b"HPUB ")[1:]
    assert [one.count(b"Nats-Batch-Id: id\r\n") for one in messages] == [1, 1, 1]
    assert [
        b"Nats-Batch-Sequence: %d\r\n" % (at + 1) in one for at, one in enumerate(messages)
    ] == [True] * 3
    assert [b"Nats-Batch-Commit: 1" in one for one in messages] == [False, False, True]
    assert [b"Nats-Msg-Id: key" in one for one in messages] == [True, False, False]
    assert [b"i.1 " in one for one in messages] == [False, False, True]


def test_a_probe_is_refused_after_its_id_was_looked_for() -> None:
    assert (
        b"Nats-Msg-Id: key\r\nNats-Expected-Last-Subject-Sequence: 9223372036854775807"
        in encode_probe("s", "key", "i.1", True)
    )
    assert b"Nats-Msg-Id: key\r\nNats-TTL: no\r\n" in encode_probe("s", "key", "i.1", False)


@pytest.mark.parametrize(
    ("header", "data", "answer"),
    [
        (b"", b'{"stream":"S","seq":5}', PublishAnswer(5, False, 0, "")),
        (b"", b'{"stream":"S","seq":5,"duplicate": true}', PublishAnswer(5, True, 0, "")),
        (
            b"",
            b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 3"},"seq":0}',
            PublishAnswer(0, False, 10071, "wrong last sequence: 3"),
        ),
        (b"", b'{"error":{"code":400}}', PublishAnswer(0, False, -1, "")),
        (
            b"NATS/1.0 503\r\n\r\n",
            b"",
            PublishAnswer(0, False, NO_RESPONDERS, "the stream has no leader"),
        ),
    ],
)
def test_answers(header: bytes, data: bytes, answer: PublishAnswer) -> None:
    assert decode_answer(header, data) == answer


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b'"x"', b"{}", b'{"seq":"x"}', b'{"seq":0}', b'{"seq":-1}', b'{"error":1}',
        b'{"error":{"err_code":"x"}}', b"\xff",
    ],
)  # fmt: skip
def test_answers_that_are_not_jetstreams_never_count_as_stored(data: bytes) -> None:
    answer = decode_answer(b"", data)
    assert (answer.sequence, answer.code) == (0, -1)


def test_the_sequence_in_a_refusal() -> None:
    assert found_sequence("wrong last sequence: 3") == 3
    assert found_sequence("wrong last sequence") == -1
    assert found_sequence("") == -1


def test_commits_that_are_not_possible() -> None:
    one = Entry("s", b"12345")
    check_commit([one] * 3, 3, 5)
    for entries, text in (
        ([], "0 entries; possible: 1 to 3"),
        ([one] * 4, "4 entries; possible: 1 to 3"),
        ([Entry("s", b"123456")], "6 bytes; possible: up to 5"),
        ([one, Entry("t", b"", ("s", 1))], "an expectation about s"),
        ([one, Entry("s", b"", replace=True)], "a replacement of s"),
    ):
        with pytest.raises(ValueError, match=text):
            check_commit(entries, 3, 5)
    check_commit([Entry("t", b"", ("s", 1)), Entry("s", b"", ("s", 1), replace=True), one], 3, 5)
