"""Render the Helm chart, and write the result to deploy/kubernetes: python tools/chart.py

The renderer in tests/deploy/render uses Helm's template engine and functions. It needs Go and sprig (Debian: golang-go,
golang-github-masterminds-sprig-dev).
"""

import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "deploy/helm/hookmq"
PLAIN: Final = ROOT / "deploy/kubernetes"
SOURCE: Final = ROOT / "tests/deploy/render/main.go"
LIBRARIES: Final = Path("/usr/share/gocode")
FILES: Final = ("hookmq.yaml", "servicemonitor.yaml")


def available() -> bool:
    """Return whether charts can be rendered here."""
    sprig = LIBRARIES / "src/github.com/Masterminds/sprig"
    return shutil.which("go") is not None and sprig.is_dir()


@cache
def renderer() -> Path:
    """Compile the renderer once, and return the path of the program. Raises CalledProcessError."""
    folder = Path(mkdtemp(prefix="render-chart-"))
    environ = {"GO111MODULE": "off", "GOPATH": str(LIBRARIES), "GOCACHE": str(folder / "cache")}
    program = folder / "render"
    words = ["go", "build", "-o", str(program), str(SOURCE)]
    subprocess.run(words, env=os.environ | environ, check=True)
    shutil.rmtree(folder / "cache")
    return program


def render(*values: Path) -> tuple[str, str]:
    """Return the manifests of the release `hookmq` in the namespace `mqtt`, and the chart's notes."""
    words = [str(renderer()), str(CHART), "hookmq", "mqtt", *map(str, values)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout, done.stderr


def digest() -> str:
    """Return a digest of everything that deploy/kubernetes is rendered from."""
    found = hashlib.sha256()
    for path in [*sorted(CHART.rglob("*")), PLAIN / "values.yaml"]:
        if path.is_file():
            found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def plain() -> dict[str, str]:
    """Return the text that each file in deploy/kubernetes should have."""
    text, _ = render(PLAIN / "values.yaml")
    text = text.replace("managed-by: Helm", "managed-by: kubectl")
    documents = [one for one in text.split("---\n") if one.strip()]
    head = f"# Rendered from deploy/helm/hookmq by tools/chart.py. Do not edit. {digest()}\n"
    monitor = [one for one in documents if "kind: ServiceMonitor" in one]
    others = [one for one in documents if one not in monitor]
    return {
        name: head + "---\n".join(found)
        for name, found in zip(FILES, (others, monitor), strict=True)
    }


def main() -> int:
    """Write the files."""
    if not available():
        print("needs Go and sprig: see tools/chart.py", file=sys.stderr)
        return 1
    for name, text in plain().items():
        (PLAIN / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
