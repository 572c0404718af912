"""The `s3` driver: JSON lines or Parquet objects in Amazon S3 or a compatible store, each message in one object.

A batch becomes one object, or several if its records belong to different folders. An object's name contains the id of
the sink's log and its first and last offset. After a failure, batches may begin at other offsets. The position is
therefore in a separate object, ``PREFIX_hookmq/SLOT.json``. A batch is written in three steps:

1. The driver adds the plan to this object: the names of the batch's objects, and the position after them.
2. It writes the objects. Each object's metadata contains the id of the attempt.
3. It replaces the plan with the new position.

If `open` finds a plan, a batch was interrupted. If all of the plan's objects exist, the batch is complete, and the
position follows it. Otherwise the next `write` first deletes the objects that exist, and the engine writes the records
again. `open` itself changes nothing.

Readers therefore see each message once, with one exception: an interrupted batch of several objects. Some of its
objects stay visible until the next batch is written. Meanwhile, their messages may also be in objects with other names.

The position object is replaced only if nothing else has replaced it (If-Match). This fends off a second process for the
same sink, and requests that arrive late.
"""

import asyncio
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal
from urllib.parse import quote

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
    TargetUnavailable,
    make_each,
    template_setting,
)
from hookmq_sinks.drivers.rows import JsonLines, Parquet, Rows, Type

OWN: Final = "_hookmq"
"""The folder that holds the positions. Spark and Hive ignore names that begin with an underscore."""
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]|arn:[!-~]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_MAX_KEY: Final = 1024
_PARALLEL: Final = 8
"""The number of objects of a batch that are written at the same time."""
_PASSING: Final = frozenset(
    {"RequestTimeout", "OperationAborted", "SlowDown", "PreconditionFailed"}
)
"""S3 error codes for temporary problems, although their status is below 500."""
_RIGHTS: Final = "the user needs s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"


@dataclass(frozen=True)
class S3Settings:
    """The `s3` driver's settings."""

    bucket: str = field(metadata={"help": "the bucket, which must exist"})
    prefix: str = setting("", "beginning of all names, such as plant/")
    folder: str = template_setting(
        "dt=${time.%Y-%m-%d}/hour=${time.%H}", "folder of an object, below the prefix"
    )
    format: Literal["jsonl", "parquet"] = setting("jsonl", "JSON lines, or Parquet")
    fields: Mapping[str, Any] = template_setting(
        {}, "fields or columns and their templates; default: the payload and all properties"
    )
    types: Mapping[str, Type] = field(
        default_factory=dict,
        metadata={
            "help": "types of Parquet columns: string, long, double, boolean, timestamp or binary; default: string"
        },
    )
    compression: Literal["none", "gzip", "snappy", "zstd"] = setting(
        "gzip", "how objects are compressed; snappy and zstd need Parquet"
    )
    region: str = setting("", "the region; default: from the environment or the profile")
    endpoint: str = setting("", "address of a compatible store: https://HOST:PORT; default: Amazon")
    addressing: Literal["auto", "path", "virtual"] = setting(
        "auto", "where requests name the bucket; auto is path with an endpoint"
    )
    access_key: str = setting(
        "", "access key; default: environment, profile, or the machine's role"
    )
    secret_key: str = setting("", "secret of the access key")
    session_token: str = setting("", "token of temporary credentials")
    profile: str = setting("", "profile in the AWS configuration, instead of an access key")
    encryption: Literal["bucket", "AES256", "aws:kms"] = setting(
        "bucket", "encryption by the server; bucket means the bucket's own setting"
    )
    kms_key: str = setting("", "id of the key, with `encryption: aws:kms`")
    conditional: bool = setting(
        True, "replace the position with If-Match; false for stores that lack conditional writes"
    )
    tls: TlsConfig | None = setting(None, "files for TLS")
    connect_timeout: Seconds = setting(5.0, "longest time for connecting", minimum=0.1, maximum=600)
    request_timeout: Seconds = setting(
        20.0, "longest time without an answer", minimum=0.1, maximum=600
    )

    def __post_init__(self) -> None:
        if not _BUCKET.fullmatch(self.bucket):
            raise ConfigError(f"bucket: {self.bucket!r} is not the name of a bucket")
        if self.prefix.startswith("/") or _CONTROL.search(self.prefix):
            raise ConfigError(f"prefix: {self.prefix!r} cannot begin a name")
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError("endpoint: expected https://HOST:PORT")
        if "@" in self.endpoint:
            raise ConfigError("endpoint: contains a user", hint="use `access_key` and `secret_key`")
        if bool(self.access_key) != bool(self.secret_key):
            raise ConfigError("access_key: needs `secret_key`, and the other way round")
        if self.session_token and not self.access_key:
            raise ConfigError("access_key: required with `session_token`")
        if self.profile and self.access_key:
            raise ConfigError("profile: an access key is set too, but only one can be used")
        if self.kms_key and self.encryption != "aws:kms":
            raise ConfigError("kms_key: needs `encryption: aws:kms`")
        if self.format == "jsonl" and self.compression in ("snappy", "zstd"):
            raise ConfigError(f"compression: {self.compression} needs `format: parquet`")
        if self.types and self.format != "parquet":
            raise ConfigError("types: needs `format: parquet`")
        for name in self.types:
            if name not in self.fields:
                raise ConfigError(f"types: {name} is not one of the fields")


