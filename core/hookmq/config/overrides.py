"""Values from outside the file: ``HOOKMQ__BROKER__MAX_QOS=1`` in the environment, ``-o broker.max_qos=1`` on the command
line. Values are YAML scalars; list positions are numbers."""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from hookmq.config.document import Node, loose
from hookmq.config.problems import Place, Problems

PREFIX: Final = "HOOKMQ__"
MAX_DEPTH: Final = 32

_POSITION = re.compile(r"\[(\d+)\]")


class Override(NamedTuple):
    """One value and the keys that lead to it. `folded` keys come from where case is lost."""

    path: tuple[str, ...]
    text: str
    source: str
    folded: bool


def from_environ(environ: Mapping[str, str]) -> list[Override]:
    """The overrides among the variables, sorted by name."""
    return [
        Override(
            tuple(part.lower() for part in name[len(PREFIX) :].split("__")),
            value,
            f"environment {name}",
            True,
        )
        for name, value in sorted(environ.items())
        if name.startswith(PREFIX)
    ]


def from_options(options: Iterable[str], problems: Problems) -> list[Override]:
    """The overrides that ``-o KEY=VALUE`` gave, in order; ``listeners[0].bind`` and ``listeners.0.bind`` are one."""
    result = []
    for option in options:
        key, equals, value = option.partition("=")
        key = key.strip()
        if not equals or not key:
            problems.add(Place(f"option -o {option}"), (), "expected KEY=VALUE")
            continue
        path = tuple(_POSITION.sub(r".\1", key).split("."))
        result.append(Override(path, value, f"option -o {key}", False))
    return result


def apply(root: Node, overrides: Iterable[Override], problems: Problems) -> None:
    """Put the overrides into the document `root`, in order; what does not fit goes to `problems`."""
    for override in overrides:
        problem, hint = _put(root, override)
        if problem:
            problems.add(Place(override.source), (), problem, hint)


def _put(root: Node, override: Override) -> tuple[str, str]:
    path = override.path
    if not all(path):
        return "names no key", "such as " + PREFIX + "BROKER__MAX_QOS" if override.folded else ""
    if len(path) > MAX_DEPTH:
        return "names too many keys", ""
    place = Place(override.source)
    node = root
    for index, part in enumerate(path):
        name = ".".join(path[:index]) or "the configuration"
        last = index == len(path) - 1
        fresh = (
            loose(override.text, override.source) if last else _container(path[index + 1], place)
        )
        if isinstance(node.value, list):
            items = node.value
            if not part.isdecimal() or int(part) > len(items):
                return (
                    f"there is no {name}.{part}",
                    f"{name} has {len(items)} entries, counted from 0",
                )
            position = int(part)
            if position == len(items):
                items.append(fresh)
            elif last or items[position].value is None:
                items[position] = fresh
            node = items[position]
        elif isinstance(node.value, dict):
            key = _key(node, part, override.folded)
            if last or key not in node.value or node.value[key].value is None:
                node.value[key] = fresh
                node.keys[key] = place
            node = node.value[key]
        else:
            return f"{name} is one value and holds no {part!r}", ""
    return "", ""


def _container(following: str, place: Place) -> Node:
    return Node([] if following.isdecimal() else {}, place)


def _key(node: Node, part: str, folded: bool) -> str:
    if folded and part not in node.value:
        return next((key for key in node.value if key.lower() == part), part)
    return part
