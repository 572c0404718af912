"""The command `hookmq jwt`: check tokens and keys against a configuration, and sign tokens for tests."""

import argparse
import asyncio
import json
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hookmq.cli_api import plugin_of
from hookmq.config_api import parse_duration
from hookmq.mqtt_api import v3_connack
from hookmq.plugin import ConfigError, HookMQError
from hookmq_toolkit.files import write_secret

from hookmq_auth_jwt.fetch import FetchFailed
from hookmq_auth_jwt.keys import CURVES, HMAC, UnusableKey
from hookmq_auth_jwt.plugin import AuthJwtPlugin
from hookmq_auth_jwt.refusal import Refused
from hookmq_auth_jwt.sources import Source, UrlSource
from hookmq_auth_jwt.token import parse


async def _fetch_all(plugin: AuthJwtPlugin) -> None:
    """Fetch the keys from all URLs. `UrlSource.fails` holds the reason for each failure."""

    async def one(source: UrlSource) -> None:
        try:
            source.put(await source.load(), 0.0)
        except (FetchFailed, UnusableKey) as error:
            source.fails = str(error)

    await asyncio.gather(*(one(s) for s in plugin.sources if isinstance(s, UrlSource)))


def check(arguments: argparse.Namespace) -> int:
    """Explain whether a token is accepted, and why. Never print the token's signature or any keys."""
    plugin = plugin_of(arguments, AuthJwtPlugin, "auth_jwt")
    data = _token(arguments.file, plugin.config.max_size)
    asyncio.run(_fetch_all(plugin))
    for source in plugin.sources:
        if source.fails:
            _say("source", f"{source.label}: {source.fails}")
    try:
        _explain(plugin, data, arguments.client_id, arguments.username)
    except Refused as refused:
        v3 = v3_connack(refused.code)
        _say("refused", f"{refused.why} (0x{refused.code:02X} {refused.code.text}; MQTT 3.x: {v3})")
        return 1
    _say("accepted", "")
    return 0


def _token(path: Path | None, most: int) -> bytes:
    if path is None:
        data = sys.stdin.buffer.read(most + 1024)
    else:
        try:
            with path.open("rb") as file:
                data = file.read(most + 1024)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
    data = data.strip()
    if not data:
        raise ConfigError("no token", hint="pass it on standard input or with --file")
    return data


def _explain(plugin: AuthJwtPlugin, data: bytes, client_id: str, username: str | None) -> None:
    """Print each step of the check. If claims have problems, print them all, and then raise the first Refused."""
    verifier = plugin.verifier
    token = parse(data, plugin.config.max_size)
    _say("header", json.dumps(token.header, ensure_ascii=True))
    _say("claims", json.dumps(token.claims, ensure_ascii=True))
    key = verifier.key_of(token, 0.0)
    _say("key", f"{key.kid or 'without a name'}, {key.kind}, from {key.source}")
    now = time.time()
    found = list(verifier.checker.problems(token.header, token.claims, client_id, username, now))
    for problem in found[1:]:
        _say("also", problem.why)
    if found:
        raise found[0]
    verified = verifier.read(token.claims, client_id, username, key)
    _say("identity", verified.identity)
    groups = verified.claims.get("groups")
    if groups:
        _say("groups", ", ".join(groups))
    if verified.rules is None:
        _say("may do", "decided by other plugins: the token has no permissions")
    for rule in () if verified.rules is None else verified.rules.rules:
        actions = ", ".join(sorted(rule.actions))
        _say(
            "may do",
            f"{'allow' if rule.allow else 'deny'} {actions}: {rule.filter} ({rule.source})",
        )
    if verified.limits is not None:
        _say("limits", str(verified.limits))
    if verified.expires_at is not None:
        _say("expires", f"in {verified.expires_at - now:.0f} s, with leeway")


def _say(what: str, text: str) -> None:
    print(f"{what:<9} {text}".rstrip())


