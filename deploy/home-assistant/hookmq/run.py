"""Write the broker's configuration from the Home Assistant options, and start the broker."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

HOOKMQ: Final = (sys.executable, "-m", "hookmq.cli")


def configuration(options: dict[str, Any], data: Path, ssl: Path, shared: Path) -> dict[str, Any]:
    """Return the broker's configuration. `data` is the folder for its state. `ssl` and `shared` are the folders that
    Home Assistant mounts. Raises ValueError if the options contradict each other.
    """
    listeners: list[dict[str, Any]] = [
        {"name": "tcp", "type": "tcp", "bind": "*:1883"},
        {"name": "ws", "type": "ws", "bind": "*:8083", "websocket": {"path": "/mqtt"}},
    ]
    certificate, key = options.get("certfile"), options.get("keyfile")
    if bool(certificate) != bool(key):
        raise ValueError("certfile and keyfile: set both or none")
    if certificate and key:
        tls = {"certificate": str(ssl / certificate), "key": str(ssl / key)}
        listeners.append({"name": "tls", "type": "tls", "bind": "*:8883", "tls": tls})
    plugins: list[dict[str, Any]] = [
        {"use": "storage", "config": {"path": str(data / "storage")}},
        {"use": "auth_password", "config": {"path": str(data / "users.yaml")}},
    ]
    if options.get("rules"):
        plugins.append({"use": "acl_file", "config": {"path": str(shared / options["rules"])}})
    return {
        "version": 1,
        "listeners": listeners,
        "auth": {"default": "deny"},
        "authz": {"default": "deny" if options.get("rules") else "allow"},
        "plugins": plugins,
    }


def write_users(logins: list[dict[str, str]], path: Path) -> None:
    """Replace the user file with one that contains these users and hashed passwords. Raises CalledProcessError for an
    invalid name.
    """
    path.write_text("version: 1\nusers: {}\n")
    path.chmod(0o600)
    for login in logins:
        words = [*HOOKMQ, "passwd", "add", "--stdin", "--", str(path), login["username"]]
        subprocess.run(words, input=login["password"] + "\n", text=True, check=True)


def prepare(data: Path, ssl: Path, shared: Path) -> Path:
    """Write all files. Return the path of the configuration file."""
    options = json.loads((data / "options.json").read_text())
    write_users(options.get("logins", []), data / "users.yaml")
    path = data / "hookmq.yaml"
    path.write_text(json.dumps(configuration(options, data, ssl, shared), indent=2))
    return path


def main() -> None:
    """Replace this process with the broker."""
    try:
        path = prepare(Path("/data"), Path("/ssl"), Path("/config"))
    except (ValueError, KeyError, subprocess.CalledProcessError) as error:
        sys.exit(f"hookmq: {error}")
    os.execv(HOOKMQ[0], [*HOOKMQ, "serve", "-c", str(path)])


if __name__ == "__main__":
    main()
