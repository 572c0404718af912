"""Test the receivers written in Node.js and Go, and the code on the page about signatures."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import aiomqtt
import httpx
import pytest
from hookmq_webhook.envelope import Envelope, encode
from hookmq_webhook.queues import Numbered
from hookmq_webhook.samples import sample
from hookmq_webhook_receiver import new_private_key, new_secret, public_key, sign
from hookmq_webhook_receiver.keys import key_of, private_key_of
from pages import blocks
from serving import serving
from workspace import ROOT

FOLDER = ROOT / "examples" / "receivers"
PAGE = ROOT / "docs" / "reference" / "webhook-signatures.md"
SECRET = new_secret()
PRIVATE = new_private_key()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("go") / "receiver"
    subprocess.run(["go", "build", "-o", program, "."], cwd=FOLDER / "go_receiver", check=True)
    return program


def command(language: str, request: pytest.FixtureRequest) -> list[str]:
    if shutil.which(language) is None:
        pytest.skip(f"{language} is not installed")
    if language == "node":
        return ["node", str(FOLDER / "node_receiver.mjs")]
    return [str(request.getfixturevalue("built"))]


@pytest.fixture(params=[pytest.param("node"), pytest.param("go", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Start a receiver in another language, and yield its URL."""
    secrets = f"{SECRET} {public_key(PRIVATE)}"
    with subprocess.Popen(
        command(request.param, request),
        env={**os.environ, "HOOK_SECRETS": secrets, "PORT": "0"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip().removeprefix("listening on ")
        process.terminate()


def made(number: int, *secrets: str, age: int = 0) -> tuple[dict[str, str], bytes]:
    headers, body = encode(
        Envelope("urn:x", "e"), [Numbered(number, sample("message.published"), 0)]
    )
    keys = [private_key_of(one) if one.startswith("whsk_") else key_of(one) for one in secrets]
    return headers | sign(f"e-{number}", int(time.time()) - age, body, keys), body


def test_who_is_believed(url: str) -> None:
    def post(headers: dict[str, str], body: bytes) -> int:
        return httpx.post(f"{url}/hook", headers=headers, content=body).status_code

    for number, secret in enumerate((SECRET, PRIVATE)):
        assert post(*made(number, secret)) == 204
        assert post(*made(number, secret)) == 204  # again
    assert post(*made(2, new_secret(), SECRET)) == 204
    headers, body = made(3, SECRET, PRIVATE)
    for wrong in (
        made(3, new_secret()),
        made(3, new_private_key()),
        made(3, SECRET, age=1000),
        made(3, SECRET, age=-1000),
        (headers, body.replace(b"4.2", b"4.3")),
        ({"Content-Type": "application/json"}, body),
        ({**headers, "webhook-signature": ""}, body),
        ({**headers, "webhook-signature": "v1,!!!! v1a,!!!! v1 v1a x"}, body),
        (
            {
                **headers,
                "webhook-signature": headers["webhook-signature"]
                .replace("v1a,", "v1,")
                .partition(" ")[2],
            },
            body,
        ),
        ({**headers, "webhook-id": "e-3.1"}, body),
    ):
        assert post(*wrong) == 401
    other = sign("x", int(time.time()), b'{"no": "event"}', [key_of(SECRET)])
    assert post(other, b'{"no": "event"}') == 400
    assert httpx.get(f"{url}/counts").json() == {"counts": {"hookmq.message.published": 3}}


@pytest.mark.parametrize(
    "secrets", [{"secret": SECRET}, {"private_key": PRIVATE}], ids=["v1", "v1a"]
)
@pytest.mark.slow
async def test_a_broker_tells(url: str, tmp_path: Path, secrets: dict[str, str]) -> None:
    batch = "secret" in secrets
    settings: dict[str, Any] = {
        "url": f"{url}/hook",
        "events": ["message.published"],
        "mode": "best_effort",
        "envelope": "batch" if batch else "structured",
        "batch": {"count": 5 if batch else 1},
        "gzip": 1 if batch else 0,
        "sign": secrets,
        "drain": "60s",
        "process": False,
    }
    document = {
        "version": 1,
        "listeners": [{"name": "tcp", "bind": "127.0.0.1:0"}],
        "auth": {"default": "allow"},
        "authz": {"default": "allow"},
        "plugins": [{"use": "webhook", "config": settings}],
    }
    path = tmp_path / "hookmq.yaml"
    path.write_text(json.dumps(document))
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serving("-c", str(path)))
        async with aiomqtt.Client("127.0.0.1", served.ports["tcp"], identifier="c") as client:
            for number in range(20):
                await client.publish("a/b", str(number), 1)
        assert served.stop() == 0  # the broker delivers waiting events first
    async with httpx.AsyncClient() as http:
        told = (await http.get(f"{url}/counts")).json()
    assert told == {"counts": {"hookmq.message.published": 20}}, served.log


@pytest.mark.parametrize("language", ["node", pytest.param("go", marks=pytest.mark.slow)])
def test_a_receiver_without_secrets_does_not_start(
    language: str, request: pytest.FixtureRequest
) -> None:
    for secrets in ("", "whsec_", "what", "whsec_c2hvcnQ="):
        done = subprocess.run(
            command(language, request),
            env={**os.environ, "HOOK_SECRETS": secrets, "PORT": "0"},
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode not in (0, None)
        assert b"HOOK_SECRETS" in done.stderr


def test_the_page_shows_the_code_of_the_receivers() -> None:
    shown = {block.kind: block.text for block in blocks(PAGE)}
    assert shown["js"] in (FOLDER / "node_receiver.mjs").read_text()
    assert shown["go"] in (FOLDER / "go_receiver" / "main.go").read_text()


def test_the_code_in_python_on_the_page() -> None:
    module = ModuleType("shown")
    [text] = [block.text for block in blocks(PAGE) if block.kind == "python"]
    exec(compile(text, str(PAGE), "exec"), module.__dict__)
    known = [SECRET, public_key(PRIVATE)]
    for secrets in ((SECRET,), (PRIVATE,), (new_secret(), new_private_key(), PRIVATE)):
        module.verify(*made(0, *secrets), known)
    headers, body = made(0, SECRET, PRIVATE)
    for wrong in (
        made(0, new_secret(), new_private_key()),
        made(0, SECRET, age=301),
        (headers, body + b" "),
        ({**headers, "webhook-id": "e.0"}, body),
        ({**headers, "webhook-signature": "v1,\u00e4 v1a,!! v1a,\u00e4 x"}, body),
    ):
        with pytest.raises(ValueError, match=r"not signed|wrong signature"):
            module.verify(*wrong, known)
