"""Resolve ``{$env: NAME}`` and ``{$file: PATH}``, the only two indirections. Each may have a ``default``."""

import os
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Final

from hookmq.config.diagnostics import ConfigProblems, KeyPath, nearest
from hookmq.config.yaml_document import YamlNode, scalar
from hookmq.server.files import open_regular, shown_path

MAX_FILE: Final = 1 << 16
"""Maximum size of a file in bytes. A document may name thousands of files, whose text all stays in memory."""
KINDS: Final = ("$env", "$file")


def is_indirect(node: YamlNode) -> bool:
    """Return whether `node` is a mapping that contains ``$env`` or ``$file``."""
    return isinstance(node.value, dict) and any(kind in node.value for kind in KINDS)


def resolve(
    node: YamlNode,
    path: KeyPath,
    problems: ConfigProblems,
    environ: Mapping[str, str],
    folder: FilePath,
) -> YamlNode | None:
    """Return the value of the indirection `node`, marked as a secret. Return None after a problem.

    A file's path is relative to `folder`. One trailing line end is removed. Blocks while it reads a
    small file.
    """
    entries: dict[str, YamlNode] = node.value
    kind = next(kind for kind in KINDS if kind in entries)
    known = (kind, "default")
    unknown = [name for name in entries if name not in known]
    for name in unknown:
        place = node.keys.get(name, node.place)
        problems.add(place, (*path, name), f"unknown key next to {kind}", nearest(name, known))
    target = entries[kind]
    if not isinstance(target.value, str) or not target.value:
        what = "name of a variable" if kind == "$env" else "path of a file"
        problems.add(target.place, (*path, kind), f"expected the {what}")
        return None
    if unknown:
        return None
    origin = f"{kind}: {target.value}"
    hint = ""
    try:
        text = _read(kind, target.value, environ, folder)
        if text is not None:
            # keep the text for settings that expect text: a password may be 0123
            return YamlNode(scalar(text), node.place, text=text, secret=True, origin=origin)
        missing = True
        message = f"the environment variable {target.value} is not set"
        hint = "set it, or add a default: {$env: NAME, default: VALUE}"
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        real = shown_path(folder / os.path.expanduser(target.value))
        message = f"the file {real!r}: {error.strerror or 'cannot be read'}"
    except ValueError as error:
        missing = False
        message = f"the file {target.value!r} {error}"
    if missing and "default" in entries:
        default = entries["default"]
        default.origin = f"default of {origin}"
        return default
    problems.add(target.place, path, message, hint)
    return None


def _read(kind: str, name: str, environ: Mapping[str, str], folder: FilePath) -> str | None:
    if kind == "$env":
        return environ.get(name)
    # Do not block on a named pipe: a reload, and the end of the process, would block too.
    with open_regular(folder / os.path.expanduser(name)) as file:
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise ValueError(f"is larger than {MAX_FILE} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    return text[:-1].removesuffix("\r") if text.endswith("\n") else text
