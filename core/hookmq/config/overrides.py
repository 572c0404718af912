"""Settings from outside the file: ``HOOKMQ__BROKER__MAX_QOS=1`` in the environment, or ``-o broker.max_qos=1`` on the
command line. Values are YAML scalars. List positions are numbers."""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from hookmq.config.diagnostics import ConfigProblems, SourcePlace
from hookmq.config.yaml_document import YamlNode, loose

PREFIX: Final = "HOOKMQ__"
MAX_DEPTH: Final = 32

_POSITION = re.compile(r"\[(\d+)\]")


class SettingOverride(NamedTuple):
    """A value and the path of its key. If the path is `folded`, the original case of its keys is unknown."""

    path: tuple[str, ...]
    text: str
    source: str
    folded: bool


def from_environ(environ: Mapping[str, str]) -> list[SettingOverride]:
    """Return the overrides found in environment variables, sorted by name."""
    return [
        SettingOverride(
            tuple(name.removeprefix(PREFIX).lower().split("__")), value, f"environment {name}", True
        )
        for name, value in sorted(environ.items())
        if name.startswith(PREFIX)
    ]


def from_options(options: Iterable[str], problems: ConfigProblems) -> list[SettingOverride]:
    """Return the overrides from ``-o KEY=VALUE`` options, in order. ``listeners[0].bind`` means ``listeners.0.bind``."""
    result = []
    for option in options:
        key, equals, value = option.partition("=")
        key = key.strip()
        if not equals or not key:
            problems.add(SourcePlace(f"option -o {option}"), (), "expected KEY=VALUE")
            continue
        path = tuple(_POSITION.sub(r".\1", key).split("."))
        result.append(SettingOverride(path, value, f"option -o {key}", False))
    return result


def apply(root: YamlNode, overrides: Iterable[SettingOverride], problems: ConfigProblems) -> None:
    """Apply the overrides to the document `root`, in order. If an override does not fit the document, add a mistake to
    `problems`.
    """
    for override in overrides:
        problem, hint = _put(root, override)
        if problem:
            problems.add(SourcePlace(override.source), (), problem, hint)


def _put(root: YamlNode, override: SettingOverride) -> tuple[str, str]:
    path = override.path
    if not all(path):
        return "no key given", f"such as {PREFIX}BROKER__MAX_QOS" if override.folded else ""
    if len(path) > MAX_DEPTH:
        return f"more than {MAX_DEPTH} keys", ""
    place = SourcePlace(override.source)
    node = root
    for index, part in enumerate(path):
        name = ".".join(path[:index]) or "the configuration"
        last = index == len(path) - 1
        if last:
            fresh = loose(override.text, override.source)
        else:
            fresh = YamlNode([] if path[index + 1].isdecimal() else {}, place)
        if isinstance(node.value, list):
            items = node.value
            if not part.isdecimal() or int(part) > len(items):
                return f"there is no {name}.{part}", f"{name} has {len(items)} entries, from 0"
            position = int(part)
            if position == len(items):
                items.append(fresh)
            elif last or items[position].value is None:
                items[position] = fresh
            node = items[position]
        elif isinstance(node.value, dict):
            key = part
            if override.folded and part not in node.value:
                key = next((one for one in node.value if one.lower() == part), part)
            if last or key not in node.value or node.value[key].value is None:
                node.value[key] = fresh
                node.keys[key] = place
            node = node.value[key]
        else:
            return f"{name} is a single value and has no {part!r}", ""
    return "", ""
