"""``{$env: NAME}`` and ``{$file: PATH}``: the only two indirections, each with an optional ``default``."""

import os
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Final

from hookmq.config.document import Node, scalar
from hookmq.config.problems import Path, Problems, nearest
from hookmq.files import open_regular, shown_path

MAX_FILE: Final = 1 << 20
KINDS: Final = ("$env", "$file")


def is_indirect(node: Node) -> bool:
    """Whether `node` is a mapping that names an indirection."""
    return isinstance(node.value, dict) and any(kind in node.value for kind in KINDS)


def resolve(
    node: Node, path: Path, problems: Problems, environ: Mapping[str, str], folder: FilePath
) -> Node | None:
    """What the indirection `node` stands for, marked secret; None after a problem. A file is sought relative to
    `folder` and loses one line end at its end. Reads a small file, so it blocks."""
    entries: dict[str, Node] = node.value
    kind = next(kind for kind in KINDS if kind in entries)
    known = (kind, "default")
    good = True
    for name in entries:
        if name not in known:
            place = node.keys.get(name, node.place)
            problems.add(place, (*path, name), f"unknown key beside {kind}", nearest(name, known))
            good = False
    target = entries[kind]
    if not isinstance(target.value, str) or not target.value:
        what = "name of a variable" if kind == "$env" else "path of a file"
        problems.add(target.place, (*path, kind), f"expected the {what}")
        good = False
    if not good:
        return None
    origin = f"{kind}: {target.value}"
    try:
        text = _read(kind, target.value, environ, folder)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and "default" in entries:
            return _default(entries["default"], origin)
        why = error.strerror or "cannot be read"
        real = shown_path(folder / os.path.expanduser(target.value))
        problems.add(target.place, path, f"the file {real!r}: {why}")
        return None
    except ValueError as error:
        problems.add(target.place, path, f"the file {target.value!r} {error}")
        return None
    if text is None:
        if "default" in entries:
            return _default(entries["default"], origin)
        problems.add(
            target.place,
            path,
            f"the environment variable {target.value} is not set",
            "set it, or give a default: {$env: NAME, default: VALUE}",
        )
        return None
    # the text stays text where text is wanted: a password may be 0123
    return Node(scalar(text), node.place, text=text, secret=True, origin=origin)


def _read(kind: str, name: str, environ: Mapping[str, str], folder: FilePath) -> str | None:
    if kind == "$env":
        return environ.get(name)
    # A pipe must not be waited for: a reload, and the end of the process, would wait with it.
    with open_regular(folder / os.path.expanduser(name)) as file:
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise ValueError(f"is larger than {MAX_FILE} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    return text[:-1].removesuffix("\r") if text.endswith("\n") else text


def _default(node: Node, origin: str) -> Node:
    node.origin = f"default of {origin}"
    return node
