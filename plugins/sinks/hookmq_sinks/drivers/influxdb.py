"""The `influxdb` driver: points in InfluxDB 1, 2 or 3, as line protocol over HTTP.

Each batch is one request. InfluxDB identifies a point by its measurement, tags and timestamp, and replaces the fields
of an existing point. Writing a batch again therefore changes nothing. For the same reason, two messages with the same
measurement, tags and timestamp become one point. The setting `spread` keeps them apart.

InfluxDB stores a request's valid points even if it refuses others, and does not always say which ones it refused. In
that case, the driver splits the batch in half repeatedly until it has found the refused points. It rejects their
records.
"""

import asyncio
import gzip
import json
import os
import re
import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlencode, urlsplit

from hookmq.plugin import ConfigError, Seconds, setting
from hookmq_toolkit.tls_client import TlsConfig, client_context

from hookmq_sinks.driver import (
    Batch,
    Driver,
    DriverContext,
    Position,
    Problem,
    Record,
    RecordError,
    RecordTemplate,
    Rejected,
    TargetUnavailable,
    make_each,
    template_setting,
)
from hookmq_sinks.drivers.line_protocol import (
    UNITS,
    FieldType,
    Precision,
    field_value,
    line,
    mistake,
    nanoseconds,
)

if TYPE_CHECKING:
    import aiohttp

_TYPES: Final = ("integer", "float", "boolean", "string")
_REFUSED: Final = frozenset({400, 413, 422})
"""Status codes for requests with points that InfluxDB will never accept."""
_OPERATOR: Final = re.compile(
    r"is required|invalid precision|retention policy not found|(?:org|organization|bucket|database)\b.*\bnot found"
)
"""Error messages that are caused by wrong settings, with any status code."""
_REQUESTS: Final = 100
_SECONDS: Final = 5.0
"""The maximum number of requests and seconds for the search in one `write`. The records found by then are rejected."""
_MAX_ANSWER: Final = 1 << 16


@dataclass(frozen=True)
class InfluxDbSettings:
    """The `influxdb` driver's settings."""

    version: int = field(metadata={"help": "the version of InfluxDB: 1, 2 or 3"})
    measurement: str = template_setting(help="the measurement")
    fields: Mapping[str, Any] = template_setting(
        help="fields and their templates; a field is left out if its template has no value"
    )
    url: str = setting("http://127.0.0.1:8086", "the server; InfluxDB 3 has the port 8181")
    database: str = setting("", "the database, for versions 1 and 3")
    retention_policy: str = setting("", "the retention policy, for version 1; default: its default")
    org: str = setting("", "the organization, for version 2")
    bucket: str = setting("", "the bucket, for version 2")
    types: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={
            "help": "types of fields: integer, float, boolean or string; default: numbers are floats"
        },
    )
    tags: Mapping[str, Any] = template_setting(
        {}, "tags and their templates; a tag is left out if its template has no value"
    )
    timestamp: str = template_setting(
        "${timestamp.ns}", "the time of the point: a number, or a text as in ISO 8601"
    )
    precision: Precision = setting("ns", "the unit of `timestamp` if it is a number: ns, us, ms, s")
    spread: bool = setting(
        False, "add nanoseconds by the record's offset, so that points of the same time stay apart"
    )
    gzip: bool = setting(True, "whether requests are compressed")
    user: str = setting("", "user name, for version 1")
    password: str = setting("", "password of the user, for version 1")
    token: str = setting("", "token, for versions 2 and 3")
    tls: TlsConfig | None = setting(None, "files for TLS, with https://")
    connect_timeout: Seconds = setting(5.0, "longest time for connecting", minimum=0.1, maximum=600)

    def __post_init__(self) -> None:
        if self.version not in (1, 2, 3):
            raise ConfigError(f"version: expected 1, 2 or 3, found {self.version}")
        _check_url(self.url)
        if self.tls is not None and not self.url.startswith("https://"):
            raise ConfigError("tls: needs https:// in url")
        self._check_version()
        _check_names("fields", self.fields)
        _check_names("tags", self.tags)
        if not self.fields:
            raise ConfigError(
                "fields: empty, but at least one is required", hint='value: "${payload}"'
            )
        for name in self.fields:
            if name in self.tags:
                raise ConfigError(f"fields.{name}: is a tag, too")
        for name, kind in self.types.items():
            if name not in self.fields:
                raise ConfigError(f"types.{name}: there is no such field")
            if kind not in _TYPES:
                raise ConfigError(f"types.{name}: expected {', '.join(_TYPES)}, found {kind!r}")

    def _check_version(self) -> None:
        """Raise ConfigError if a setting is missing, or belongs to another version."""
        known = {
            1: ("database", "retention_policy", "user", "password"),
            2: ("org", "bucket", "token"),
            3: ("database", "token"),
        }
        needed = {1: ("database",), 2: ("org", "bucket"), 3: ("database",)}
        for name in needed[self.version]:
            if not getattr(self, name):
                raise ConfigError(f"{name}: required with `version: {self.version}`")
        for name in sorted({one for names in known.values() for one in names}):
            if getattr(self, name) and name not in known[self.version]:
                raise ConfigError(f"version: {self.version} does not use `{name}`, which is set")
        if self.password and not self.user:
            raise ConfigError("user: required with `password`")
        if ":" in self.user:
            raise ConfigError("user: contains a colon, which HTTP forbids")


