"""Writes what happens to clients to a file, one JSON object per line: a plugin that observes."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from hookmq.plugin import (
    Action,
    ClientInfo,
    DisconnectReason,
    Plugin,
    ReasonCode,
    SessionEvent,
    hookimpl,
    setting,
)


@dataclass(frozen=True)
class AuditConfig:
    """Where the lines go."""

    path: Path = field(metadata={"help": "file that lines are appended to; its folder must exist"})
    sessions: bool = setting(True, "whether beginnings and ends of sessions are written too")


class AuditPlugin(Plugin):
    """Observers are plain functions here: these run in a worker thread, one event after another, so that they may block
    on a slow disk while the broker goes on. Lines hold who, what and why, never payloads or passwords."""

    Config = AuditConfig
    config: AuditConfig

    _file: TextIO | None = None

    @hookimpl
    def on_startup(self) -> None:
        """Open the file now, so that a wrong path is told before anybody can connect."""
        self._file = self.config.path.open("a", encoding="utf-8")

    @hookimpl
    def on_shutdown(self) -> None:
        """Called when all events were written."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @hookimpl
    def on_session(self, client: ClientInfo, event: SessionEvent) -> None:
        """A session began, ended or changed hands."""
        if self.config.sessions:
            self._write(client, "session", change=str(event))

    @hookimpl
    def on_auth_failed(self, client: ClientInfo, code: ReasonCode, reason: str) -> None:
        """Somebody was not let in."""
        self._write(client, "auth_failed", code=code.name, username=client.username, reason=reason)

    @hookimpl
    def on_denied(
        self, client: ClientInfo | None, action: Action, topic: str, code: ReasonCode, rule: str
    ) -> None:
        """Somebody wanted what he may not; `rule` names the plugin or the setting that said so."""
        self._write(client, "denied", action=str(action), topic=topic, code=code.name, rule=rule)

    @hookimpl
    def on_disconnect(self, client: ClientInfo, reason: DisconnectReason) -> None:
        """A connection ended."""
        self._write(
            client, "disconnect", code=reason.code.name, by=str(reason.by), will=reason.will
        )

    def _write(self, client: ClientInfo | None, event: str, **fields: object) -> None:
        if self._file is None:
            raise RuntimeError("the file is not open")
        entry: dict[str, object] = {"time": datetime.now(UTC).isoformat(), "event": event}
        if client is not None:
            entry |= {"client_id": client.client_id, "identity": client.identity}
            entry |= {"peer": str(client.peer), "listener": client.listener}
        print(json.dumps(entry | fields), file=self._file, flush=True)
