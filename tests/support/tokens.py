"""Keys, tokens and a JWK Set server for tests."""

import asyncio
import base64
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

SECRET = "0123456789abcdef" * 4


def private(kind: str, number: int = 0) -> Any:
    """Return a private key of a kind such as ``RSA 2048``, ``EC secp256r1``, ``Ed25519`` or ``Ed448``. Each `number`
    produces a different key.
    """
    return _private(kind, number)


@cache
def _private(kind: str, number: int) -> Any:
    name, _, detail = kind.partition(" ")
    if name == "RSA":
        return rsa.generate_private_key(65537, int(detail))
    if name == "EC":
        return ec.generate_private_key(getattr(ec, detail.upper())())
    module: Any = {"Ed25519": ed25519.Ed25519PrivateKey, "Ed448": ed448.Ed448PrivateKey}[name]
    return module.generate()


KINDS = {
    "RS256": "RSA 2048", "RS384": "RSA 2048", "RS512": "RSA 2048", "PS256": "RSA 2048", "PS384": "RSA 2048",
    "PS512": "RSA 2048", "ES256": "EC secp256r1", "ES384": "EC secp384r1", "ES512": "EC secp521r1",
    "ES256K": "EC secp256k1", "EdDSA": "Ed25519", "Ed25519": "Ed25519", "Ed448": "Ed448",
}  # fmt: skip
"""The kind of key that each algorithm uses."""


def pem(kind: str, number: int = 0) -> str:
    """Return the public key in PEM."""
    public = private(kind, number).public_key()
    found: bytes = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found.decode()


def jwk(kind: str, kid: str = "", number: int = 0, **more: Any) -> dict[str, Any]:
    """Return the public key as a JWK."""
    maker: Any = {"R": RSAAlgorithm, "EC": ECAlgorithm}.get(
        kind[0] if kind[0] == "R" else kind[:2], OKPAlgorithm
    )
    found: dict[str, Any] = maker.to_jwk(private(kind, number).public_key(), as_dict=True)
    found.pop("key_ops", None)
    return {**found, **({"kid": kid} if kid else {}), **more}


def jwks(*members: Mapping[str, Any]) -> bytes:
    """Return a JWK Set."""
    return json.dumps({"keys": list(members)}).encode()


def b64(data: bytes) -> str:
    """Encode in Base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(
    claims: Mapping[str, Any] | None = None,
    algorithm: str = "HS256",
    key: Any = None,
    *,
    now: float | None = None,
    number: int = 0,
    header: Mapping[str, Any] | None = None,
    **more: Any,
) -> bytes:
    """Return a token with `claims` and `more`, valid for an hour from `now`.

    `key` defaults to `SECRET`, or to the private key `number` of the algorithm's kind.
    """
    at = time.time() if now is None else now
    given = {"sub": "me", "exp": int(at) + 3600, **(claims or {}), **more}
    given = {name: value for name, value in given.items() if value is not None}
    if key is None:
        key = SECRET if algorithm.startswith("HS") else private(KINDS[algorithm], number)
    used = "EdDSA" if algorithm in ("Ed25519", "Ed448") else algorithm
    headers = {"alg": algorithm, "typ": "JWT", **(header or {})}
    signed = f"{b64(json.dumps(headers).encode())}.{b64(json.dumps(given).encode())}"
    maker = jwt.algorithms.get_default_algorithms()[used]
    signature = maker.sign(signed.encode(), key.encode() if isinstance(key, str) else key)
    return f"{signed}.{b64(signature)}".encode()


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class KeyServer:
    """A server of JWK Sets. It serves `body`, unless `answer` is set. `asked` counts requests."""

    def __init__(self) -> None:
        self.body = jwks()
        self.answer: Answer | None = None
        self.asked = 0
        self.url = ""
        self.released = asyncio.Event()
        """The event that slow answers wait for."""
        self.release: Callable[[], object] = self.released.set
        """Sets `released`. May be called from any thread."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.asked += 1
        if self.answer is not None:
            return await self.answer(request)
        return web.Response(body=self.body, content_type="application/json")

    async def slow(self, request: web.Request) -> web.StreamResponse:
        """Answer the request once `released` is set."""
        await self.released.wait()
        return web.Response(body=self.body)


@asynccontextmanager
async def key_server(ssl_context: Any = None) -> AsyncIterator[KeyServer]:
    """Run a `KeyServer` on a local port."""
    server = KeyServer()
    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=ssl_context)
    await site.start()
    port = runner.addresses[0][1]
    server.url = f"{'https' if ssl_context else 'http'}://127.0.0.1:{port}/jwks.json"
    try:
        yield server
    finally:
        server.released.set()
        await runner.cleanup()


@contextmanager
def key_server_beside() -> Iterator[KeyServer]:
    """Run a `KeyServer` on an event loop in its own thread, for tests that block."""
    loop = asyncio.new_event_loop()
    ready: queue.SimpleQueue[KeyServer] = queue.SimpleQueue()
    ended = asyncio.Event()

    async def serve() -> None:
        async with key_server() as server:
            server.release = lambda: loop.call_soon_threadsafe(server.released.set)
            ready.put(server)
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    try:
        yield ready.get(timeout=60)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        loop.close()
