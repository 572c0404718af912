"""Compile the modules of a package that handle each message into extension modules with mypyc.

    python compiling.py check             report what this machine lacks for compiling, if anything
    python compiling.py unpack ROOT DIST  copy the compiled modules from a wheel in DIST into the checkout at ROOT

Building the platform wheel runs this module; the broker never does. mypyc compiles the same files that the pure build
interprets. The only other output is the manifest that `hookmq.build` reads. ROOT is the folder of a distribution. In its
pyproject.toml, the table of hatchling's custom hook names the modules.
"""

import ast
import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


class Project:
    """The distribution in the folder `root`. Its table has these keys, with paths relative to the package:

    - `modules`: patterns of the modules to compile, without ``.py``.
    - `interpreted`: modules and packages that match and are not compiled.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        file = self.root / "pyproject.toml"
        wheel = tomllib.loads(file.read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
        self.name: str = wheel["packages"][0]
        """The name of the package, and of the library with all modules. Calls between its modules are C calls."""
        self.package: Path = self.root / self.name
        self._patterns: list[str] = wheel["hooks"]["custom"]["modules"]
        self._interpreted = set(wheel["hooks"]["custom"].get("interpreted", ()))

    def modules(self) -> list[Path]:
        """Return the files to compile."""
        found = (path for one in self._patterns for path in self.package.glob(one + ".py"))
        return sorted(path for path in found if path.name != "__init__.py" and not self._left(path))

    def _left(self, path: Path) -> bool:
        """Return whether the module at `path`, or its package, stays interpreted."""
        inner = path.relative_to(self.package).with_suffix("")
        return bool(self._interpreted & {inner.as_posix(), inner.parent.as_posix()})

    def sources(self) -> list[Path]:
        """Return the files whose content affects the compiled modules.

        These are the compiled files and every module of the package they import, whose constants and types are compiled
        in. Imports under `if TYPE_CHECKING:` count only in compiled files. In interpreted files, only type checkers read
        them.
        """
        compiled = self.modules()
        found: set[Path] = set()
        left = list(compiled)
        while left:
            path = left.pop()
            if path not in found:
                found.add(path)
                left += self.imports(path, types=path in compiled)
        return sorted(found)

    def imports(self, path: Path, types: bool) -> Iterator[Path]:
        """Yield the files of the package that `path` imports. With `types`, include imports under `if TYPE_CHECKING:`."""
        for node in _nodes(ast.parse(path.read_bytes()), types):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                parts = name.split(".")
                if parts[0] != self.name:
                    continue
                for depth in range(1, len(parts) + 1):
                    place = self.package.joinpath(*parts[1:depth])
                    for file in (place.with_suffix(".py"), place / "__init__.py"):
                        if file.is_file():
                            yield file

    def foreign(self) -> list[str]:
        """Return the classes of compiled modules that inherit from a class of another package. mypyc does not know the
        layout of such a class, and the program would crash.
        """
        found: list[str] = []
        for path in self.modules():
            others: set[str] = set()
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.ImportFrom | ast.Import):
                    module = node.module if isinstance(node, ast.ImportFrom) else None
                    for alias in node.names:
                        top = (module or alias.name).split(".")[0]
                        if top != self.name and top not in sys.stdlib_module_names:
                            others.add(alias.asname or (alias.name if module else top))
                elif isinstance(node, ast.ClassDef):
                    names = {ast.unparse(base).split(".")[0] for base in node.bases}
                    found += [f"{path.stem}.{node.name}"] if names & others else []
        return found

    def compile_into(self, folder: Path) -> Path:
        """Compile the modules, and return the subfolder of `folder` whose content belongs in ``_compiled/TAG/``.

        Compiling takes minutes, and needs mypy and setuptools. Raises RuntimeError if the source changed during the
        compilation, or if `foreign` finds a class.
        """
        from mypyc.build import mypycify
        from setuptools import Distribution  # type: ignore[import-untyped]
        from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

        if found := self.foreign():
            raise RuntimeError(f"do not compile modules with these classes: {', '.join(found)}")
        before = digests(self.sources())
        here = os.getcwd()
        os.chdir(self.package.parent)  # file names in tracebacks are relative to this folder
        try:
            config = folder / "mypy.ini"
            config.write_text(CONFIG.format(name=self.name))
            names = (str(path.relative_to(self.package.parent)) for path in self.modules())
            extensions = mypycify(
                [f"--config-file={config}", "--strict-bytes", *names],
                opt_level=os.environ.get("MYPYC_OPT_LEVEL", "3"),
                debug_level="0",
                target_dir=str(folder / "c"),
                group_name=self.name,
            )
            command = build_ext(Distribution({"name": self.name, "ext_modules": extensions}))
            command.build_lib = str(folder / "lib")
            command.build_temp = str(folder / "temp")
            command.ensure_finalized()
            command.run()
        finally:
            os.chdir(here)
        if digests(self.sources()) != before:
            raise RuntimeError("the source changed while it was compiled: once more, please")
        made = folder / "lib"
        lines = [
            f"{digest}  ../../{path.relative_to(self.package).as_posix()}"
            for path, digest in before.items()
        ]
        binaries = sorted(path for path in made.rglob("*") if path.is_file())
        lines += [
            f"{value}  {path.relative_to(made).as_posix()}"
            for path, value in digests(binaries).items()
        ]
        (made / "SHA256SUMS").write_text(manifest(lines), encoding="utf-8")
        return made

    def unpack(self, wheels: Path) -> Path:
        """Copy the compiled modules of the wheel in the folder `wheels` into this checkout's ``_compiled``, replacing
        older ones. Return the folder.
        """
        [wheel] = wheels.glob(f"{self.name}-*-cp*.whl")
        place = self.package / "_compiled"
        with tempfile.TemporaryDirectory(dir=self.root, prefix=".compiled-") as scratch:
            with zipfile.ZipFile(wheel) as archive:
                inner = f"{self.name}/_compiled/"
                archive.extractall(scratch, [n for n in archive.namelist() if n.startswith(inner)])
            # Rename whole folders: an import at the same time finds the old modules, the new ones or none.
            for fresh in Path(scratch, inner).iterdir():
                place.mkdir(exist_ok=True)
                target = place / fresh.name
                if target.exists():
                    target.rename(Path(scratch, "old"))
                fresh.rename(target)
        return place


CONFIG = """
[mypy]
follow_imports = skip
ignore_missing_imports = True
[mypy-{name}.*]
follow_imports = normal
"""
"""mypy's configuration. `make check` has checked the types. Imports from other packages are not read: their
constants must not be compiled in, and compiled modules then work with every version of the others."""


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


def manifest(lines: list[str]) -> str:
    """Return the text of SHA256SUMS: `lines`, then a digest of them, so that `hookmq.build` detects a truncated file."""
    text = "".join(line + "\n" for line in lines)
    return f"{text}{hashlib.sha256(text.encode()).hexdigest()}  SHA256SUMS\n"


def main(words: list[str]) -> int:
    """Run one of the commands and return its exit code."""
    if words == ["check"]:
        if lack := missing():
            print(f"Cannot compile: {lack}. HookMQ runs without, as pure Python.", file=sys.stderr)
        return int(bool(lack))
    if len(words) == 3 and words[0] == "unpack":
        print(Project(Path(words[1])).unpack(Path(words[2])))
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
