"""The HTTP read API, as specified in PROTOCOL.md. It runs in the reader process."""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final

from aiohttp import web
from hookmq.plugin import StoreError

from hookmq_spark_sink import parameters
from hookmq_spark_sink.config import ANY
from hookmq_spark_sink.files import Consumer
from hookmq_spark_sink.queue_reading import QueueReader
from hookmq_spark_sink.reading import (
    NotServed,
    Reader,
    Removed,
    StreamReader,
    Unavailable,
    View,
    Wanted,
)
from hookmq_spark_sink.refusal import Refusal

BLOCKS: Final = "application/vnd.hookmq.blocks"
MAX_BODY: Final = 65536
_CHUNK: Final = 1 << 20
_LONG: Final = 2.0
_MAX_CONSUMERS: Final = 1000
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Served:
    """A stream and its reader. `queue` is the name of the queue that the stream serves, or empty."""

    def __init__(self, given: dict[str, Any], boot: bytes) -> None:
        self.name: str = given["name"]
        self.queue: str = given.get("queue", "")
        self.partitions: int = given["partitions"]
        self.declared: frozenset[str] = frozenset(given["consumers"])
        folder = Path(given["folder"])
        self.reader: Reader
        if self.queue:
            self.reader = QueueReader(folder, boot)
        else:
            self.reader = StreamReader(folder, boot, given["filters"])
        self.lock = asyncio.Lock()

    def not_served(self, why: str) -> Refusal:
        """Return the error for a stream whose queue cannot be read."""
        message = f"the stream {self.name} serves the queue {self.queue}: {why}"
        return Refusal(404, "no_such_stream", message, stream=self.name, queue=self.queue)


class Counts:
    """Counters for the broker's metrics."""

    def __init__(self) -> None:
        self.requests = 0
        self.refused = 0
        self.reads = 0
        self.failed = 0
        self.bytes = 0


