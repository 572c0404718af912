"""Choose between the pure build of a package and a compiled build that matches its source exactly.

`make compiled` and platform wheels put extension modules into the folder ``_compiled/TAG/`` of a package, where TAG is
the interpreter's tag. The package is hookmq or that of a plugin. ``SHA256SUMS`` in that folder lists the digests of the
modules and of their source files. The modules are used only if all digests match. A stale binary therefore never hides
an edited source file, and a truncated library is never loaded.

``HOOKMQ_BUILD=pure`` always uses the source. ``HOOKMQ_BUILD=compiled`` raises ImportError if the modules cannot be used.
"""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from types import ModuleType
from typing import Final, NamedTuple

__all__ = ["Build", "choose_or_exit"]

SUFFIX: Final = EXTENSION_SUFFIXES[0]
TAG: Final = SUFFIX.split(".")[1]
"""The interpreter's tag for extension modules, such as ``cpython-311-x86_64-linux-gnu``."""
SUMS: Final = "SHA256SUMS"
"""The manifest's file name. Each line is in ``sha256sum`` format and lists a source file (``*.py``) or extension module
by relative path. The last line is a digest of the lines before it."""
VARIABLE: Final = "HOOKMQ_BUILD"


class Build(NamedTuple):
    """The build in use, ``pure`` or ``compiled``, and the reason for it."""

    kind: str
    reason: str
    unused: bool = False
    """True if compiled modules exist for this interpreter but cannot be used."""

    def __str__(self) -> str:
        return f"{self.kind} ({self.reason})"


class _Finder:
    """Finds compiled modules by name before Python looks for their source files."""

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
    """Return `choose(package)`. In the ``hookmq`` command, print an ImportError as one line and exit with code 2."""
    try:
        return choose(package)
    except ImportError as error:
        if not os.path.basename((getattr(sys, "argv", None) or [""])[0]).startswith("hookmq"):
            raise
        print(f"hookmq: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def choose(package: str) -> Build:
    """Use the compiled modules in the folder `package` if they match its source. Return the chosen build.

    Call this once, in the package's ``__init__.py``, before any other module of it is imported. Raises ImportError if
    ``HOOKMQ_BUILD`` is invalid, or if it requires compiled modules that cannot be used.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "pure", "compiled"):
        raise ImportError(f"{VARIABLE} is {wanted!r}: expected 'pure' or 'compiled'")
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
        return _unused(f"the compiled build is damaged: {SUMS} was changed")
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
            # The loader would map a truncated library, and SIGBUS would kill the process.
            return _unused(f"the compiled build is damaged: {name} was changed")
    if changed:
        more = f" and {len(changed) - 1} more differ" if len(changed) > 1 else " differs"
        return _unused(f"the compiled build is from other source: {changed[0]}{more}")
    return _use(os.path.basename(package), extensions)


def _listed(lines: Sequence[bytes]) -> dict[str, str] | None:
    """Return the digests by name, or None if the manifest is incomplete or contains unexpected
    paths.
    """
    from hashlib import sha256

    end = f"{sha256(b''.join(lines[:-1])).hexdigest()}  {SUMS}\n".encode()
    if not lines or lines[-1] != end:
        return None
    listed: dict[str, str] = {}
    for line in lines[:-1]:
        digest, _, name = line.decode("utf-8", "replace").rstrip("\n").partition("  ")
        # sources are in this package, and extension modules next to the manifest
        inner = name if name.endswith(SUFFIX) else name.removeprefix("../../")
        if not inner or os.path.isabs(inner) or ".." in inner.split("/"):
            return None
        listed[name] = digest
    return listed


def _use(package: str, extensions: Mapping[str, str]) -> Build:
    """Make `extensions` importable if the library that contains the code of all of them can be loaded."""
    finder = _Finder(extensions)
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module(f"{package}__mypyc")
    except ImportError as error:
        # The library needs a newer libc, or the file system is mounted noexec.
        sys.meta_path.remove(finder)
        return _unused(f"the compiled build cannot be loaded: {error}")
    return Build("compiled", f"from this source, for {TAG}")
