"""Test that changing many accounts at once has the same result as changing them one by one."""

from hookmq_accounts.book import KINDS, Book
from hookmq_accounts.stored import StoredAccount
from hookmq_toolkit.accounts import Kind
from hypothesis import given
from hypothesis import strategies as st

RULES = [{"allow": ["deliver"], "topic": ["a"]}]
ACCOUNTS = st.builds(
    lambda kind, name, delivers: StoredAccount(kind, name).changed(
        {"rules": RULES if delivers else [], **({"groups": ["a"]} if kind == "user" else {})}, 9
    ),
    st.sampled_from(KINDS), st.sampled_from("abcdefgh"), st.booleans(),
)  # fmt: skip
KEYS = st.tuples(st.sampled_from(KINDS), st.sampled_from("abcdefgh"))


def contents(book: Book) -> object:
    return (
        {kind: (book.all(kind), book.after(kind, "", 99)) for kind in KINDS},
        {name: count for name, count in book.members.items() if count},
        book.delivering,
        book.broken,
        book.unusable,
    )


@given(st.lists(ACCOUNTS), st.lists(ACCOUNTS), st.lists(KEYS))
def test_many_changes_are_like_one_by_one(
    first: list[StoredAccount], puts: list[StoredAccount], removed: list[tuple[Kind, str]]
) -> None:
    book = Book()
    book.load([("user/x", b"broken")])
    for one in first:
        book.put(one)
    before, copy = contents(book), book.copy()
    assert contents(copy) == before
    copy.update(puts, removed)
    assert contents(book) == before
    for kind, name in removed:
        book.remove(kind, name)
    for one in puts:
        book.put(one)
    assert contents(copy) == contents(book)