class Api:
    """The HTTP application. `given` contains the settings that the broker sent (`hookmq_spark_sink.process`)."""

    def __init__(self, given: dict[str, Any]) -> None:
        boot = bytes.fromhex(given["boot"])
        self.counts = Counts()
        self._streams = {one["name"]: Served(one, boot) for one in given["streams"]}
        self._access: list[dict[str, Any]] = given["access"]
        self._max_response: int = given["max_response"]
        self._max_requests: int = given["max_requests"]
        self._timeout: float = given["timeout"]
        self._reading = 0
        self._pool = ThreadPoolExecutor(4, "reader")

    def application(self) -> web.Application:
        """Return the aiohttp application with its routes."""
        made = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY)
        get, stream = made.router.add_get, "/v1/streams/{stream}"
        get("/v1/health", self._health, allow_head=False)
        get("/v1/streams", self._list, allow_head=False)
        get(stream + "/offsets", self._offsets, allow_head=False)
        get(stream + "/records", self._records, allow_head=False)
        get(stream + "/consumers", self._consumers, allow_head=False)
        get(stream + "/consumers/{consumer}", self._consumer, allow_head=False)
        made.router.add_delete(stream + "/consumers/{consumer}", self._delete)
        made.router.add_post(stream + "/consumers/{consumer}/commit", self._commit)
        made.router.add_post(stream + "/consumers/{consumer}/report", self._report)
        return made

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.counts.requests += 1
        try:
            return await handler(request)
        except Refusal as refusal:
            self.counts.refused += 1
            return refusal.response()
        except Unavailable:
            return Refusal(503, "unavailable", "the broker is starting or stopping").response()
        except web.HTTPRequestEntityTooLarge:
            return Refusal(413, "too_large", f"a body has at most {MAX_BODY} bytes").response()
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            found = Refusal(405, "method_not_allowed", f"use {allowed}").response()
            found.headers["Allow"] = allowed
            return found
        except web.HTTPNotFound:
            return Refusal(404, "not_found", "no such path").response()
        except (StoreError, OSError) as error:
            return Refusal(500, "damaged", str(error)).response()

    # permissions -----------------------------------------------------------------------------------------------------

    def _who(self, request: web.Request) -> dict[str, Any]:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "replace") if scheme.lower() == "bearer" else b""
        found: dict[str, Any] | None = None
        for one in self._access:
            # Compare every token, so that the response time does not reveal which one matches.
            if one["token"] and hmac.compare_digest(one["token"].encode(), given):
                found = one
        if found is None:
            name = _common_name(request)
            found = next((one for one in self._access if name and one["common_name"] == name), None)
        if found is None:
            raise Refusal(401, "unauthorized", "send a token: Authorization: Bearer TOKEN")
        return found

    def _stream(self, request: web.Request, commit: bool = False) -> Served:
        who = self._who(request)
        name = request.match_info["stream"]
        if ANY not in who["streams"] and name not in who["streams"]:
            raise Refusal(403, "forbidden", f"not allowed to read {name}", stream=name)
        if name not in self._streams:
            raise Refusal(404, "no_such_stream", f"no stream {name}", stream=name)
        if commit and not who["commit"]:
            raise Refusal(403, "forbidden", f"not allowed to commit in {name}", stream=name)
        return self._streams[name]

    async def _run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)

    async def _refreshed(self, stream: Served) -> View:
        async with stream.lock:
            return await self._view(stream)

    async def _view(self, stream: Served) -> View:
        """Return the readable part of a stream. The caller must hold the stream's lock."""
        try:
            view: View = await self._run(stream.reader.refresh)
        except NotServed as error:
            raise stream.not_served(str(error)) from None
        return view

    async def _with_consumers(self, stream: Served) -> tuple[View, dict[str, Consumer]]:
        async with stream.lock:
            view = await self._view(stream)
            return view, await self._run(stream.reader.consumers)

    async def let_go(self) -> None:
        """Close the deleted files of all streams. Call this regularly, because otherwise they stay open while there
        are no requests.
        """
        for stream in self._streams.values():
            with suppress(
                StoreError, OSError, Unavailable, NotServed
            ):  # the next request reports it
                async with stream.lock:
                    await self._run(stream.reader.let_go)

    # requests ---------------------------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _list(self, request: web.Request) -> web.Response:
        who = self._who(request)
        parameters.known(request)
        found = []
        for name, stream in self._streams.items():
            if ANY in who["streams"] or name in who["streams"]:
                found.append(await self._described(stream))
        return web.json_response({"streams": found})

    async def _described(self, stream: Served) -> dict[str, Any]:
        described: dict[str, Any] = {"name": stream.name, "partitions": stream.partitions}
        if stream.queue:
            described["queue"] = stream.queue
        try:
            view = await self._refreshed(stream)
        except Refusal as refusal:
            return described | {"log_id": None, "filters": [], "missing": refusal.body["message"]}
        return described | {"log_id": view.log_id, "filters": list(view.filters)}

    async def _offsets(self, request: web.Request) -> web.Response:
        stream = self._stream(request)
        query = parameters.known(request, "timestamp")
        timestamp = parameters.number(query, "timestamp")
        state = await self._refreshed(stream)
        partitions: dict[str, dict[str, int | None]] = {
            str(place): {"earliest": earliest, "latest": latest}
            for place, (earliest, latest) in enumerate(
                zip(state.earliest, state.latest, strict=True)
            )
        }
        if timestamp is not None:
            at = await self._run(state.at, min(timestamp * 1000, parameters.MAX_NUMBER))
            for place, offset in enumerate(at):
                partitions[str(place)]["at"] = offset
        return web.json_response(
            {"stream": stream.name, "log_id": state.log_id, "partitions": partitions}
        )

    async def _records(self, request: web.Request) -> web.StreamResponse:
        stream = self._stream(request)
        query = parameters.known(
            request, "partition", "start", "end", "topics", "columns", "max_bytes", "log_id"
        )
        partition, start = parameters.needed(query, "partition"), parameters.needed(query, "start")
        end, max_bytes = parameters.number(query, "end"), parameters.number(query, "max_bytes")
        columns, match = (
            parameters.columns(query.get("columns")),
            parameters.match(query.get("topics")),
        )
        if partition >= stream.partitions:
            raise Refusal(
                404, "no_such_partition", f"{stream.name} has {stream.partitions} partitions",
                stream=stream.name, partitions=stream.partitions,
            )  # fmt: skip
        state = await self._refreshed(stream)
        log_id = state.log_id
        _same_log(query.get("log_id", [None])[0], stream, state)
        earliest, latest = state.earliest[partition], state.latest[partition]
        end = latest if end is None else end
        facts = {
            "log_id": log_id, "partition": partition, "start": start, "end": end, "earliest": earliest, "latest": latest,
        }  # fmt: skip
        if start > latest or end > latest:
            raise Refusal(416, "beyond_latest", f"offsets end at {latest}", **facts)
        if end < start:
            raise Refusal(400, "bad_request", "end is below start", parameter="end")
        if start < earliest:
            del facts["end"]
            raise Refusal(410, "trimmed", f"offsets begin at {earliest}", **facts)
        if self._reading >= self._max_requests:
            raise Refusal(503, "unavailable", f"{self._reading} requests are already being served")
        self._reading += 1
        try:
            wanted = Wanted(partition, start, end, columns, match, parameters.newest(request))
            most = min(self._max_response, max_bytes if max_bytes else self._max_response)
            headers = {
                "Content-Type": BLOCKS, "HookMQ-Log-Id": log_id, "HookMQ-Partition": str(partition),
                "HookMQ-Earliest": str(earliest), "HookMQ-Latest": str(latest),
            }  # fmt: skip
            blocks = state.blocks(wanted, most)
            return await self._send(request, blocks, headers)
        except Removed as removed:
            del facts["end"]
            facts["earliest"] = removed.earliest
            raise Refusal(410, "trimmed", str(removed), **facts) from None
        finally:
            self._reading -= 1

    async def _send(
        self, request: web.Request, blocks: Iterator[bytes], headers: dict[str, str]
    ) -> web.StreamResponse:
        chunk = await self._run(
            _chunk, blocks
        )  # read before sending status 200, because the first read may fail
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        self.counts.reads += 1
        try:
            while chunk:
                async with asyncio.timeout(self._timeout):
                    await response.write(chunk)
                self.counts.bytes += len(chunk)
                chunk = await self._run(_chunk, blocks)
        except (StoreError, OSError, TimeoutError, Removed) as error:
            # The end of the response is missing, so the client can tell that the response is incomplete.
            if request.transport is not None:
                request.transport.abort()
            if not isinstance(error, TimeoutError):
                self.counts.failed += 1
            return response
        await response.write_eof()
        return response

    async def _consumers(self, request: web.Request) -> web.Response:
        stream = self._stream(request)
        parameters.known(request)
        view, known = await self._with_consumers(stream)
        found = {
            name: {
                "declared": name in stream.declared,
                "updated": one.updated or None,
                "partitions": _lag(view, one.offsets),
                "dead_letters": None if one.reported is None else one.reported.dead_letters,
            }
            for name, one in known.items()
        }
        for name in stream.declared - set(known):
            found[name] = {
                "declared": True,
                "updated": None,
                "partitions": _lag(view, {}),
                "dead_letters": None,
            }
        return web.json_response({"stream": stream.name, "log_id": view.log_id, "consumers": found})

    async def _consumer(self, request: web.Request) -> web.Response:
        stream = self._stream(request)
        parameters.known(request)
        name = parameters.consumer_name(request)
        view, known = await self._with_consumers(stream)
        if name not in known:
            raise Refusal(404, "no_such_consumer", f"{name} has committed nothing", consumer=name)
        return _committed(stream, view, name, known[name].offsets)

    async def _delete(self, request: web.Request) -> web.Response:
        stream = self._stream(request, commit=True)
        parameters.known(request)
        name = parameters.consumer_name(request)
        async with stream.lock:
            await self._view(stream)
            if not await self._run(stream.reader.forget, name):
                raise Refusal(
                    404, "no_such_consumer", f"{name} has committed nothing", consumer=name
                )
        return web.json_response({"deleted": True})

    async def _commit(self, request: web.Request) -> web.Response:
        stream = self._stream(request, commit=True)
        parameters.known(request)
        name = parameters.consumer_name(request)
        log_id, offsets = await parameters.commit_body(request)
        async with stream.lock:
            state = await self._view(stream)
            _same_log(log_id, stream, state)
            for place, offset in offsets.items():
                if place >= stream.partitions:
                    raise Refusal(
                        404, "no_such_partition", f"{stream.name} has {stream.partitions} partitions",
                        stream=stream.name, partitions=stream.partitions,
                    )  # fmt: skip
                earliest, latest = state.earliest[place], state.latest[place]
                facts = {
                    "log_id": state.log_id, "partition": place, "start": offset, "earliest": earliest,
                    "latest": latest,
                }  # fmt: skip
                if offset > latest:
                    raise Refusal(416, "beyond_latest", f"offsets end at {latest}", **facts)
                if offset < earliest:
                    raise Refusal(410, "trimmed", f"offsets begin at {earliest}", **facts)
            await self._has_room(stream, name)
            consumer = await self._run(stream.reader.commit, name, offsets)
        return _committed(stream, state, name, consumer.offsets)

    async def _report(self, request: web.Request) -> web.Response:
        stream = self._stream(request, commit=True)
        parameters.known(request)
        name = parameters.consumer_name(request)
        query, batch, dead_letters = await parameters.report_body(request)
        async with stream.lock:
            await self._view(stream)
            await self._has_room(stream, name)
            consumer = await self._run(stream.reader.report, name, query, batch, dead_letters)
        return web.json_response(
            {
                "stream": stream.name,
                "consumer": name,
                "dead_letters": consumer.reported.dead_letters,
            }
        )

    async def _has_room(self, stream: Served, name: str) -> None:
        """Raise Refusal if the stream already has the maximum number of consumers and `name` would be a new one."""
        known = await self._run(stream.reader.consumers)
        if name not in known and len(known) >= _MAX_CONSUMERS:
            raise Refusal(400, "bad_request", f"there are already {len(known)} consumers")


