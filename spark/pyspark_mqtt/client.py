"""An HTTP client for the read API: a log's contents, the blocks of a range of offsets, and a consumer's progress.

Calls survive a restart of the broker. A call is retried up to ``fetchOffset.numRetries`` times in a row without
progress. If a range is cut off, reading continues at the same place.
"""

import http.client
import json
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from pyspark_mqtt.blocks import VERSION, Block, split
from pyspark_mqtt.errors import DataLossError, MqttError, UnreachableError
from pyspark_mqtt.offsets import Log, Offsets, Range, assigned
from pyspark_mqtt.options import Options, secret

log = logging.getLogger("pyspark_mqtt")
T = TypeVar("T")
_BROKEN = (OSError, http.client.HTTPException)


class Client:
    """A client for one stream. It opens its only connection on demand. The connection is not pickled."""

    def __init__(self, options: Options, wait: Callable[[float], None] = time.sleep) -> None:
        self.options = options
        self.stream = options.text("stream")
        self.retries = options.number("fetchOffset.numRetries")
        self._url = options.url("url")
        self._wait = wait
        self._connection: http.client.HTTPConnection | None = None

    @property
    def address(self) -> str:
        """Return the server's address for use in messages."""
        return f"{self._url.scheme}://{self._url.netloc}"

    # Requests

    def log(self) -> Log:
        """Return the current contents of the stream's log."""
        return self._log(self._insist(lambda: self._json("offsets")))

    def at_time(self, milliseconds: int) -> tuple[Log, dict[int, int | None]]:
        """Return the log's contents and, for each partition, the first offset at or after the given time, or None."""
        answer = self._insist(lambda: self._json("offsets", timestamp=milliseconds))
        log_now = self._log(answer)
        return log_now, {p: answer["partitions"][str(p)]["at"] for p in log_now.latest}

    def commit(self, consumer: str, offsets: Offsets) -> None:
        """Report a consumer's progress. The report is not retried, because it affects only the consumer's lag and
        retention.
        """
        body = {"log_id": offsets.log_id, "offsets": {str(p): o for p, o in offsets.next.items()}}
        with self._ask(f"consumers/{quote(consumer)}/commit", {}, json.dumps(body)) as response:
            response.read()

    def report(self, consumer: str, query: str, batch: int, dead_letters: int) -> None:
        """Report the dead letters of a query's batch. The broker ignores a batch that it already knows. The report is
        not retried.
        """
        body = {"query": query, "batch": batch, "dead_letters": dead_letters}
        with self._ask(f"consumers/{quote(consumer)}/report", {}, json.dumps(body)) as response:
            response.read()

    def blocks(
        self, wanted: Range, log_id: str, columns: Sequence[str], topics: Sequence[str]
    ) -> Iterator[tuple[Block, int]]:
        """Yield the blocks that cover a range, in order and without gaps. Each block is paired with the offset of its
        first new row.

        A response's first block may begin before that offset, and its last block may end after the range. Raises
        DataLossError if the log no longer has the records. If ``failOnDataLoss`` is false, they are skipped instead.
        """
        position, failures = wanted.start, 0
        while position < wanted.end:
            try:
                query = {
                    "partition": wanted.partition,
                    "start": position,
                    "end": wanted.end,
                    "log_id": log_id,
                    "columns": ",".join(columns),
                    "max_bytes": self.options.number("fetch.maxBytes"),
                    "topics": list(topics),
                }
                with self._ask("records", query) as response:
                    before = position
                    for block in split(partial(self._fill, response)):
                        if block.partition != wanted.partition or not (
                            block.base <= position < block.end
                        ):
                            raise UnreachableError(
                                f"Asked for offset {position} of partition {wanted.partition} and was given "
                                f"{block.base} to {block.end - 1} of partition {block.partition}."
                            )
                        first, position, failures = position, block.end, 0
                        yield block, first
                    if position == before:
                        raise UnreachableError("The answer held no block.")
            except UnreachableError as error:
                self.close()
                failures += 1
                self._again(error, failures)
            except DataLossError as error:
                if self.options.flag("failOnDataLoss"):
                    raise
                log.warning("%s", error)
                if error.earliest is None or not position < error.earliest < wanted.end:
                    return
                position = error.earliest

    # Connection

    def _log(self, answer: Mapping[str, Any]) -> Log:
        partitions = {int(p): one for p, one in answer["partitions"].items()}
        whole = Log(
            self.stream,
            answer["log_id"],
            {p: int(partitions[p]["earliest"]) for p in sorted(partitions)},
            {p: int(partitions[p]["latest"]) for p in sorted(partitions)},
        )
        wanted = self.options.assigned
        return whole if wanted is None else assigned(whole, wanted)

    def _insist(self, attempt: Callable[[], T]) -> T:
        failures = 0
        while True:
            try:
                return attempt()
            except UnreachableError as error:
                self.close()
                failures += 1
                self._again(error, failures)

    def _again(self, error: UnreachableError, failures: int) -> None:
        """Wait before the next attempt, or raise ``error`` after too many failures."""
        seconds = self.options.number("fetchOffset.retryIntervalMs") / 1000
        if failures > self.retries:
            raise MqttError(
                f"No answer from {self.address}, tried {failures} times: {error} Is the broker running, is `url` "
                "the address of its read API, and is that open to this machine? "
                "(fetchOffset.numRetries and fetchOffset.retryIntervalMs say how long to wait for it.)"
            ) from None
        if failures == 1:
            log.warning(
                "%s: %s Trying again every %g s, %d times.",
                self.address,
                error,
                seconds,
                self.retries,
            )
        self._wait(seconds)

    def _json(self, path: str, **query: int) -> Any:
        with self._ask(path, query) as response:
            text = self._read(response, None)
        try:
            return json.loads(text)
        except ValueError:
            raise self._not_ours(f"begins {text[:20]!r}") from None

    def _read(self, response: http.client.HTTPResponse, size: int | None) -> bytes:
        try:
            return response.read(size)
        except _BROKEN as error:
            raise UnreachableError(f"The connection broke: {_said(error)}.") from None

    def _fill(self, response: http.client.HTTPResponse, view: memoryview) -> int:
        """Fill ``view`` with the next bytes of a response and return their number. It is smaller than ``view`` only at
        the end.
        """
        done = 0
        try:
            while done < len(view) and (count := response.readinto(view[done:])):
                done += count
        except _BROKEN as error:
            raise UnreachableError(f"The connection broke: {_said(error)}.") from None
        return done

    def _ask(
        self, path: str, query: Mapping[str, object], body: str | None = None
    ) -> http.client.HTTPResponse:
        """Return a response with status 200. Raises UnreachableError if another attempt may succeed."""
        target = f"{self._url.path.rstrip('/')}/v1/streams/{quote(self.stream)}/{path}"
        if query:
            target += "?" + urlencode(query, doseq=True)
        headers = {"Accept": "*/*", "HookMQ-Block-Version": str(VERSION)}
        if token := secret(self.options, "token"):
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            response = self._send("GET" if body is None else "POST", target, body, headers)
        except ssl.SSLCertVerificationError as error:
            raise MqttError(
                f"The certificate of {self.address} is not trusted ({error.verify_message}): give its authority "
                "with caFile, on every node."
            ) from None
        except http.client.BadStatusLine as error:
            if isinstance(error, http.client.RemoteDisconnected):
                hint = ""
                if self._url.scheme == "http":
                    hint = " (if it speaks TLS, give `url` with https://)"
                elif self.options.text("certFile"):
                    hint = " (it may not know the authority of certFile)"
                raise UnreachableError(f"It closed the connection{hint}.") from None
            raise self._not_ours(f"begins {str(error)[:20]!r}") from None
        except ValueError:  # The error's text contains the token.
            raise MqttError(
                "The token cannot be sent: it must be one line of letters, digits and signs of ASCII."
            ) from None
        except ssl.SSLError as error:
            if "WRONG_VERSION_NUMBER" not in str(error):
                raise UnreachableError(f"{_said(error)}.") from None
            raise MqttError(
                f"{self.address} does not speak TLS: give `url` with http://."
            ) from None
        except _BROKEN as error:
            raise UnreachableError(f"{_said(error)}.") from None
        if response.status == 200:
            return response
        with response:
            text = self._read(response, None)
        raise self._refusal(response.status, text)

    def _send(
        self, method: str, target: str, body: str | None, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        kept = self._connection is not None
        try:
            connection = self._connected()
            connection.request(method, target, body, headers)
            return connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionError, http.client.CannotSendRequest):
            self.close()
            if not kept:
                raise
        # The server may have closed a connection that was idle since the last call.
        return self._send(method, target, body, headers)

    def _refusal(self, status: int, text: bytes) -> MqttError:
        try:
            facts = json.loads(text)
            message = str(facts["message"])
        except (ValueError, KeyError, TypeError):
            if status in (502, 503, 504):
                return UnreachableError(f"It answered {status}.")
            return self._not_ours(f"has status {status} and begins {text[:20]!r}")
        stream = f"Stream {self.stream} at {self.address}"
        if status == 401:
            known = "knows no such token"
            if not self.options.text("token") and not self.options.text("tokenFile"):
                given = bool(self.options.text("certFile"))
                known = "knows nobody of the certificate's name" if given else "wants a token"
            return MqttError(
                f"{self.address} {known}: give a token of the broker's configuration with `token` or `tokenFile`."
            )
        if status == 403:
            return MqttError(f"{stream}: the token does not open it; ask for one that does.")
        if status == 404:
            return MqttError(
                f"{stream}: {message} (`stream` names it, GET /v1/streams lists them)."
            )
        if status == 409:
            return DataLossError(
                f"{stream} is another log now, {facts.get('log_id')}: it was deleted and created anew. To go on "
                "without what is lost, set failOnDataLoss=false; to begin anew, use a new checkpointLocation."
            )
        if status == 410:
            return DataLossError(
                f"{stream} has lost offsets {facts.get('start')} to {facts.get('earliest', 0) - 1} of partition "
                f"{facts.get('partition')} to its retention: keep messages for longer, or set "
                "failOnDataLoss=false to go on with what is left.",
                facts.get("earliest"),
            )
        if status == 416:
            return DataLossError(
                f"{stream} ends at offset {facts.get('latest')} of partition {facts.get('partition')}, before "
                f"{facts.get('end')}: the log is older than what was read of it, restored from a backup "
                "perhaps. Begin anew with a new checkpointLocation, or set failOnDataLoss=false.",
                facts.get("earliest"),
            )
        if status in (408, 429, 502, 503, 504):
            return UnreachableError(f"It answered {status}: {message}.")
        return MqttError(f"{stream} answered {status}: {message}")

    def _not_ours(self, why: str) -> MqttError:
        return MqttError(
            f"{self.address} is not the read API of a broker (its answer {why}): `url` is the address that "
            "`api.bind` of spark_sink says, not that of MQTT."
        )

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            host, seconds = self._url.hostname or "", self.options.number("fetch.timeoutMs") / 1000
            if self._url.scheme == "https":
                self._connection = http.client.HTTPSConnection(
                    host, self._url.port, timeout=seconds, context=tls(self.options)
                )
            else:
                self._connection = http.client.HTTPConnection(host, self._url.port, timeout=seconds)
        return self._connection

    def close(self) -> None:
        """Close the connection. The next call opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_connection": None}


def tls(options: Options) -> ssl.SSLContext:
    """Return the TLS context for ``caFile``, ``certFile`` and ``keyFile``. Raises MqttError if one of these files
    cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=options.text("caFile") or None)
        if options.text("certFile"):
            context.load_cert_chain(options.text("certFile"), options.text("keyFile"))
    except OSError as error:
        raise MqttError(
            f"TLS: caFile, certFile or keyFile cannot be used ({error}); they must be PEM files on every node."
        ) from None
    return context


def _said(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return "The host's name is not known"
    if isinstance(error, TimeoutError):
        return "It took longer than fetch.timeoutMs"
    if isinstance(error, http.client.IncompleteRead):
        return "the answer was cut"
    return (
        error.strerror
        if isinstance(error, OSError) and error.strerror
        else str(error) or repr(error)
    )
