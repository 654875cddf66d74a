"""What the management API answers when it does not do what was asked.

::

    ManagementError
    └── ApiError              carries the HTTP status, and RabbitMQ's word and reason for the JSON body
        ├── BadRequest        400 bad_request
        ├── NotAuthorised     401 not_authorised
        ├── NotFound          404 Object Not Found
        └── Failed            503 failed: a health check
"""

from __future__ import annotations

from lbg_broker.amqp import ReplyCode
from lbg_broker.server.core.errors import Refusal

__all__ = ["ApiError", "BadRequest", "Failed", "ManagementError", "NotAuthorised", "NotFound", "of_refusal"]


class ManagementError(Exception):
    """Base of every error of the management API."""


class ApiError(ManagementError):
    """An answer that is an error; `str` is the reason."""

    status = 500
    error = "internal_error"

    def __init__(self, reason: str, *, error: str | None = None) -> None:
        super().__init__(reason)
        self.error = error or type(self).error

    def body(self) -> dict[str, object]:
        return {"error": self.error, "reason": str(self)}


class BadRequest(ApiError):
    """The body is not what the path wants, or the broker refuses what it asks for."""

    status = 400
    error = "bad_request"


class NotAuthorised(ApiError):
    """Unknown user, wrong password, a missing tag or permission. RabbitMQ answers 401 to all of them."""

    status = 401
    error = "not_authorised"


class NotFound(ApiError):
    """There is no such object."""

    status = 404
    error = "Object Not Found"

    def __init__(self, reason: str = "Not Found", *, error: str | None = None) -> None:
        super().__init__(reason, error=error)


class Failed(ApiError):
    """A health check that fails."""

    status = 503

    def body(self) -> dict[str, object]:
        return {"status": "failed", "reason": str(self)}


def of_refusal(refusal: Refusal) -> ApiError:
    """What RabbitMQ's management answers where AMQP would close a channel with this code."""
    reason = str(refusal).partition(" - ")[2]
    if refusal.code == ReplyCode.NOT_FOUND:
        return NotFound(reason, error="not_found")
    if refusal.code == ReplyCode.ACCESS_REFUSED:
        return NotAuthorised("Access refused.")
    return BadRequest(reason)
