"""Create the requests to the service, and the HTTP client that sends them."""

import json
from collections.abc import Callable, Mapping
from urllib.parse import urlencode, urlsplit

from hookmq_toolkit.breaker import Breaker
from hookmq_toolkit.http_client import HttpLimits, HttpRequest, HttpService, open_session
from hookmq_toolkit.templates import JsonTemplate, Template, fill_header, fill_url, text_of
from hookmq_toolkit.tls_client import client_context

from hookmq_auth_http.answers import Read
from hookmq_auth_http.config import AuthHttpConfig, Endpoint
from hookmq_auth_http.values import Values


class Question:
    """One kind of request, such as `authenticate`.

    `members` are the default members of the body. The endpoint's settings may replace them.
    """

    __slots__ = ("_body", "_endpoint", "_headers", "_url", "name", "place", "read")

    def __init__(
        self, name: str, endpoint: Endpoint, members: Mapping[str, str], read: Read
    ) -> None:
        self.name = name
        self.read = read
        """Parses a response's status and body into an `Answer`. Raises Unusable."""
        self.place = endpoint.url.partition("?")[0]
        """URL without the query, for error messages."""
        self._endpoint = endpoint
        self._url = Template(endpoint.url)
        self._headers = {key: Template(text) for key, text in (endpoint.headers or {}).items()}
        self._body = JsonTemplate(dict(members if endpoint.body is None else endpoint.body))

    def request(self, values: Values) -> HttpRequest:
        """Return the request for `values`. Raises ValueError for a value that a header cannot contain."""
        endpoint = self._endpoint
        url = fill_url(self._url, values.text)
        headers = {key: fill_header(one, values.text) for key, one in self._headers.items()}
        members = self._body.fill(values.value)
        if endpoint.method == "get":
            query = _form(members)
            joint = "&" if urlsplit(url).query else "?"
            return HttpRequest("GET", f"{url}{joint}{query}" if query else url, headers)
        form = endpoint.format == "form"
        if not any(key.lower() == "content-type" for key in headers):
            kind = "application/x-www-form-urlencoded" if form else "application/json"
            headers["Content-Type"] = kind
        text = _form(members) if form else _json(members)
        return HttpRequest(endpoint.method.upper(), url, headers, text.encode())


def _form(members: Mapping[str, object]) -> str:
    return urlencode({key: text_of(value) for key, value in members.items()})


def _json(members: Mapping[str, object]) -> str:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":"))


def make_service(config: AuthHttpConfig, now: Callable[[], float]) -> HttpService:
    """Return an HTTP client for the service. It opens no connection yet. Needs a running event loop.

    Reads the TLS files. Raises OSError, including ssl.SSLError.
    """
    session = open_session(
        "hookmq-auth-http",
        config.max_parallel,
        tls=client_context(config.tls) if config.tls is not None else None,
    )
    limits = HttpLimits(
        timeout=config.timeout,
        max_answer=config.max_answer,
        max_parallel=config.max_parallel,
        max_waiting=config.max_waiting,
        retries=config.retries,
        retry_delay=config.retry_delay,
    )
    breaker = Breaker(config.breaker_failures, config.breaker_pause, now)
    return HttpService(session, limits, breaker, now)
