"""Write events about clients to a file, one JSON object per line: a plugin that observes."""

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
    """The path of the file, and the events to write."""

    path: Path = field(metadata={"help": "file to append to; its folder must exist"})
    sessions: bool = setting(True, "also write when sessions begin and end")


class AuditPlugin(Plugin):
    """A plugin that appends one line for each event.

    The observers are plain functions, so they run in a worker thread, one event at a time. They may
    block on a slow disk without holding up the broker. Lines never contain payloads or passwords.
    """

    Config = AuditConfig
    config: AuditConfig

    _file: TextIO | None = None

    @hookimpl
    def on_startup(self) -> None:
        """Open the file. An invalid path makes startup fail, before any client connects."""
        self._file = self.config.path.open("a", encoding="utf-8")

    @hookimpl
    def on_shutdown(self) -> None:
        """Close the file. All events have been written by now."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @hookimpl
    def on_session(self, client: ClientInfo, event: SessionEvent) -> None:
        """Record that a session began, ended or was taken over."""
        if self.config.sessions:
            self._write(client, "session", change=str(event))

    @hookimpl
    def on_auth_failed(self, client: ClientInfo, code: ReasonCode, reason: str) -> None:
        """Record that a client was refused."""
        self._write(client, "auth_failed", code=code.name, username=client.username, reason=reason)

    @hookimpl
    def on_denied(
        self, client: ClientInfo | None, action: Action, topic: str, code: ReasonCode, rule: str
    ) -> None:
        """Record a denied action. `rule` names the plugin or setting that denied it."""
        self._write(client, "denied", action=str(action), topic=topic, code=code.name, rule=rule)

    @hookimpl
    def on_disconnect(self, client: ClientInfo, reason: DisconnectReason) -> None:
        """Record that a connection ended."""
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
