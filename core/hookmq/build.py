"""Which build runs: the source as it is, or the hot path compiled from exactly this source.

`make compiled`, and every wheel for a platform, puts extension modules into ``hookmq/_compiled/TAG/``, TAG being the
interpreter's, and beside them ``SHA256SUMS``: the digest of every source file that they were made of. They serve only
where all of those files are still what they were, so that no stale binary ever hides a source that was edited.

``HOOKMQ_BUILD=pure`` runs the source whatever there is; ``HOOKMQ_BUILD=compiled`` raises ImportError where it would run.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from types import ModuleType
from typing import Final, NamedTuple

SUFFIX: Final = EXTENSION_SUFFIXES[0]
TAG: Final = SUFFIX.split(".")[1]
"""What the interpreter calls extension modules made for it, such as ``cpython-311-x86_64-linux-gnu``."""
SUMS: Final = "SHA256SUMS"
"""The manifest: lines as ``sha256sum`` writes them, of sources (``*.py``) and extension modules, relative to it."""
VARIABLE: Final = "HOOKMQ_BUILD"


class Build(NamedTuple):
    """What runs: ``pure`` or ``compiled``, and why the one or the other."""

    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.reason})"


class _Finder:
    """Finds compiled modules by their names, before anybody looks for their sources."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self.files.get(name)
        if file is None:
            return None
        spec = ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)
        spec.has_location = True
        return spec


def choose(package: str) -> Build:
    """Have `package`, the folder of hookmq, run compiled where that was made of what lies there now. Called once, before
    any other module of hookmq is imported.

    Raises ImportError where ``HOOKMQ_BUILD`` asks for what there is not.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "pure", "compiled"):
        raise ImportError(f"{VARIABLE} is {wanted!r}: it may be 'pure' or 'compiled'")
    if wanted == "pure":
        return Build("pure", f"{VARIABLE} says so")
    folder = os.path.join(package, "_compiled", TAG)
    try:
        with open(os.path.join(folder, SUMS), encoding="utf-8") as manifest:
            listed = [line.rstrip("\n").split("  ", 1) for line in manifest]
    except FileNotFoundError:
        build = Build("pure", f"nothing was compiled for {TAG}")
    else:
        build = _judge(package, folder, {name: digest for digest, name in listed})
    if wanted and build.kind != wanted:
        raise ImportError(f"{VARIABLE} is 'compiled', but {build.reason}")
    return build


def _judge(package: str, folder: str, listed: Mapping[str, str]) -> Build:
    from hashlib import sha256

    changed: list[str] = []
    extensions: dict[str, str] = {}
    for name, digest in listed.items():
        file = os.path.normpath(os.path.join(folder, name))
        if name.endswith(SUFFIX):
            extensions[name.removesuffix(SUFFIX).replace("/", ".")] = file
            continue
        try:
            with open(file, "rb") as source:
                same = sha256(source.read()).hexdigest() == digest
        except OSError:
            same = False
        if not same:
            changed.append(os.path.relpath(file, os.path.dirname(package)))
    if changed:
        more = f" and {len(changed) - 1} more differ" if len(changed) > 1 else " differs"
        return Build("pure", f"the compiled build is of other source: {changed[0]}{more}")
    sys.meta_path.insert(0, _Finder(extensions))
    return Build("compiled", f"of this source, for {TAG}")
