"""Changes of the live set that a member passes on: to the coordinator, or, as the coordinator, to all.

The coordinator is the lowest index. It decides nothing, so two of them, or none, cost messages or a moment. A change
that a member sent to it stays here until it comes back to all; without that the next lowest index is asked, and after
two attempts the member sends it to all by itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Changes

CHANGE_S = 0.02
"""A change is passed on after this long, together with those that follow it."""

CHANGES_S = 0.1
"""Between two messages of the coordinator to all."""

ANSWERS_S = 0.5
"""For the coordinator to send a change to all."""

UNRESPONSIVE_S = 5.0
"""For so long a member that did not send changes to all in time is not the coordinator."""

UNRESPONSIVE_MAX = 1
"""With more, a member sends its changes to all by itself."""


class ChangeQueue:
    """Pending joins, losses and leaves, by incarnation."""

    def __init__(self) -> None:
        self.joined: dict[str, Identity] = {}
        self.lost: dict[str, Identity] = {}
        self.left: dict[str, Identity] = {}
        self.due = float("inf")
        self._sent_at = float("-inf")
        self._unresponsive: dict[int, float] = {}  # index -> until when it is not the coordinator
        self._asked: Identity | None = None
        self._asked_at = float("-inf")

    def __bool__(self) -> bool:
        return bool(self.joined or self.lost or self.left)

    def add(
        self,
        now: float,
        *,
        joined: Iterable[Identity] = (),
        lost: Iterable[Identity] = (),
        left: Iterable[Identity] = (),
    ) -> None:
        for changes, identities in ((self.joined, joined), (self.lost, lost), (self.left, left)):
            for identity in identities:
                changes[identity.incarnation] = identity
                self.due = min(self.due, max(now + CHANGE_S, self._sent_at + CHANGES_S))

    def coordinator(self, candidates: Iterable[Identity]) -> Identity | None:
        """The first of the candidates, which come by index, that passes changes on in time."""
        return next((one for one in candidates if one.index not in self._unresponsive), None)

    def known_to_all(self, changes: Changes, now: float) -> None:
        """These need not be passed on any more."""
        for pending, known in (
            (self.joined, changes.joined),
            (self.lost, (*changes.lost, *changes.left)),
            (self.left, (*changes.left, *changes.lost)),
        ):
            for identity in known:
                pending.pop(identity.incarnation, None)
        self._asked_at = now
        if not self:
            self._asked = None
            self.due = float("inf")

    def forget(self, index: int) -> None:
        """This member is gone."""
        self._unresponsive.pop(index, None)
        if self._asked is not None and self._asked.index == index:
            self._asked = None

    def take(
        self, me: Identity, candidates: Iterable[Identity], now: float, *, retry_s: float
    ) -> tuple[Changes, Identity | None]:
        """The message that is due, and the coordinator that gets it; None: all. `retry_s`: when to ask another one."""
        if self._asked is not None and now - self._asked_at >= 0.8 * ANSWERS_S:
            self._unresponsive[self._asked.index] = now + UNRESPONSIVE_S
        self._unresponsive = {index: until for index, until in self._unresponsive.items() if until > now}
        coordinator = self.coordinator(candidates)
        if coordinator is None or coordinator == me or len(self._unresponsive) > UNRESPONSIVE_MAX:
            message = self._message(me)
            self.clear()
            self._sent_at = now
            return message, None
        if self._asked != coordinator:
            self._asked, self._asked_at = coordinator, now
        self.due = now + retry_s
        return self._message(me, coordinator.incarnation), coordinator

    def clear(self) -> None:
        for pending in (self.joined, self.lost, self.left):
            pending.clear()
        self.due = float("inf")
        self._asked = None

    def _message(self, sender: Identity, target: str = "") -> Changes:
        return Changes(
            sender, tuple(self.joined.values()), tuple(self.lost.values()), tuple(self.left.values()), target
        )
