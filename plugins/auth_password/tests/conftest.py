"""Users with cheap hashes, and an in-memory broker that knows them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hookmq_auth_password import plugin as plugin_module
from hookmq_auth_password.plugin import AuthPasswordPlugin
from hookmq_testing import Harness, make_plugin
from passwords import CHEAP, USERS, Make, Verified


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.yaml"
    path.write_text(USERS)
    path.chmod(0o600)
    return path


@pytest.fixture
def broker(file: Path) -> Iterator[Make]:
    """Return a function: ``broker(**config)`` creates a broker with the plugin, which denies unknown users."""
    made: list[Harness] = []

    def make_broker(**config: Any) -> Harness:
        given = {"path": file, "argon2": CHEAP, **config}
        kind = make_plugin(AuthPasswordPlugin, given, "users", use="auth_password")
        harness = Harness([kind], config={"auth": {"default": "deny"}}, start=False)
        kind.plugin.context = type(kind.plugin.context)(
            "users", "auth_password", "0", harness.clock.log
        )
        harness.start()
        made.append(harness)
        return harness

    yield make_broker
    for harness in made:
        harness.close()


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> Verified:
    counter = Verified()
    monkeypatch.setattr(plugin_module, "verify", counter)
    return counter
