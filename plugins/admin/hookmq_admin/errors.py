"""Errors in requests. The API reports them as RFC 9457 problem details."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

NO_HEADERS: Mapping[str, str] = {}


class ApiError(Exception):
    """A request was refused with an HTTP `status`. `field` is the name of the invalid field, if there is one."""

    def __init__(
        self, status: int, detail: str, field: str = "", headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.field = field
        self.headers = headers

    def problem(self) -> dict[str, Any]:
        """Return the body of the response."""
        shown: dict[str, Any] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        if self.field:
            shown["field"] = self.field
        return shown
