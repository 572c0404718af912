"""YAML as values that know where in the text they stand, so that one of them can be replaced and the rest left alone.

It is built from the parser's events, one after another: composing a large file in one call would hold the interpreter's
lock, and with it the event loop, for all that time.
"""

import math
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import yaml
from hookmq.config.document import scalar
from hookmq.plugin import ConfigError

MAX_DEPTH: Final = 16
MAX_NODES: Final = 2_000_000
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Item:
    """A value: None, bool, int, float, str, a list of items or a dict of (key, value) items by the key's text. `raw` is a
    scalar as it was written. `start` and
    `end` are positions in the text; of what is written as a block `end` lies somewhere behind it."""

    __slots__ = ("column", "end", "flow", "line", "raw", "start", "value")

    def __init__(self, value: Any, event: Any, flow: bool = False) -> None:
        mark = event.start_mark
        self.value = value
        self.raw: str = getattr(event, "value", "")
        self.start: int = mark.index
        self.end: int = event.end_mark.index
        self.line: int = mark.line + 1
        self.column: int = mark.column + 1
        self.flow = flow

    def last(self) -> int:
        """Where the last thing written in it ends."""
        if self.flow or not isinstance(self.value, list | dict) or not self.value:
            return self.end
        if isinstance(self.value, list):
            last: int = self.value[-1].last()
        else:
            last = max(value.last() for _, value in self.value.values())
        return last

    def plain(self) -> Any:
        """As dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: value.plain() for key, (_, value) in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value


def refuse(source: str, line: int, column: int, message: str, hint: str = "") -> NoReturn:
    """Raise a ConfigError."""
    raise ConfigError(message, source=source, line=line, column=column, hint=hint)


def parse(text: str, source: str) -> Item | None:
    """The one document in `text`; None where there is nothing but comments. Raises ConfigError."""
    try:
        return _Builder(source, yaml.parse(text, Loader=_LOADER)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # A file of passwords: what the parser cites of the text is not told.
        what = ": ".join(part for part in (error.context, error.problem) if part)
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise ConfigError(f"not YAML: {what}", source=source, line=line, column=column) from None
    except yaml.YAMLError:
        raise ConfigError("not YAML: characters that it does not have", source=source) from None


class _Builder:
    def __init__(self, source: str, events: Iterator[Any]) -> None:
        self._source = source
        self._events = events
        self._count = 0

    def document(self) -> Item | None:
        root: Item | None = None
        for event in self._events:
            if isinstance(event, yaml.NodeEvent):
                if root is not None:
                    self._refuse(event, "a second document begins here")
                root = self._item(event, 0)
        return root

    def _refuse(self, event: Any, message: str, hint: str = "") -> NoReturn:
        mark = event.start_mark
        refuse(self._source, mark.line + 1, mark.column + 1, message, hint)

    def _item(self, event: Any, depth: int) -> Item:
        self._count += 1
        if self._count > MAX_NODES:
            self._refuse(event, f"more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            self._refuse(event, f"nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            self._refuse(event, "anchors and aliases are not accepted here")
        if event.tag not in (None, "!"):
            self._refuse(event, "tags are not accepted")
        if isinstance(event, yaml.ScalarEvent):
            value = event.value if event.style else scalar(event.value)
            if isinstance(value, float) and not math.isfinite(value):
                self._refuse(event, "a number without an end is not accepted")
            return Item(value, event)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(event, depth)
        return self._mapping(event, depth)

    def _list(self, start: Any, depth: int) -> Item:
        items: list[Item] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                return self._ended(Item(items, start, bool(start.flow_style)), event)
            items.append(self._item(event, depth + 1))
        self._refuse(start, "this list does not end")

    def _mapping(self, start: Any, depth: int) -> Item:
        entries: dict[str, tuple[Item, Item]] = {}
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                return self._ended(Item(entries, start, bool(start.flow_style)), event)
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, "a key must be a word")
            key = self._item(event, depth + 1)
            if event.value in entries:
                first = entries[event.value][0].line
                self._refuse(
                    event, f"the key {event.value!r} is given twice", f"first in line {first}"
                )
            entries[event.value] = (key, self._item(next(self._events), depth + 1))
        self._refuse(start, "this mapping does not end")

    @staticmethod
    def _ended(item: Item, event: Any) -> Item:
        item.end = event.end_mark.index
        return item