class InfluxDbDriver(Driver):
    """Writes points; see the module docstring."""

    Settings: ClassVar[type] = InfluxDbSettings
    extra = "influxdb"
    settings: InfluxDbSettings

    def __init__(self, settings: InfluxDbSettings, context: DriverContext) -> None:
        super().__init__(settings, context)
        self._measurement = RecordTemplate(settings.measurement, "measurement")
        self._timestamp = RecordTemplate(settings.timestamp, "timestamp")
        # InfluxDB processes sorted tags faster.
        self._tags = {
            name: RecordTemplate(text, f"tags.{name}") for name, text in sorted(settings.tags.items())
        }  # fmt: skip
        self._fields = {
            name: RecordTemplate(text, f"fields.{name}") for name, text in settings.fields.items()
        }
        self._types: Mapping[str, FieldType] = settings.types
        self._write_url = settings.url.rstrip("/") + _write_path(settings)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> Position | None:
        """Check that the server accepts the credentials and knows the database."""
        import aiohttp
        from hookmq_toolkit.http_client import open_session

        settings = self.settings
        try:
            context = await asyncio.to_thread(_tls_context, settings)
        except OSError as error:
            raise _unavailable(error) from error
        timeout = aiohttp.ClientTimeout(total=None, connect=settings.connect_timeout)
        self._session = open_session("hookmq-sinks", 1, tls=context, timeout=timeout)
        if settings.version == 3:
            # Version 3 creates a missing database, even for a request without points.
            status, text = await self._ask("GET", settings.url.rstrip("/") + "/health")
        else:
            status, text = await self._ask("POST", self._write_url)
        if not (200 <= status < 300 or (status == 400 and not _OPERATOR.search(text))):
            raise _refusal(status, text)
        return None

    async def check(self, sample: Record | None) -> Sequence[Problem]:
        """Return a problem if the sample is not a valid point. With version 1, also compare the types of its fields
        with those in the measurement.
        """
        if sample is None:
            return ()
        try:
            self._line(sample)
            fields = self._values(sample)
            measurement = self._measurement.fill(sample)
        except RecordError as error:
            return [Problem("", str(error))]
        if self.settings.version != 1:
            return ()
        known = await self._known_types(measurement)
        return [
            Problem(
                f"fields.{name}",
                f"the field {name} of {measurement} is {known[name]}, but the sample's is {_type_of(value)}",
                "set `types`, or use another name",
            )
            for name, value in fields.items()
            if name in known and known[name] != _type_of(value)
        ]

    async def write(self, batch: Batch) -> None:
        """Write the points, and find those that InfluxDB refuses."""
        lines = make_each(batch, self._line)
        reasons: dict[int, str] = {}
        parts = [(0, len(lines))]
        requests = 0
        now = asyncio.get_running_loop().time
        began = now()
        while parts:
            start, end = parts.pop()
            status, text = await self._ask("POST", self._write_url, b"\n".join(lines[start:end]))
            requests += 1
            if 200 <= status < 300:
                continue
            if status not in _REFUSED or _OPERATOR.search(text):
                raise _refusal(status, text)
            if end - start == 1:
                reasons[start] = _reason(text) or f"status {status}"
                late = requests >= _REQUESTS or now() - began > _SECONDS
                if late and parts:
                    # Writing a stored point again changes nothing.
                    raise Rejected(reasons)
                continue
            middle = (start + end) // 2
            # Take the last part next. Points keep their order, so the newest of several equal points remains.
            parts += [(middle, end), (start, middle)]
        if reasons:
            raise Rejected(reasons, stored=True)

    async def close(self) -> None:
        """Close the connection."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):
                await session.close()

    # points ----------------------------------------------------------------------------------------------------------

    def _line(self, record: Record) -> bytes:
        tags: dict[str, str] = {}
        for name, template in self._tags.items():
            if template.optional(record) is not None:
                text = template.fill(record)
                if text:  # InfluxDB does not allow empty tags
                    tags[name] = text
        time = nanoseconds(self._timestamp.value(record), self.settings.precision)
        if self.settings.spread:
            # A record has the same offset when it is written again. The broker's clock counts microseconds.
            time += record.offset % max(UNITS[self.settings.precision], 1_000)
        return line(self._measurement.fill(record), tags, self._values(record), time)

    def _values(self, record: Record) -> dict[str, str]:
        values: dict[str, str] = {}
        for name, template in self._fields.items():
            value = template.optional(record)
            if value is not None:
                values[name] = field_value(name, value, self._types.get(name))
        return values

    async def _known_types(self, measurement: str) -> dict[str, str]:
        """Return the types of the measurement's fields. Return nothing if the user is not allowed to read them."""
        settings = self.settings
        quoted = re.sub(r'["\\]', lambda found: f"\\{found[0]}", measurement)
        query = urlencode({"db": settings.database, "q": f'SHOW FIELD KEYS FROM "{quoted}"'})
        status, text = await self._ask("GET", f"{settings.url.rstrip('/')}/query?{query}")
        known: dict[str, str] = {}
        if status == 200:
            with suppress(ValueError, KeyError, IndexError, TypeError):
                known = dict(json.loads(text)["results"][0]["series"][0]["values"])
        return known

    # requests --------------------------------------------------------------------------------------------------------

    async def _ask(self, method: str, url: str, body: bytes = b"") -> tuple[int, str]:
        """Send a request. Return the status code and the text of the response. Raises TargetUnavailable."""
        from hookmq_toolkit.http_client import read_body
        from yarl import URL

        assert self._session is not None
        headers = self._headers()
        if body and self.settings.gzip:
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers["Content-Encoding"] = "gzip"
        try:
            async with self._session.request(
                method, URL(url, encoded=True), data=body, headers=headers, allow_redirects=False
            ) as answer:
                return answer.status, (await read_body(answer, _MAX_ANSWER)).decode(
                    errors="replace"
                )
        except Exception as error:
            raise _unavailable(error) from error

    def _headers(self) -> dict[str, str]:
        settings = self.settings
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        if settings.user:
            known = b64encode(f"{settings.user}:{settings.password}".encode()).decode()
            headers["Authorization"] = f"Basic {known}"
        elif settings.token:
            scheme = "Token" if settings.version == 2 else "Bearer"
            headers["Authorization"] = f"{scheme} {settings.token}"
        return headers