def keys(arguments: argparse.Namespace) -> int:
    """List the keys."""
    plugin = plugin_of(arguments, AuthJwtPlugin, "auth_jwt")
    asyncio.run(_fetch_all(plugin))
    rows: list[dict[str, Any]] = []
    good = True
    for source in plugin.sources:
        found = source.keys(0.0)
        good = good and bool(found) and not source.fails
        rows += [
            _row(source, key.kid, kind=key.kind, algorithms=sorted(key.algorithms)) for key in found
        ]
        rows += [
            _row(source, one.kid or None, problem=f"ignored: {one.why}") for one in source.left
        ]
        if source.fails:
            rows.append(_row(source, None, problem=source.fails))
    if arguments.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            what = row["problem"] or f"{row['kind']}  {','.join(row['algorithms'])}"
            print(f"{row['source']}  {row['kid'] or '-'}  {what}")
    return 0 if good else 1


def _row(
    source: Source,
    kid: str | None,
    kind: str = "",
    algorithms: Sequence[str] = (),
    problem: str = "",
) -> dict[str, Any]:
    return {
        "source": source.label,
        "kid": kid,
        "kind": kind,
        "algorithms": list(algorithms),
        "problem": problem,
    }


def sign(arguments: argparse.Namespace) -> int:
    """Print a token."""
    import jwt

    claims = _claims(arguments)
    path: Path = arguments.secret_file or arguments.key
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    try:
        lifetime = 0.0 if arguments.expires == "0" else parse_duration(arguments.expires)
    except ValueError:
        raise ConfigError(
            f"--expires: {arguments.expires!r} is not a duration such as 1h"
        ) from None
    now = int(time.time())
    claims.setdefault("iat", now)
    if lifetime:
        claims.setdefault("exp", now + int(lifetime))
    algorithm = arguments.algorithm
    if arguments.secret_file is not None:
        material: Any = data[:-1].removesuffix(b"\r") if data.endswith(b"\n") else data
        algorithm = algorithm or "HS256"
        if algorithm not in HMAC:
            raise ConfigError(f"--algorithm: {algorithm} is not for a secret")
    else:
        material, fitting = _private(path, data)
        algorithm = algorithm or fitting
    headers = {"kid": arguments.kid} if arguments.kid else None
    try:
        maker = jwt.PyJWT({"enforce_minimum_key_length": True})
        print(maker.encode(claims, material, algorithm, headers))
    except (jwt.PyJWTError, NotImplementedError, TypeError, ValueError) as error:
        # The library's errors contain types and lengths, never a key.
        raise HookMQError(f"cannot sign: {error}") from None
    return 0


def _private(path: Path, data: bytes) -> tuple[Any, str]:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        material = load_pem_private_key(data, None)
    except Exception:
        raise ConfigError(f"{path}: expected a private key in PEM, without a passphrase") from None
    if isinstance(material, rsa.RSAPrivateKey):
        return material, "RS256"
    if isinstance(material, ec.EllipticCurvePrivateKey):
        return material, CURVES.get(material.curve.name, "ES256")
    return material, "EdDSA"


def _claims(arguments: argparse.Namespace) -> dict[str, Any]:
    claims: dict[str, Any] = {}
    if arguments.claims is not None:
        try:
            found = json.loads(arguments.claims.read_bytes())
        except OSError as error:
            raise ConfigError(f"{arguments.claims}: {error.strerror}") from None
        except ValueError:
            raise ConfigError(f"{arguments.claims}: not valid JSON") from None
        if not isinstance(found, dict):
            raise ConfigError(f"{arguments.claims}: expected a JSON object")
        claims.update(found)
    for text in arguments.claim:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ConfigError(f"--claim: expected NAME=VALUE, found {text!r}")
        try:
            claims[name] = json.loads(value)
        except ValueError:
            claims[name] = value
    return claims


def secret(arguments: argparse.Namespace) -> int:
    """Print a secret, or write it to a new file."""
    made = secrets.token_urlsafe(64)
    if arguments.output is None:
        print(made)
    else:
        write_secret(arguments.output, f"{made}\n")
    return 0
