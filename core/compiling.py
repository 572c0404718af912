"""Compile the hot path into extension modules with mypyc: a part of the platform wheel's build, never of a run.

    python compiling.py check           what this machine lacks to compile, if anything
    python compiling.py unpack WHEEL    put the compiled modules of a wheel beside the source of this checkout

The very files that run uncompiled are compiled; nothing is generated or kept beside them but what `hookmq.build` reads.
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
    "metrics", "topics", "router", "qos", "session", "retained", "aliases", "codec/*", "broker/*",
)  # fmt: skip
"""What every message passes. Not among them: what plugins subclass or implement, what runs once, the asyncio shell."""
LEFT: Final = {"codec/packets.py", "broker/handle.py"}
"""Of those, what stays as it is: packets become what they are by a trick that only interpreted classes allow, and what
plugins call checks for itself what it is given."""
GROUP: Final = "hookmq"
"""All modules are one shared library, so that calls between them are calls in C."""


def modules() -> list[Path]:
    """The files to compile."""
    found = (path for pattern in COMPILED for path in PACKAGE.glob(pattern + ".py"))
    return sorted(
        path
        for path in found
        if path.name != "__init__.py" and path.relative_to(PACKAGE).as_posix() not in LEFT
    )


def sources() -> list[Path]:
    """The files that the compiled ones are made of: themselves and all they import of hookmq, whose constants and types
    are compiled in. An interpreted one may import types from above itself, under `if TYPE_CHECKING:`: those are for
    type checkers and do not count."""
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
    """The files of hookmq that a file imports. `types`: those under `if TYPE_CHECKING:` as well."""
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
    """The node and all below it, without what only type checkers read unless `types`."""
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
    """The folder's name for this interpreter, as `hookmq.build` has it."""
    return EXTENSION_SUFFIXES[0].split(".")[1]


def missing() -> str:
    """What this machine lacks to compile, and how to get it; '' for nothing."""
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
    """The SHA-256 of each file."""
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def compile_into(folder: Path) -> Path:
    """Compile; the folder below `folder` that holds what belongs into ``hookmq/_compiled/TAG/``.

    Needs mypy and setuptools. Raises RuntimeError where the source changed meanwhile.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution  # type: ignore[import-untyped]
    from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

    before = digests(sources())
    here = os.getcwd()
    os.chdir(ROOT)  # the names in tracebacks are relative to it
    try:
        # Types are checked by `make check`; what is not installed where wheels are built has none.
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
    """The text of SHA256SUMS: `lines`, and the digest of those, so that one that is not whole is told."""
    text = "".join(line + "\n" for line in lines)
    return f"{text}{hashlib.sha256(text.encode()).hexdigest()}  SHA256SUMS\n"


def _up(path: Path) -> str:
    """A source as the manifest in ``_compiled/TAG/`` names it."""
    return "../../" + path.relative_to(PACKAGE).as_posix()


def unpack(wheel: Path) -> Path:
    """Put the compiled modules of `wheel` where this checkout's `hookmq` looks for them, in the place of older ones."""
    place = PACKAGE / "_compiled"
    with tempfile.TemporaryDirectory(dir=PACKAGE.parent, prefix=".compiled-") as scratch:
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.startswith("hookmq/_compiled/")]
            archive.extractall(scratch, names)
        # Moved in whole: who imports meanwhile finds the old ones, the new ones or none.
        for fresh in Path(scratch, "hookmq", "_compiled").iterdir():
            place.mkdir(exist_ok=True)
            target = place / fresh.name
            if target.exists():
                target.rename(Path(scratch, "old"))
            fresh.rename(target)
    return place


def main(words: list[str]) -> int:
    """Run one of the commands; its exit code."""
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
