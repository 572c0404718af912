"""Visit all items in a long listing from the broker, one page per turn of the event loop."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from hookmq.plugin import Page, Runtime

T = TypeVar("T")


def _nothing() -> None:
    pass


def visit_all(
    runtime: Runtime,
    fetch: Callable[[str], Page[T]],
    visit: Callable[[T], object],
    done: Callable[[], object] = _nothing,
) -> None:
    """Call `visit` with every item of a listing, then call `done` once.

    `fetch` takes a cursor and returns a page, such as ``lambda cursor: broker.sessions(cursor)``. The first page is
    visited before this call returns. Each further page gets its own turn, so that a million sessions do not block the
    event loop. Items may be added or removed in the meantime. An exception from `fetch` or `visit` stops the listing.
    """

    def visit_page(cursor: str) -> None:
        page = fetch(cursor)
        for item in page.items:
            visit(item)
        if page.cursor:
            runtime.call_soon(partial(visit_page, page.cursor))
        else:
            done()

    visit_page("")
