"""Send requests to a filtering service, with credentials and checked destinations."""

import ssl
from collections.abc import Callable, Mapping
from typing import Final

from hookmq_toolkit.breaker import Breaker
from hookmq_toolkit.http_client import (
    AnswerTooLarge,
    HttpAnswer,
    HttpLimits,
    HttpRequest,
    HttpService,
    RequestFailed,
    Unavailable,
    open_session,
    read_body,
    send,
)
from yarl import URL

from hookmq_webhook.auth import Credentials, Unauthorized, fetch_token
from hookmq_webhook.destinations import CheckedResolver, Destinations
from hookmq_webhook.filter_config import FilterPluginConfig

AGENT: Final = "hookmq-webhook-filter"


class FilterService(HttpService):
    """An `HttpService` that adds credentials and checks destinations. Create and use it on a running event loop."""

    def __init__(
        self,
        config: FilterPluginConfig,
        context: ssl.SSLContext | None,
        now: Callable[[], float],
    ) -> None:
        self._destinations = Destinations(config.destinations)
        session = open_session(
            AGENT,
            config.max_parallel + 1,  # one for tokens
            tls=context,
            accept="application/json",
            resolver=CheckedResolver(self._destinations),
        )
        limits = HttpLimits(
            timeout=config.timeout,
            deadline=config.timeout,
            max_answer=config.max_answer,
            max_parallel=config.max_parallel,
            max_waiting=config.max_waiting,
        )
        breaker = Breaker(config.breaker_failures, config.breaker_pause, now)
        super().__init__(session, limits, breaker, now)
        self._credentials = Credentials(
            config.auth, fetch_token(self._post, self._destinations), now
        )

    async def _post(
        self, url: URL, headers: Mapping[str, str], body: bytes, limit: int
    ) -> tuple[int, bytes | None]:
        """Implement `hookmq_webhook.auth.Post`."""
        async with self.session.post(
            url, headers=headers, data=body, allow_redirects=False
        ) as response:
            try:
                return response.status, await read_body(response, limit)
            except AnswerTooLarge:
                return response.status, None

    async def exchange(self, request: HttpRequest) -> HttpAnswer:
        """Send the request with credentials, and resend it once if a reused connection was closed.

        Raises Unavailable, and the same errors as aiohttp.
        """
        self._destinations.check_host(URL(request.url, encoded=True).host or "")
        try:
            authorization = await self._credentials.header()
        except Unauthorized as error:
            raise Unavailable(str(error)) from None
        headers = dict(request.headers)
        if authorization:
            headers["Authorization"] = authorization
        try:
            answer = await send(
                self.session,
                request._replace(headers=headers),
                self.limits.max_answer,
                resend=True,
            )
        except RequestFailed as error:
            raise Unavailable(str(error)) from None  # the breaker counts status 500 as well
        if answer.status == 401:
            self._credentials.refused(authorization)
        return answer