def _common_name(request: web.Request) -> str:
    """Return the common name of the verified client certificate, or '' if there is no certificate."""
    transport = request.transport
    certificate = transport.get_extra_info("peercert") if transport is not None else None
    for part in (certificate or {}).get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return ""


def _chunk(blocks: Iterator[bytes]) -> bytes:
    """Return about a megabyte of blocks, or b'' at the end. This call blocks.

    It returns after `_LONG` seconds at the latest. The client thus gets some data even while the server is still
    searching for the few records that pass a filter.
    """
    parts: list[bytes] = []
    size = 0
    until = monotonic() + _LONG
    for one in blocks:
        parts.append(one)
        size += len(one)
        if size >= _CHUNK or monotonic() >= until:
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _same_log(given: str | None, stream: Served, view: View) -> None:
    log_id = view.log_id
    if given is not None and given != log_id:
        raise Refusal(
            409, "log_replaced", f"the log of {stream.name} is now {log_id}: its offsets differ",
            log_id=log_id,
        )  # fmt: skip


def _lag(view: View, offsets: dict[int, int]) -> dict[str, dict[str, int]]:
    found = {}
    for place, (earliest, latest) in enumerate(zip(view.earliest, view.latest, strict=True)):
        at = max(offsets.get(place, 0), earliest)
        found[str(place)] = {
            "committed": offsets.get(place, 0),
            "latest": latest,
            "lag": max(0, latest - at),
        }
    return found


def _committed(stream: Served, view: View, name: str, offsets: dict[int, int]) -> web.Response:
    return web.json_response(
        {
            "stream": stream.name,
            "consumer": name,
            "log_id": view.log_id,
            "partitions": _lag(view, offsets),
        }
    )
