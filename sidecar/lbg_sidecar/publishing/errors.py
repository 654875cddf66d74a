"""Why a request to publish was not answered with a confirm: an HTTP status and one line."""

from __future__ import annotations


class Refused(Exception):
    """`index`: which event of a batch; `retry_after_s`: when trying the same again may help."""

    def __init__(
        self, status: int, detail: str, *, index: int | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.index = index
        self.retry_after_s = retry_after_s

    def at(self, index: int) -> Refused:
        """The same, told of one event of a batch."""
        return Refused(self.status, self.detail, index=index, retry_after_s=self.retry_after_s)