@dataclass(frozen=True)
class _State:
    """The contents of the position object: the position, and the plan of a batch being written."""

    log_id: str
    offset: int | None = None
    next: int = 0
    attempt: str = ""
    keys: tuple[str, ...] = ()

    def dump(self) -> bytes:
        return json.dumps(vars(self)).encode()


class S3Driver(Driver):
    """Writes objects; see the module docstring."""

    Settings: ClassVar[type] = S3Settings
    extra = "s3"
    holds_position = True
    settings: S3Settings

    def __init__(self, settings: S3Settings, context: DriverContext) -> None:
        super().__init__(settings, context)
        self._folder = RecordTemplate(settings.folder, "folder")
        self._rows: Rows = (
            Parquet(settings.fields, settings.types, settings.compression)
            if settings.format == "parquet"
            else JsonLines(settings.fields, settings.compression)
        )
        self._state_key = f"{settings.prefix}{OWN}/{quote(context.slot, safe='')}.json"
        self._state = _State(context.log_id)
        self._etag = ""
        self._undo: _State | None = None
        self._client: Any = None
        self._stack = AsyncExitStack()

    async def open(self) -> Position | None:
        """Read the position. If a batch was interrupted, find out whether it is complete."""
        from aiobotocore.session import AioSession  # type: ignore[import-untyped]

        if self.settings.format == "parquet":
            import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: F401  # if it is missing, say so now
        try:
            if self.settings.tls is not None:
                client_context(self.settings.tls)  # botocore does not name the file
            session = AioSession(profile=self.settings.profile or None)
            self._client = await self._stack.enter_async_context(
                session.create_client("s3", **self._arguments())
            )
            return await self._read_position()
        except TargetUnavailable:
            raise
        except Exception as error:
            raise _unavailable(error) from error

    async def check(self, sample: Record | None) -> Sequence[Problem]:
        """Return a problem if the sample has no folder or cannot become a row. `open` has already checked the bucket."""
        if sample is not None:
            try:
                self._key_of(sample)
            except RecordError as error:
                return [Problem("folder", str(error))]
            try:
                self._rows.row(sample)
            except RecordError as error:
                return [Problem("fields", str(error))]
        return ()

    async def write(self, batch: Batch) -> None:
        """Write the batch's objects, and then the position."""
        made = make_each(batch, lambda one: (self._key_of(one), one.offset, self._rows.row(one)))
        folders: dict[str, list[tuple[int, Any]]] = {}
        for folder, offset, row in made:
            folders.setdefault(folder, []).append((offset, row))
        objects = {
            self._name(folder, rows[0][0], rows[-1][0]): [row for _, row in rows]
            for folder, rows in folders.items()
        }
        position, held = batch.position, self._state.offset
        try:
            if self._undo is not None:
                await self._delete(self._undo)
                self._undo = None
            if objects:
                attempt = uuid.uuid4().hex
                await self._save(
                    _State(position.log_id, held, position.offset, attempt, tuple(objects))
                )
                await self._put_all(objects, attempt)
            await self._save(_State(position.log_id, position.offset))
        except TargetUnavailable:
            raise
        except Exception as error:
            raise _unavailable(error) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._stack.aclose()

    # names -----------------------------------------------------------------------------------------------------------

    def _key_of(self, record: Record) -> str:
        """Return a record's folder, including the prefix. Raises RecordError."""
        folder = self._folder.fill(record).strip("/")
        steps = folder.split("/")
        if _CONTROL.search(folder) or "." in steps or ".." in steps or (folder and "" in steps):
            raise RecordError(f"not a folder: {folder[:200]!r}")
        if steps[0] == OWN:
            raise RecordError(f"the folder {OWN} is the driver's own")
        key = f"{self.settings.prefix}{folder}/" if folder else self.settings.prefix
        if len(key.encode()) > _MAX_KEY - 120:
            raise RecordError(f"the folder is too long: {folder[:60]!r}…")
        return key

    def _name(self, folder: str, first: int, last: int) -> str:
        return f"{folder}{self.context.log_id}-{first:020d}-{last:020d}{self._rows.suffix}"

    # the position ----------------------------------------------------------------------------------------------------

    async def _read_position(self) -> Position | None:
        found = await self._read_state()
        if found is None or found.log_id != self.context.log_id:
            return None
        if found.keys:
            there = await self._each(found.keys, lambda key: self._is_of(key, found.attempt))
            if all(there):
                found = _State(found.log_id, found.next)
            else:
                self._undo, found = found, _State(found.log_id, found.offset)
        self._state = found
        return None if found.offset is None else Position(found.log_id, found.offset)

    async def _read_state(self) -> _State | None:
        from botocore.exceptions import ClientError  # type: ignore[import-untyped]

        try:
            answer = await self._client.get_object(Bucket=self.settings.bucket, Key=self._state_key)
            async with answer["Body"] as body:
                data = await body.read()
        except ClientError as error:
            if _code(error) == "NoSuchKey":
                return None
            raise
        self._etag = answer["ETag"]
        try:
            values = json.loads(data)
            return _State(**{**values, "keys": tuple(values["keys"])})
        except (ValueError, TypeError, KeyError):
            where = f"s3://{self.settings.bucket}/{self._state_key}"
            raise TargetUnavailable(f"{where} is damaged", True) from None

    async def _delete(self, plan: _State) -> None:
        """Delete the objects that an attempt has written."""

        async def delete(key: str) -> None:
            if await self._is_of(key, plan.attempt):
                await self._client.delete_object(Bucket=self.settings.bucket, Key=key)

        await self._each(plan.keys, delete)

    async def _is_of(self, key: str, attempt: str) -> bool:
        from botocore.exceptions import ClientError

        try:
            found = await self._client.head_object(Bucket=self.settings.bucket, Key=key)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404:
                return False
            raise
        return bool(found["Metadata"].get("hookmq-attempt") == attempt)

    async def _save(self, state: _State) -> None:
        """Replace the position object, unless another process has replaced it."""
        condition = {"IfMatch": self._etag} if self._etag else {"IfNoneMatch": "*"}
        answer = await self._client.put_object(
            Bucket=self.settings.bucket, Key=self._state_key, Body=state.dump(),
            ContentType="application/json", **(condition if self.settings.conditional else {}),
            **self._encryption(),
        )  # fmt: skip
        self._etag, self._state = answer["ETag"], state

    # objects ---------------------------------------------------------------------------------------------------------

    async def _put_all(self, objects: Mapping[str, list[Any]], attempt: str) -> None:
        async def put(key: str) -> None:
            data = await asyncio.to_thread(self._rows.file, objects[key])
            await self._client.put_object(
                Bucket=self.settings.bucket, Key=key, Body=data,
                ContentType=self._rows.content_type, Metadata={"hookmq-attempt": attempt},
                **self._encryption(),
            )  # fmt: skip

        await self._each(tuple(objects), put)

    async def _each(self, keys: Sequence[str], work: Any) -> list[Any]:
        """Call `work` for each key, several at a time. If one call fails, cancel the others and raise its error."""
        places = asyncio.Semaphore(_PARALLEL)

        async def one(key: str) -> Any:
            async with places:
                return await work(key)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(key)) for key in keys]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    def _encryption(self) -> dict[str, str]:
        if self.settings.encryption == "bucket":
            return {}
        found: dict[str, str] = {"ServerSideEncryption": self.settings.encryption}
        if self.settings.kms_key:
            found["SSEKMSKeyId"] = self.settings.kms_key
        return found

    # connecting ------------------------------------------------------------------------------------------------------

    def _arguments(self) -> dict[str, Any]:
        from aiobotocore.config import AioConfig  # type: ignore[import-untyped]

        settings = self.settings
        style = settings.addressing
        if style == "auto" and settings.endpoint:
            style = "path"
        more: dict[str, Any] = {}
        if settings.endpoint:
            # Compatible stores often lack the newer checksums of Amazon.
            more = {
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
            }
        if settings.tls is not None and settings.tls.cert_file is not None:
            cert, key = str(settings.tls.cert_file), settings.tls.key_file
            more["client_cert"] = cert if key is None else (cert, str(key))
        found: dict[str, Any] = {
            "config": AioConfig(
                connect_timeout=settings.connect_timeout, read_timeout=settings.request_timeout,
                retries={"total_max_attempts": 1}, s3={"addressing_style": style},
                signature_version="s3v4", max_pool_connections=_PARALLEL, **more,
            )
        }  # fmt: skip
        given = {
            "endpoint_url": settings.endpoint,
            "region_name": settings.region or (settings.endpoint and "us-east-1"),
            "aws_access_key_id": settings.access_key,
            "aws_secret_access_key": settings.secret_key,
            "aws_session_token": settings.session_token,
            "verify": settings.tls and settings.tls.ca_file and str(settings.tls.ca_file),
        }
        return found | {name: value for name, value in given.items() if value}


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _unavailable(error: Exception) -> TargetUnavailable:
    from botocore import exceptions as known  # type: ignore[import-untyped]

    if isinstance(error, known.ClientError):
        code = _code(error)
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code == "PreconditionFailed":
            return TargetUnavailable("another process has written the position of this sink")
        text = error.response.get("Error", {}).get("Message", "")
        if code in ("AccessDenied", "403"):
            text = f"{text.rstrip('.')}; {_RIGHTS}"
        if code == "NotImplemented":
            return TargetUnavailable(f"{code}: {text}; try `conditional: false`", True)
        permanent = 300 <= status < 500 and status not in (408, 409, 429) and code not in _PASSING
        return TargetUnavailable(f"{code}: {text}", permanent)
    word = _WORDS.get(type(error).__name__)
    if word or isinstance(error, known.HTTPClientError | known.ConnectionError):
        # Its text contains the address with the name of an object.
        return TargetUnavailable(word or type(error).__name__)
    if isinstance(error, known.BotoCoreError | ValueError):
        return TargetUnavailable(str(error), True)
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        reason = f"{name}{error.strerror or error or type(error).__name__}"
        return TargetUnavailable(reason, isinstance(error, FileNotFoundError))
    raise error


_WORDS: Final = {
    "EndpointConnectionError": "cannot connect to the store",
    "ConnectTimeoutError": "no connection within connect_timeout",
    "ReadTimeoutError": "no answer within request_timeout",
    "ConnectionClosedError": "the connection ended",
    "SSLError": "the certificate of the store is not valid for it",
}

__all__ = ["S3Driver", "S3Settings"]
