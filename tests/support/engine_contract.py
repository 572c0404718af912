"""The tests that every engine of the cluster must pass: one for each statement of `hookmq_cluster.engine`.

`EngineContract` needs a fixture `bench`, which makes engines and lets time pass. The same tests run on the simulated
engine, on one real server, and on a cluster of three.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import pytest
from hookmq_cluster.engine import Appended, Engine, Entry, Refused, Stored, Unavailable


class EngineBench(Protocol):
    """Makes engines on one log. `prefix` begins all subjects, and ends with a dot."""

    prefix: str

    def engine(self) -> Engine:
        """Return the engine of a new node."""

    def wait(self, until: Callable[[], object], seconds: float = 10.0) -> None:
        """Let time pass until `until()` is true. Fail after `seconds`."""

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""


class Calls:
    """Collects what a callback is called with."""

    def __init__(self, bench: EngineBench) -> None:
        self.all: list[Any] = []
        self._bench = bench

    def __call__(self, value: Any) -> None:
        self.all.append(value)

    def one(self, seconds: float = 10.0) -> Any:
        """Wait for a call and return its value."""
        self._bench.wait(lambda: self.all, seconds)
        return self.all[0]


def commit(
    bench: EngineBench, engine: Engine, *entries: Entry, key: str = "", seconds: float = 10.0
) -> Appended | Refused | Unavailable:
    """Commit `entries` and return the result."""
    calls = Calls(bench)
    engine.commit(entries, calls, key)
    result: Appended | Refused | Unavailable = calls.one(seconds)
    return result


def appended(bench: EngineBench, engine: Engine, *entries: Entry, key: str = "") -> int:
    """Commit `entries`, which must succeed. Return the last sequence."""
    result = commit(bench, engine, *entries, key=key)
    assert isinstance(result, Appended), result
    return result.last


def last(
    bench: EngineBench, engine: Engine, subject: str, exact: bool = True
) -> Stored | None | Unavailable:
    """Return the last message of a subject."""
    calls = Calls(bench)
    engine.last(subject, calls, exact)
    answer: Stored | None | Unavailable = calls.one()
    return answer


def read_all(bench: EngineBench, engine: Engine, *filters: str, after: int = 0) -> list[Stored]:
    """Read all pages."""
    found: list[Stored] = []
    while True:
        calls = Calls(bench)
        engine.read(filters, after, calls)
        page = calls.one()
        assert not isinstance(page, Unavailable), page
        if not page:
            return found
        found += page
        after = page[-1].sequence


class EngineContract:
    """Tests of the protocol `Engine`."""

    def test_a_commit_has_consecutive_sequences(self, bench: EngineBench) -> None:
        engine = bench.engine()
        first = appended(bench, engine, Entry(bench.prefix + "lane.a", b"0"))
        many = [Entry(f"{bench.prefix}lane.{name}", name.encode()) for name in "abcab"]
        end = appended(bench, engine, *many)
        assert end == first + 5
        stored = read_all(bench, engine, bench.prefix + ">", after=first)
        assert [(one.sequence, one.subject, one.data) for one in stored] == [
            (first + 1 + number, entry.subject, entry.data) for number, entry in enumerate(many)
        ]

    def test_a_commit_of_the_largest_batch(self, bench: EngineBench) -> None:
        engine = bench.engine()
        count = engine.max_batch
        entries = [Entry(bench.prefix + "lane.a", b"%d" % number) for number in range(count)]
        end = appended(bench, engine, *entries)
        stored = read_all(bench, engine, bench.prefix + "lane.a")
        assert [one.data for one in stored] == [entry.data for entry in entries]
        assert stored[-1].sequence == end
        with pytest.raises(ValueError, match="entries"):
            engine.commit([*entries, entries[0]], Calls(bench))
        with pytest.raises(ValueError, match="entries"):
            engine.commit([], Calls(bench))

    def test_the_largest_entry(self, bench: EngineBench) -> None:
        engine = bench.engine()
        data = bytes(range(256)) * (engine.max_entry // 256 + 1)
        data = data[: engine.max_entry]
        appended(bench, engine, Entry(bench.prefix + "lane.a", data))
        appended(
            bench,
            engine,
            *(
                Entry(bench.prefix + "lane.a", data, (bench.prefix + "own." + "x" * 64, 0))
                for _ in range(3)
            ),
        )
        assert [one.data == data for one in read_all(bench, engine, bench.prefix + "lane.a")] == [
            True
        ] * 4
        with pytest.raises(ValueError, match="bytes"):
            engine.commit([Entry(bench.prefix + "lane.a", data + b"0")], Calls(bench))

    def test_entries_may_be_empty_and_have_any_bytes(self, bench: EngineBench) -> None:
        engine = bench.engine()
        contents = [b"", b"\r\n", bytes(range(256)), b"NATS/1.0\r\n\r\n"]
        for data in contents:
            appended(bench, engine, Entry(bench.prefix + "lane.a", data))
        appended(bench, engine, *(Entry(bench.prefix + "lane.a", data) for data in contents))
        assert [
            one.data for one in read_all(bench, engine, bench.prefix + "lane.a")
        ] == contents * 2
        for exact in (True, False):
            bench.wait(lambda exact=exact: last(bench, engine, bench.prefix + "lane.a", exact))  # type: ignore[misc]

    def test_stored_messages_say_when(self, bench: EngineBench) -> None:
        engine = bench.engine()
        appended(bench, engine, Entry(bench.prefix + "lane.a", b"1"))
        first = last(bench, engine, bench.prefix + "lane.a")
        bench.pass_time(0.5)
        appended(bench, engine, Entry(bench.prefix + "lane.a", b"2"))
        second = last(bench, engine, bench.prefix + "lane.a")
        assert isinstance(first, Stored)
        assert isinstance(second, Stored)
        assert 0.4 < second.time - first.time < 10.0
        [one, other] = read_all(bench, engine, bench.prefix + "lane.*")
        assert (one.time, other.time) == (first.time, second.time)
        assert first.time > 1_000_000_000.0

    # conditions --------------------------------------------------------------------------------------------------

    def test_a_commit_needs_all_its_expectations(self, bench: EngineBench) -> None:
        engine = bench.engine()
        own, lane = bench.prefix + "own.a", bench.prefix + "lane.a"
        fence = appended(bench, engine, Entry(own, b"1", (own, 0)))
        end = appended(bench, engine, Entry(lane, b"2", (own, fence)), Entry(lane, b"3"))
        refused = commit(
            bench,
            engine,
            Entry(lane, b"4", (own, fence)),
            Entry(bench.prefix + "ret.x", b"5"),
            Entry(bench.prefix + "sess.a", b"6", (bench.prefix + "sess.a", 77)),
        )
        assert isinstance(refused, Refused)
        assert refused.subject in ("", bench.prefix + "sess.a")
        assert refused.reason
        assert [one.sequence for one in read_all(bench, engine, bench.prefix + ">")] == [
            fence,
            end - 1,
            end,
        ]

    def test_a_single_entry_with_a_false_expectation(self, bench: EngineBench) -> None:
        engine = bench.engine()
        own, lane = bench.prefix + "own.a", bench.prefix + "lane.a"
        fence = appended(bench, engine, Entry(own, b"1", (own, 0)))
        for entry in (
            Entry(own, b"2", (own, 0)),
            Entry(own, b"2", (own, 0), replace=True),
            Entry(lane, b"2", (lane, fence)),
        ):
            result = commit(bench, engine, entry)
            assert isinstance(result, Refused), result
        assert appended(bench, engine, Entry(lane, b"2", (lane, 0))) > fence

    def test_expectations_refer_to_the_log_before_the_commit(self, bench: EngineBench) -> None:
        engine = bench.engine()
        own, lane = bench.prefix + "own.a", bench.prefix + "lane.a"
        fence = appended(bench, engine, Entry(own, b"1", (own, 0)))
        end = appended(
            bench,
            engine,
            Entry(lane, b"2", (own, fence)),
            Entry(bench.prefix + "lane.b", b"3", (bench.prefix + "own.b", 0)),
            Entry(own, b"4", replace=True),
        )
        newest = last(bench, engine, own)
        assert isinstance(newest, Stored)
        assert newest.sequence == end

    def test_a_commit_cannot_depend_on_what_it_writes_itself(self, bench: EngineBench) -> None:
        engine = bench.engine()
        own, calls = bench.prefix + "own.a", Calls(bench)
        with pytest.raises(ValueError, match=r"own\.a"):
            engine.commit([Entry(own, b""), Entry(own, b"", (own, 1))], calls)
        with pytest.raises(ValueError, match=r"own\.a"):
            engine.commit([Entry(own, b""), Entry(own, b"", replace=True)], calls)
        appended(bench, engine, Entry(own, b"1", (own, 0), replace=True), Entry(own, b"2"))
        assert [one.data for one in read_all(bench, engine, own)] == [b"1", b"2"]
        assert calls.all == []

    def test_several_lanes_with_their_own_fences(self, bench: EngineBench) -> None:
        engine = bench.engine()
        fences = {}
        for name in "abc":
            own = f"{bench.prefix}own.{name}"
            fences[name] = appended(bench, engine, Entry(own, b"", (own, 0)))
        entries = [
            Entry(f"{bench.prefix}lane.{name}", b"", (f"{bench.prefix}own.{name}", fences[name]))
            for name in "abc"
        ]
        for _ in range(3):
            appended(bench, engine, *entries)
        own = bench.prefix + "own.b"
        appended(bench, engine, Entry(own, b"2", (own, fences["b"])))
        assert isinstance(commit(bench, engine, *entries), Refused)
        appended(bench, engine, entries[0], entries[2])

    def test_one_of_two_racing_nodes_wins(self, bench: EngineBench) -> None:
        one, other = bench.engine(), bench.engine()
        for number in range(20):
            own = f"{bench.prefix}own.{number}"
            results: list[Calls] = []
            for engine in (one, other):
                results.append(Calls(bench))
                engine.commit([Entry(own, b"", (own, 0)), Entry(own + "x", b"")], results[-1])
            kinds = sorted(type(calls.one()).__name__ for calls in results)
            assert kinds == ["Appended", "Refused"]
            winner = one if isinstance(results[0].one(), Appended) else other
            assert len(read_all(bench, winner, own)) == 1

    def test_a_node_that_lost_its_lane_is_refused(self, bench: EngineBench) -> None:
        old, new = bench.engine(), bench.engine()
        own, lane = bench.prefix + "own.a", bench.prefix + "lane.a"
        fence = appended(bench, old, Entry(own, b"old", (own, 0)))
        results: list[Any] = []

        def again(result: Appended | Refused | Unavailable | None, number: int) -> None:
            if result is not None:
                results.append(result)
            if result is None or isinstance(result, Appended):
                entries = [Entry(lane, b"%d" % number, (own, fence)), Entry(lane, b"")]
                old.commit(entries, partial(again, number=number + 1), f"key/{number}")

        again(None, 0)
        bench.wait(lambda: len(results) > 5)
        taken = appended(bench, new, Entry(own, b"new", (own, fence)))
        bench.wait(lambda: isinstance(results[-1], Refused))
        stored = read_all(bench, new, lane)
        assert max(one.sequence for one in stored) < taken
        assert len(stored) == 2 * (len(results) - 1)
        assert [one.data for one in stored[::2]] == [
            b"%d" % number for number in range(len(results) - 1)
        ]

    # order and keys ----------------------------------------------------------------------------------------------

    def test_commits_are_appended_in_order(self, bench: EngineBench) -> None:
        engine = bench.engine()
        lane = bench.prefix + "lane.a"
        results = Calls(bench)
        for number in range(50):
            entries = [Entry(lane, b"%d" % number) for _ in range(1 + number % 3)]
            engine.commit(entries, results, f"key/{number}" if number % 2 else "")
        bench.wait(lambda: len(results.all) == 50)
        ends = [one.last for one in results.all]
        assert ends == sorted(ends)
        contents = [int(one.data) for one in read_all(bench, engine, lane)]
        assert contents == sorted(contents)
        assert len(contents) == sum(1 + number % 3 for number in range(50))

    def test_a_key_is_appended_once(self, bench: EngineBench) -> None:
        one, other = bench.engine(), bench.engine()
        lane = bench.prefix + "lane.a"
        for key, count in (("single", 1), ("batch", 3)):
            entries = [Entry(lane, b"%d" % number) for number in range(count)]
            end = appended(bench, one, *entries, key=key)
            appended(bench, one, Entry(lane, b"between"))
            assert appended(bench, one, *entries, key=key) == end
            assert appended(bench, other, *entries, key=key) == end
        assert len(read_all(bench, one, lane)) == 1 + 3 + 2

    def test_a_key_that_was_appended_is_known_though_its_expectation_is_no_longer_true(
        self, bench: EngineBench
    ) -> None:
        engine = bench.engine()
        own, lane = bench.prefix + "own.a", bench.prefix + "lane.a"
        for count in (1, 3):
            before = last(bench, engine, own)
            fence = before.sequence if isinstance(before, Stored) else 0
            entries = [Entry(own, b"", (own, fence)), *[Entry(lane, b"")] * (count - 1)]
            end = appended(bench, engine, *entries, key=f"key/{count}")
            assert appended(bench, engine, *entries, key=f"key/{count}") == end

    def test_a_key_that_was_refused_can_be_used_again(self, bench: EngineBench) -> None:
        engine = bench.engine()
        own, lane = bench.prefix + "own.a", bench.prefix + "lane.a"
        old = appended(bench, engine, Entry(own, b""))
        appended(bench, engine, Entry(own, b""))
        for count in (1, 3):
            entries = [Entry(lane, b"", (own, old)), *[Entry(lane, b"")] * (count - 1)]
            assert isinstance(commit(bench, engine, *entries, key=f"key/{count}"), Refused)
            good = [Entry(lane, b"")] * count
            assert appended(bench, engine, *good, key=f"key/{count}")

    # replace, ttl, trim ------------------------------------------------------------------------------------------

    def test_replace_deletes_earlier_messages_of_the_subject(self, bench: EngineBench) -> None:
        engine = bench.engine()
        one, other = bench.prefix + "ret.a", bench.prefix + "ret.b"
        for number in range(3):
            appended(bench, engine, Entry(one, b"%d" % number), Entry(other, b"%d" % number))
        end = appended(bench, engine, Entry(one, b"new", replace=True))
        assert [(each.subject, each.data) for each in read_all(bench, engine, bench.prefix + "ret.*")] == [
            (other, b"0"), (other, b"1"), (other, b"2"), (one, b"new"),
        ]  # fmt: skip
        end = appended(
            bench,
            engine,
            Entry(one, b"newer", (one, end), replace=True),
            Entry(other, b"newer", replace=True),
        )
        stored = read_all(bench, engine, bench.prefix + "ret.*")
        assert [each.sequence for each in stored] == [end - 1, end]

    def test_ttl_deletes_a_message(self, bench: EngineBench) -> None:
        engine = bench.engine()
        lease, lane = bench.prefix + "lease.a", bench.prefix + "lane.a"
        appended(bench, engine, Entry(lease, b"1", replace=True, ttl=1))
        appended(bench, engine, Entry(lease, b"2", replace=True, ttl=2), Entry(lane, b""))
        newest = last(bench, engine, lease)
        assert isinstance(newest, Stored)
        bench.pass_time(1.2)
        assert last(bench, engine, lease) == newest
        bench.wait(lambda: last(bench, engine, lease) is None, 5.0)
        bench.wait(
            lambda: [one.subject for one in read_all(bench, engine, bench.prefix + ">")] == [lane]
        )
        assert appended(bench, engine, Entry(lease, b"3", (lease, 0))) > newest.sequence

    def test_trim_deletes_below_a_sequence_of_one_subject(self, bench: EngineBench) -> None:
        engine = bench.engine()
        one, other = bench.prefix + "lane.a", bench.prefix + "lane.b"
        ends = [appended(bench, engine, Entry(one, b""), Entry(other, b"")) for _ in range(4)]
        calls = Calls(bench)
        engine.trim(one, ends[2] - 1, calls)
        assert calls.one() is None
        kept = [ends[2] - 1, ends[3] - 1]
        bench.wait(lambda: [each.sequence for each in read_all(bench, engine, one)] == kept)
        assert [each.sequence for each in read_all(bench, engine, other)] == ends
        for before in (0, 1, ends[3]):
            calls = Calls(bench)
            engine.trim(one, before, calls)
            assert calls.one() is None
        bench.wait(lambda: read_all(bench, engine, one) == [])
        newest = last(bench, engine, other)
        assert isinstance(newest, Stored)
        calls = Calls(bench)
        engine.trim(other, newest.sequence + 10, calls)
        assert calls.one() is None
        assert last(bench, engine, other) is None
        assert appended(bench, engine, Entry(other, b"", (other, 0))) > ends[3]

    # reading -----------------------------------------------------------------------------------------------------

    def test_last(self, bench: EngineBench) -> None:
        engine, other = bench.engine(), bench.engine()
        subject = bench.prefix + "sess.a"
        for exact in (True, False):
            assert last(bench, engine, subject, exact) is None
        end = appended(bench, engine, Entry(subject, b"1"), Entry(subject + "x", b"2"))
        answer = last(bench, other, subject)
        assert isinstance(answer, Stored)
        assert (answer.subject, answer.sequence, answer.data) == (subject, end - 1, b"1")
        bench.wait(lambda: last(bench, other, subject, exact=False) == answer)

    def test_reading_sees_what_this_engine_committed(self, bench: EngineBench) -> None:
        engine = bench.engine()
        lane = bench.prefix + "lane.a"
        position = 0
        for number in range(30):
            end = appended(bench, engine, Entry(lane, b"%d" % number))
            page = read_all(bench, engine, lane, after=position)
            assert [one.sequence for one in page] == [end]
            position = end

    def test_reading_sees_what_this_engine_was_shown(self, bench: EngineBench) -> None:
        writer, engine = bench.engine(), bench.engine()
        lane, other = bench.prefix + "lane.a", bench.prefix + "lane.b"
        for number in range(10):
            end = appended(bench, writer, Entry(other, b"%d" % number), Entry(lane, b""))
            shown = last(bench, engine, lane)
            assert isinstance(shown, Stored)
            assert shown.sequence == end
            assert read_all(bench, engine, other)[-1].data == b"%d" % number

    def test_reading_several_filters_in_order(self, bench: EngineBench) -> None:
        engine = bench.engine()
        names = ["lane.a", "lane.b", "ret.x", "sess.y", "own.z"]
        entries = [
            Entry(bench.prefix + names[number * 7 % 5], b"%d" % number) for number in range(400)
        ]
        for at in range(0, 400, 100):
            appended(bench, engine, *entries[at : at + 100])
        wanted = [one for one in entries if ".lane." in one.subject or ".ret." in one.subject]
        found = read_all(bench, engine, bench.prefix + "ret.*", bench.prefix + "lane.*")
        assert [(one.subject, one.data) for one in found] == [
            (one.subject, one.data) for one in wanted
        ]
        assert [one.sequence for one in found] == sorted(one.sequence for one in found)
        half = found[len(found) // 2].sequence
        rest = read_all(bench, engine, bench.prefix + "ret.*", bench.prefix + "lane.*", after=half)
        assert rest == [one for one in found if one.sequence > half]
        assert read_all(bench, engine, bench.prefix + "ret.none") == []

    def test_pages_of_large_messages(self, bench: EngineBench) -> None:
        engine = bench.engine()
        lane = bench.prefix + "lane.a"
        for number in range(24):
            appended(bench, engine, Entry(lane, bytes([number]) * (engine.max_entry // 2)))
        calls = Calls(bench)
        engine.read([lane], 0, calls)
        page = calls.one()
        assert 1 <= len(page) < 24
        found = read_all(bench, engine, lane)
        assert [one.data[0] for one in found] == list(range(24))

    # following ---------------------------------------------------------------------------------------------------

    def test_follow(self, bench: EngineBench) -> None:
        engine, other = bench.engine(), bench.engine()
        lane = bench.prefix + "lane.a"
        before = [appended(bench, engine, Entry(lane, b"before")) for _ in range(3)]
        seen: list[Stored] = []
        end = other.follow([lane, bench.prefix + "ret.*"], before[0], seen.append)
        bench.wait(lambda: len(seen) == 2)
        for number in range(20):
            appended(
                bench,
                engine,
                Entry(lane, b"%d" % number),
                Entry(bench.prefix + "own.a", b""),
                Entry(bench.prefix + "ret.a", b"", replace=True),
            )
        bench.wait(lambda: seen and seen[-1].subject.endswith("ret.a") and seen[-2].data == b"19")
        lanes = [one for one in seen if one.subject == lane]
        assert [one.sequence for one in seen] == sorted({one.sequence for one in seen})
        assert [one.data for one in lanes] == [b"before"] * 2 + [b"%d" % each for each in range(20)]
        stored = read_all(bench, engine, lane, after=before[0])
        assert lanes == stored
        end()
        end()
        appended(bench, engine, Entry(lane, b"after"))
        bench.pass_time(0.3)
        assert all(one.data != b"after" for one in seen)

    def test_follow_can_be_ended_by_its_callback(self, bench: EngineBench) -> None:
        engine = bench.engine()
        lane = bench.prefix + "lane.a"
        seen: list[Stored] = []

        def receive(one: Stored) -> None:
            seen.append(one)
            if len(seen) == 5:
                end()

        appended(bench, engine, *[Entry(lane, b"")] * 20)
        end = engine.follow([lane], 0, receive)
        bench.wait(lambda: len(seen) >= 5)
        bench.pass_time(0.3)
        assert len(seen) == 5

    def test_follow_many(self, bench: EngineBench) -> None:
        engine, other = bench.engine(), bench.engine()
        lane = bench.prefix + "lane.a"
        entries = [Entry(lane, b"%04d" % number + bytes(2000)) for number in range(1000)]
        seen: list[Stored] = []
        other.follow([bench.prefix + "lane.*"], 0, seen.append)
        for at in range(3):
            appended(bench, engine, *entries, key=f"key/{at}")
        bench.wait(lambda: len(seen) == 3000, 30.0)
        assert [one.data for one in seen] == [one.data for one in entries] * 3

    # messages that are not stored ----------------------------------------------------------------------------------

    def test_send_and_listen(self, bench: EngineBench) -> None:
        one, other = bench.engine(), bench.engine()
        at_one: list[tuple[str, bytes]] = []
        at_other: list[tuple[str, bytes]] = []
        subject = bench.prefix.replace("hmq.", "hmqc.") + "all"
        end = one.listen(subject, lambda *args: at_one.append(args))
        other.listen(subject.replace("all", ">"), lambda *args: at_other.append(args))
        commits = [
            appended(bench, engine, Entry(bench.prefix + "lane.a", b"")) for engine in (one, other)
        ]
        assert commits
        contents = [b"%d" % number + b"\r\n" * (number % 2) for number in range(200)]
        for data in contents:
            one.send(subject, data)
        bench.wait(lambda: len(at_one) == 200 and len(at_other) == 200)
        assert at_one == at_other == [(subject, data) for data in contents]
        end()
        end()
        other.send(subject, b"")
        bench.wait(lambda: len(at_other) == 201)
        bench.pass_time(0.2)
        assert at_other[-1] == (subject, b"")
        assert len(at_one) == 200
        one.send(subject + ".x", b"not")
        one.send(subject.replace("all", "node.b"), b"yes")
        bench.wait(lambda: len(at_other) == 203)

    def test_listeners_with_the_same_subject_all_receive(self, bench: EngineBench) -> None:
        engine = bench.engine()
        first: list[bytes] = []
        second: list[bytes] = []
        subject = bench.prefix.replace("hmq.", "hmqc.") + "node.a"
        end = engine.listen(subject, lambda _, data: first.append(data))
        engine.listen(subject, lambda _, data: second.append(data))
        appended(bench, engine, Entry(bench.prefix + "lane.a", b""))
        engine.send(subject, b"1")
        bench.wait(lambda: first and second)
        end()
        engine.send(subject, b"2")
        bench.wait(lambda: len(second) == 2)
        assert (first, second) == ([b"1"], [b"1", b"2"])

    # the connection ----------------------------------------------------------------------------------------------

    def test_an_engine_is_connected_until_it_is_closed(self, bench: EngineBench) -> None:
        engine, other = bench.engine(), bench.engine()
        assert engine.connected()
        lane = bench.prefix + "lane.a"
        results: list[object] = []
        subject = bench.prefix.replace("hmq.", "hmqc.") + "node.a"
        heard: list[bytes] = []
        other.listen(subject, lambda _, data: heard.append(data))
        appended(bench, other, Entry(lane, b""))
        for number in range(10):
            engine.commit([Entry(lane, b"%d" % number)] * 2, results.append)
        engine.send(subject, b"bye")
        closed: list[bool] = []
        engine.close(lambda: closed.append(True))
        bench.wait(lambda: closed and heard)
        assert len(results) == 10
        assert all(isinstance(one, Appended) for one in results)
        bench.wait(lambda: len(read_all(bench, other, lane)) == 21)
