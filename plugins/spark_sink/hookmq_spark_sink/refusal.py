"""Error responses of the read API."""

from typing import Any

from aiohttp import web


class Refusal(Exception):
    """Rejects a request with an error response."""

    def __init__(self, status: int, code: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": code, "message": message, **facts}

    def response(self) -> web.Response:
        """Return the error as an HTTP response."""
        headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(self.status)
        return web.json_response(self.body, status=self.status, headers=headers)
