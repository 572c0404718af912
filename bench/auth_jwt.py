"""``python -m bench.auth_jwt``: measure the cost of checking a token.

The first table measures verification in this process: parsing, signature, claims and permissions, with and without an
``acl`` claim. The second measures a whole broker over loopback, with and without the plugin. Each client has its own
token, sends CONNECT, waits for CONNACK and closes. CPU time covers all the broker's threads. The rate also depends on
the client, which is written in Python and runs on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Connect
from hookmq.plugin import Context
from hookmq_auth_jwt.config import JwtConfig, KeyConfig
from hookmq_auth_jwt.plugin import AuthJwtPlugin

from . import connects, launch

SECRET = "0123456789abcdef" * 4
KEYS: dict[str, Any] = {
    "HS256": SECRET,
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
ACL = {"publish": ["dev/%c/#"], "subscribe": ["dev/%c/#", "all/#"], "deny": ["dev/+/secret"]}


def token(algorithm: str, number: int, acl: bool) -> str:
    """Return a client's signed token."""
    claims: dict[str, Any] = {
        "iss": "https://idp.example/", "aud": "mqtt", "sub": f"client-{number}", "iat": int(time.time()),
        "exp": int(time.time()) + 3600,
    }  # fmt: skip
    if acl:
        claims["acl"] = ACL
    return jwt.encode(claims, KEYS[algorithm], algorithm, {"kid": algorithm})


def config(folder: Path) -> dict[str, Any]:
    """Return a plugin configuration that contains every key."""
    keys: list[dict[str, Any]] = [{"secret": SECRET, "kid": "HS256"}]
    for name in ("RS256", "ES256", "EdDSA"):
        path = folder / f"{name}.pem"
        public = KEYS[name].public_key()
        path.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        keys.append({"pem": str(path), "kid": name})
    return {"keys": keys, "issuer": "https://idp.example/", "audience": "mqtt"}


def verification(folder: Path, count: int) -> None:
    """Measure verification and print the first table."""
    made = config(folder)
    made["keys"] = tuple(KeyConfig(**one) for one in made["keys"])
    verifier = AuthJwtPlugin(JwtConfig(**made), Context("bench")).verifier
    print("verification        us a token   with acl claim")
    for algorithm in KEYS:
        cells = []
        for acl in (False, True):
            data = [token(algorithm, number, acl).encode() for number in range(min(count, 50))]
            best = float("inf")
            for _ in range(3):
                began = time.perf_counter()
                for one in itertools.islice(itertools.cycle(data), count):
                    verifier.verify(one, "c", None, 0.0, time.time())
                best = min(best, (time.perf_counter() - began) / count)
            cells.append(best * 1e6)
        print(f"{algorithm:<18} {cells[0]:>11.1f} {cells[1]:>15.1f}", flush=True)


def connecting(folder: Path, clients: int, parallel: int, seconds: float) -> None:
    """Measure connects to whole brokers and print the second table."""
    print("\nconnecting          a second   broker CPU us each   more than without   refused")
    base = 0.0
    for algorithm in (None, *KEYS):
        packets = [
            encode(
                Connect(
                    f"client-{number}", 4, True, 600, "user",
                    b"secret" if algorithm is None else token(algorithm, number, True).encode(),
                ),
                4,
            )
            for number in range(clients)
        ]  # fmt: skip

        def packet(client: int, number: int, packets: list[bytes] = packets) -> bytes:
            return packets[number % len(packets)]

        settings: dict[str, Any] = {"log": {"level": "error"}, "auth": {"default": "allow"}}
        if algorithm is not None:
            settings["auth"] = {"default": "deny"}
            settings["plugins"] = [{"use": "auth_jwt", "config": config(folder)}]
        with launch.hookmq(folder, **settings) as running:
            found = asyncio.run(connects.load(running, packet, parallel, seconds))
        cost = found.cpu * 1e6
        base = base or cost
        columns = f"{found.rate:>9.0f} {cost:>20.0f} {cost - base:>19.0f} {found.refused:>9}"
        print(f"{algorithm or 'without':<18} {columns}", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--tokens", type=int, default=2000, help="tokens for each row of the first table"
    )
    parser.add_argument("--clients", type=int, default=3000, help="clients, each with a token")
    parser.add_argument("--parallel", type=int, default=32, help="connections at a time")
    parser.add_argument("--seconds", type=float, default=1.0, help="measured time of a row")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        verification(Path(folder), arguments.tokens)
        connecting(Path(folder), arguments.clients, arguments.parallel, arguments.seconds)


if __name__ == "__main__":
    main()
