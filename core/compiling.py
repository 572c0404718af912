"""Compile the code that handles each message into extension modules with mypyc.

    python compiling.py check           report what this machine lacks for compiling, if anything
    python compiling.py unpack WHEEL    copy the compiled modules from a wheel into this checkout

Building the platform wheel runs this module; the broker never does. mypyc compiles the same files that the pure build
interprets. The only other output is the manifest that `hookmq.build` reads.
"""

import ast
import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent
PACKAGE: Final = ROOT / "hookmq"

COMPILED: Final = (
    "mqtt/*", "model/metrics", "routing/*", "session/*", "storage/columns", "storage/group_commit",
    "storage/commit_pause", "storage/cluster_packets",
    "broker/*", "broker/*/*",
)  # fmt: skip
"""Patterns of the modules to compile: those that handle every message. They exclude modules whose classes plugins
subclass or implement, code that runs only once, and the asyncio server."""
LEFT: Final = {
    "mqtt/fast_constructor.py",
    "mqtt/packets.py",
    "mqtt/errors.py",
    "mqtt/properties.py",
    "mqtt/reason_codes.py",
    "broker/plugin_api",
    "broker/tracing",
    "broker/core_metrics.py",
}
"""Modules and packages that match `COMPILED` but remain interpreted. Packets are built in a way that only interpreted
classes allow, and the functions that plugins call check their own arguments. The metrics are registered once, and
``hookmq check`` registers them without a broker."""
GROUP: Final = "hookmq"
"""The name of the shared library that contains all modules. Calls between modules in one library are C calls."""


def modules() -> list[Path]:
    """Return the files to compile."""
    found = (path for pattern in COMPILED for path in PACKAGE.glob(pattern + ".py"))
    return sorted(
        path
        for path in found
        if path.name != "__init__.py" and not _left(path.relative_to(PACKAGE))
    )


def _left(path: Path) -> bool:
    """Return whether the module at `path`, or its package, is in `LEFT`."""
    return bool(LEFT & {path.as_posix(), path.parent.as_posix()})


def sources() -> list[Path]:
    """Return the files whose content affects the compiled modules.

    These are the compiled files and every hookmq module they import, whose constants and types are compiled in. Imports
    under `if TYPE_CHECKING:` count only in compiled files. In interpreted files, only type checkers read them.
    """
    compiled = modules()
    found: set[Path] = set()
    left = list(compiled)
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left += _imports(path, types=path in compiled)
    return sorted(found)


def _imports(path: Path, types: bool) -> Iterator[Path]:
    """Yield the hookmq files that `path` imports. With `types`, include imports under `if TYPE_CHECKING:`."""
    for node in _nodes(ast.parse(path.read_bytes()), types):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            if parts[0] != PACKAGE.name:
                continue
            for depth in range(1, len(parts) + 1):
                place = ROOT.joinpath(*parts[:depth])
                for file in (place.with_suffix(".py"), place / "__init__.py"):
                    if file.is_file():
                        yield file


def _nodes(node: ast.AST, types: bool) -> Iterator[ast.AST]:
    """Yield `node` and its descendants. Without `types`, skip the bodies of `if TYPE_CHECKING:`."""
    yield node
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, ast.If) and not types:
            test = node.test
            if isinstance(test, ast.Name) and test.id == "TYPE_CHECKING":
                continue
        for below in value if isinstance(value, list) else [value]:
            if isinstance(below, ast.AST):
                yield from _nodes(below, types)


def tag() -> str:
    """Return the interpreter's tag. Like `hookmq.build.TAG`, it names this interpreter's folder in ``_compiled``."""
    return EXTENSION_SUFFIXES[0].split(".")[1]


def missing() -> str:
    """Return a message that names a missing build tool and how to install it, or '' if nothing is
    missing.
    """
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return (
            f"a C compiler ({compiler}) is needed and was not found: "
            "apt install gcc, dnf install gcc or xcode-select --install"
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        return (
            f"Python's headers are needed and {header} is not there: "
            "apt install python3-dev or dnf install python3-devel"
        )
    return ""


def digests(paths: list[Path]) -> dict[Path, str]:
    """Return the SHA-256 digest of each file, in hex."""
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def compile_into(folder: Path) -> Path:
    """Compile the modules, and return the subfolder of `folder` whose content belongs in ``hookmq/_compiled/TAG/``.

    Compiling takes minutes, and needs mypy and setuptools. Raises RuntimeError if the source changed during the
    compilation.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution  # type: ignore[import-untyped]
    from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

    before = digests(sources())
    here = os.getcwd()
    os.chdir(ROOT)  # file names in tracebacks are relative to this folder
    try:
        # `make check` has checked the types. Libraries that are not installed in the build environment have no types.
        flags = ["--config-file=", "--ignore-missing-imports", "--strict-bytes"]
        extensions = mypycify(
            [*flags, *(str(path.relative_to(ROOT)) for path in modules())],
            opt_level=os.environ.get("MYPYC_OPT_LEVEL", "3"),
            debug_level="0",
            target_dir=str(folder / "c"),
            group_name=GROUP,
        )
        command = build_ext(Distribution({"name": "hookmq", "ext_modules": extensions}))
        command.build_lib = str(folder / "lib")
        command.build_temp = str(folder / "temp")
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(here)
    if digests(sources()) != before:
        raise RuntimeError("the source changed while it was compiled: once more, please")
    made = folder / "lib"
    lines = [f"{digest}  {_up(path)}" for path, digest in before.items()]
    binaries = sorted(path for path in made.rglob("*") if path.is_file())
    lines += [
        f"{value}  {path.relative_to(made).as_posix()}" for path, value in digests(binaries).items()
    ]
    (made / "SHA256SUMS").write_text(manifest(lines), encoding="utf-8")
    return made


def manifest(lines: list[str]) -> str:
    """Return the text of SHA256SUMS: `lines`, then a digest of them, so that `hookmq.build` detects a truncated file."""
    text = "".join(line + "\n" for line in lines)
    return f"{text}{hashlib.sha256(text.encode()).hexdigest()}  SHA256SUMS\n"


def _up(path: Path) -> str:
    """Return the path of a source file relative to ``_compiled/TAG/``, as the manifest lists it."""
    return "../../" + path.relative_to(PACKAGE).as_posix()


def unpack(wheel: Path) -> Path:
    """Copy the compiled modules of `wheel` into this checkout's ``hookmq/_compiled``, replacing
    older ones. Return the folder.
    """
    place = PACKAGE / "_compiled"
    with tempfile.TemporaryDirectory(dir=PACKAGE.parent, prefix=".compiled-") as scratch:
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.startswith("hookmq/_compiled/")]
            archive.extractall(scratch, names)
        # Rename whole folders: an import at the same time finds the old modules, the new ones or none.
        for fresh in Path(scratch, "hookmq", "_compiled").iterdir():
            place.mkdir(exist_ok=True)
            target = place / fresh.name
            if target.exists():
                target.rename(Path(scratch, "old"))
            fresh.rename(target)
    return place


def main(words: list[str]) -> int:
    """Run one of the commands and return its exit code."""
    if words == ["check"]:
        if lack := missing():
            print(f"Cannot compile: {lack}. HookMQ runs without, as pure Python.", file=sys.stderr)
        return int(bool(lack))
    if len(words) == 2 and words[0] == "unpack":
        print(unpack(Path(words[1])))
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
