"""Which build runs: the source as it is, or the hot path compiled from exactly this source.

`make compiled`, and every wheel for a platform, puts extension modules into ``hookmq/_compiled/TAG/``, TAG being the
interpreter's, and beside them ``SHA256SUMS``: the digest of every source file that they were made of, and their own.
They serve only where all of those files are still what they were, so that no stale binary ever hides a source that was
edited, and half a library, as a full disk leaves it, is never loaded.

``HOOKMQ_BUILD=pure`` runs the source whatever there is; ``HOOKMQ_BUILD=compiled`` raises ImportError where it would run.
"""

import importlib
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
"""The manifest: lines as ``sha256sum`` writes them, of sources (``*.py``) and extension modules, relative to it; the last
is its own, of the lines before it."""
LIBRARY: Final = "hookmq__mypyc"
"""The extension module that has the code of all the others."""
VARIABLE: Final = "HOOKMQ_BUILD"


class Build(NamedTuple):
    """What runs: ``pure`` or ``compiled``, and why the one or the other."""

    kind: str
    reason: str
    unused: bool = False
    """There are compiled modules for this interpreter, and for a reason that nobody asked for they do not run."""

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


def choose_or_exit(package: str) -> Build:
    """As `choose`; where that raises, the command ``hookmq`` says why in one line and exits with 2, since nobody reads a
    traceback for what stands in an environment variable."""
    try:
        return choose(package)
    except ImportError as error:
        if not os.path.basename((getattr(sys, "argv", None) or [""])[0]).startswith("hookmq"):
            raise
        print(f"hookmq: {error}", file=sys.stderr)
        raise SystemExit(2) from None


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
        with open(os.path.join(folder, SUMS), "rb") as manifest:
            lines = manifest.read().splitlines(keepends=True)
    except (FileNotFoundError, NotADirectoryError):
        build = Build("pure", f"nothing was compiled for {TAG}")
    except OSError as error:
        build = _unused(f"the compiled build cannot be read: {error}")
    else:
        build = _judge(package, folder, lines)
    if wanted and build.kind != wanted:
        raise ImportError(f"{VARIABLE} is 'compiled', but {build.reason}")
    return build


def _unused(reason: str) -> Build:
    return Build("pure", reason, True)


def _judge(package: str, folder: str, lines: Sequence[bytes]) -> Build:
    from hashlib import sha256

    listed = _listed(lines)
    if listed is None:
        return _unused(f"the compiled build is damaged: {SUMS} is not as it was written")
    changed: list[str] = []
    extensions: dict[str, str] = {}
    for name, digest in listed.items():
        file = os.path.normpath(os.path.join(folder, name))
        try:
            with open(file, "rb") as content:
                same = sha256(content.read()).hexdigest() == digest
        except OSError:
            same = False
        if not name.endswith(SUFFIX):
            if not same:
                changed.append(os.path.relpath(file, os.path.dirname(package)))
        elif same:
            extensions[name.removesuffix(SUFFIX).replace("/", ".")] = file
        else:
            # Half a library is not refused by the loader: it is mapped, and the process dies of SIGBUS.
            return _unused(f"the compiled build is damaged: {name} is not what was compiled")
    if changed:
        more = f" and {len(changed) - 1} more differ" if len(changed) > 1 else " differs"
        return _unused(f"the compiled build is of other source: {changed[0]}{more}")
    return _use(extensions)


def _listed(lines: Sequence[bytes]) -> dict[str, str] | None:
    """Digests by name, and None for a manifest that is not whole: its last line is the digest of those before it."""
    from hashlib import sha256

    end = f"{sha256(b''.join(lines[:-1])).hexdigest()}  {SUMS}\n".encode()
    if not lines or lines[-1] != end:
        return None
    listed: dict[str, str] = {}
    for line in lines[:-1]:
        digest, _, name = line.decode("utf-8", "replace").rstrip("\n").partition("  ")
        # Sources are those of this package, and extension modules lie beside the manifest.
        inner = name if name.endswith(SUFFIX) else name.removeprefix("../../")
        if not inner or os.path.isabs(inner) or ".." in inner.split("/"):
            return None
        listed[name] = digest
    return listed


def _use(extensions: Mapping[str, str]) -> Build:
    """Have the import system find `extensions`, if the library that they are parts of can be loaded."""
    finder = _Finder(extensions)
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module(LIBRARY)
    except (
        ImportError
    ) as error:  # of a newer C library, or on a file system that nothing may be run from
        sys.meta_path.remove(finder)
        return _unused(f"the compiled build cannot be loaded: {error}")
    return Build("compiled", f"of this source, for {TAG}")
