"""Barriers: an attachment starts nothing until all that was in a stream when it began has been read.

The member writes an entry of its own to the stream, and has read all before it when it comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lbg_sidecar.core.delivery import Attachment
from lbg_sidecar.core.lanes import Lanes
from lbg_sidecar.core.message_states import Hold

AGAIN_S = 2.0
"""An entry that has not come back is written again: the broker may have accepted no publishes."""


@dataclass(slots=True)
class Barrier:
    """`since` it is on its way, and was written last at `sent_at`."""

    id: str
    attachments: list[Attachment]
    since: float
    sent_at: float

    @property
    def queues(self) -> tuple[int, ...]:
        return _queues(self.attachments)


class Barriers:
    """Those of one stream, one at a time. `write` writes one to the stream, and again if it does not come back."""

    def __init__(
        self, lanes: Lanes, why: Hold, write: Callable[[Barrier], None], new_id: Callable[[], str]
    ) -> None:
        self.due: Barrier | None = None
        """On its way."""
        self._lanes = lanes
        self._why = why
        self._write = write
        self._new_id = new_id
        self._next: list[Attachment] = []
        """For the barrier after it."""

    def __contains__(self, attachment: Attachment) -> bool:
        """True if the attachment waits for a barrier."""
        return attachment in self._waiting

    def hold(self, attachment: Attachment, now: float) -> None:
        """Until a barrier that is written from now on is read it starts nothing."""
        self._lanes.hold(attachment, self._why)
        self.add(attachment, now)

    def add(self, attachment: Attachment, now: float) -> None:
        self._next.append(attachment)
        self._begin(now)

    def is_due(self, id_: str) -> bool:
        return self.due is not None and self.due.id == id_

    def passed(self, now: float) -> list[Attachment]:
        """The barrier on its way has been read. Returns its attachments that are open: they may start now."""
        assert self.due is not None
        attachments = self._let_go(self.due.attachments)
        self.due = None
        self._begin(now)
        return attachments

    def tick(self, now: float) -> bool:
        """True if the barrier on its way was written again."""
        if now < self.next_due or self.due is None:
            return False
        self.due.sent_at = now
        self._write(self.due)
        return True

    @property
    def next_due(self) -> float:
        return float("inf") if self.due is None else self.due.sent_at + AGAIN_S

    @property
    def queues(self) -> tuple[int, ...]:
        """Queues that wait for a barrier."""
        return _queues(self._waiting)

    @property
    def _waiting(self) -> list[Attachment]:
        return self._next if self.due is None else [*self.due.attachments, *self._next]

    def end(self) -> None:
        """There is nothing to read any more."""
        self._let_go(self._waiting)
        self._next, self.due = [], None

    def _begin(self, now: float) -> None:
        if self.due is None and self._next:
            self.due, self._next = Barrier(self._new_id(), self._next, now, now), []
            self._write(self.due)

    def _let_go(self, attachments: Iterable[Attachment]) -> list[Attachment]:
        found = [one for one in attachments if not one.closed]
        for attachment in found:
            self._lanes.let_go(attachment, self._why)
        return found


def _queues(attachments: Iterable[Attachment]) -> tuple[int, ...]:
    return tuple(sorted({one.queue for one in attachments if not one.closed}))