def _write_path(settings: InfluxDbSettings) -> str:
    found: dict[str, str]
    if settings.version == 1:
        found = {"db": settings.database, "precision": "ns"}
        if settings.retention_policy:
            found["rp"] = settings.retention_policy
        return f"/write?{urlencode(found)}"
    if settings.version == 2:
        found = {"org": settings.org, "bucket": settings.bucket, "precision": "ns"}
        return f"/api/v2/write?{urlencode(found)}"
    found = {"db": settings.database, "precision": "nanosecond", "accept_partial": "true"}
    return f"/api/v3/write_lp?{urlencode(found)}"


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ConfigError(f"url: {error}") from None
    if "@" in url:
        raise ConfigError("url: contains a user", hint="use `user` and `password`, or `token`")
    if not known:
        raise ConfigError("url: expected http://HOST:PORT or https://HOST:PORT")
    if parts.query or parts.fragment:
        raise ConfigError("url: contains ? or #, but must end after the path")


def _check_names(key: str, templates: Mapping[str, Any]) -> None:
    for name, text in templates.items():
        if not isinstance(text, str):
            raise ConfigError(f"{key}.{name}: expected a template, found {text!r}")
        found = mistake(name, "name")
        if found:
            raise ConfigError(f"{key}: {name!r}: {found}")
        if name == "time":
            raise ConfigError(f"{key}.time: the name belongs to the timestamp", hint="use timestamp")  # fmt: skip


def _tls_context(settings: InfluxDbSettings) -> ssl.SSLContext | None:
    return client_context(settings.tls) if settings.tls is not None else None


def _type_of(value: str) -> str:
    if value.startswith('"'):
        return "string"
    if value in ("true", "false"):
        return "boolean"
    return "integer" if value.endswith("i") else "float"


def _reason(text: str) -> str:
    """Return the error message of a response as one line."""
    found: Any = text
    with suppress(ValueError):
        found = json.loads(text)
    if isinstance(found, dict):
        found = _message(found)
    words = " ".join(str(found).split())
    words = re.sub(r"^partial write: | dropped=\d+$", "", words)
    return words if len(words) <= 300 else f"{words[:299]}…"


def _message(answer: dict[str, Any]) -> Any:
    """Return the error message in a JSON response: `error` in version 1, `message` in version 2, and a list in
    version 3."""
    lines = answer.get("data")
    if isinstance(lines, list) and lines and isinstance(lines[0], dict):
        return lines[0].get("error_message") or answer.get("error")
    return answer.get("error") or answer.get("message") or ""


def _refusal(status: int, text: str) -> TargetUnavailable:
    """Return the error for a response that does not concern individual points."""
    permanent = bool(_OPERATOR.search(text)) or (300 <= status < 500 and status not in (408, 425, 429))  # fmt: skip
    reason = _reason(text)
    return TargetUnavailable(f"status {status}: {reason}" if reason else f"status {status}", permanent)  # fmt: skip


def _unavailable(error: BaseException) -> TargetUnavailable:
    import aiohttp

    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return TargetUnavailable(f"certificate: {error.certificate_error}", True)
    found: Any = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(found, OSError) and found.errno and found.strerror:
        name = f"{found.filename}: " if found.filename else ""
        # asyncio replaces the system's error message with "Connect call failed".
        known = "Connect call failed" not in found.strerror
        words = found.strerror if known else os.strerror(found.errno)
        return TargetUnavailable(f"{name}{words}", isinstance(found, FileNotFoundError))
    text = " ".join(str(error).split())
    if isinstance(error, TimeoutError):
        text = "no answer in time"
    return TargetUnavailable(text or type(error).__name__)
