"""Send a real broker requests that schemathesis generates from the OpenAPI document. The broker must never fail, and
every response must conform to the document.
"""

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from admin_browser import Operated, operated
from hookmq_admin.openapi import document
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("schemathesis")]

EXAMPLES = 6
"""Requests to make for each operation, both valid and invalid."""
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip


def operations() -> dict[str, Any]:
    """Return all operations by name. Live tails and traces are left out, because they do not end."""
    found: dict[str, Any] = {}
    for one in schemathesis.openapi.from_dict(document()).get_all_operations():
        assert isinstance(one, Ok), one
        operation = one.ok()
        if operation.path not in ("/tail", "/trace", "/log/tail"):
            found[operation.definition.raw["operationId"]] = operation
    return found


OPERATIONS = operations()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """Run a broker with a client."""
    with operated(tmp_path_factory.mktemp("schemathesis")) as site:
        site.offline("lamp", "light/#")
        site.publish("light/1", b"on", retain=True)
        yield site


@pytest.fixture(scope="module")
def session(site: Operated) -> Iterator[requests.Session]:
    """Return an HTTP session that sends an administrator's token."""
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {site.tokens['admin']}"
        yield session


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", OPERATIONS)
def test_requests_made_from_the_document(
    site: Operated, session: requests.Session, name: str, mode: GenerationMode
) -> None:
    load_all_checks()
    operation = OPERATIONS[name]
    try:
        strategy = operation.as_strategy(generation_mode=mode)
    except hypothesis.errors.HypothesisException:
        pytest.skip("nothing can be invalid")

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy, hypothesis.strategies.booleans())
    def ask(case: Any, known: bool) -> None:
        if known and "client_id" in case.path_parameters:
            case.path_parameters["client_id"] = "lamp"
        case.call_and_validate(
            base_url=f"{site.url}api/v1", session=session, checks=CHECKS, timeout=60
        )

    ask()
    assert site.served.process.poll() is None
