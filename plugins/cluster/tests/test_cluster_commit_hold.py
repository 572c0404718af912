"""The hold of a commit's end."""

from hookmq_cluster.commit_hold import CommitHold


def test_holders_follow_each_other_and_the_commit_ends_last() -> None:
    hold, calls = CommitHold(), []
    hold.request(lambda: calls.append("first"))
    hold.request(lambda: calls.append("second"))
    assert calls == []
    hold.finish(lambda: calls.append("end"))
    assert calls == ["first"]
    hold.release()
    assert calls == ["first", "second"]
    hold.release()
    assert calls == ["first", "second", "end"]


def test_a_commit_without_holders_ends_at_once() -> None:
    hold, calls = CommitHold(), []
    hold.finish(lambda: calls.append("one"))
    hold.finish(lambda: calls.append("two"))
    assert calls == ["one", "two"]


def test_a_holder_may_ask_again_while_it_holds() -> None:
    hold, calls = CommitHold(), []
    hold.request(lambda: calls.append("first"))
    hold.finish(lambda: calls.append("end"))
    hold.request(lambda: calls.append("again"))
    hold.release()
    hold.release()
    assert calls == ["first", "again", "end"]
