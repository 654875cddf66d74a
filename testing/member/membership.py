"""A membership without a member: what it posts is returned, and nothing else happens."""

from __future__ import annotations

from collections.abc import Callable

from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Message
from lbg_sidecar.core.effects import Effect
from lbg_sidecar.core.membership import Membership
from lbg_sidecar.core.roster import Roster
from lbg_sidecar.core.timings import Timings


class Posting:
    """`posted` by the last event."""

    def __init__(
        self, timings: Timings, *, uniform: Callable[[], float], incarnation: Callable[[], str]
    ) -> None:
        self.posted: list[Effect] = []
        self.roster = Roster(timings)
        self.membership = Membership(self.roster, timings, self.posted, uniform=uniform, new_id=incarnation)
        self.awaited_will = self.membership.ring.awaited_will
        self.will_watched = self.membership.ring.will_watched
        self.last_server = self.roster.served.last_server
        self.is_joining, self.disconnected = self.membership.is_joining, self.membership.disconnected

    def join(self, index: int, name: str, now: float) -> list[Effect]:
        return self._posts(self.membership.join, index, name, now)

    def receive(self, message: Message, now: float) -> list[Effect]:
        return self._posts(self.membership.receive, message, now)

    def returned(self, message: Message, to: int, now: float) -> list[Effect]:
        return self._posts(self.membership.returned, message, to, now)

    def willed(self, index: int, now: float) -> list[Effect]:
        return self._posts(self.membership.willed, index, now)

    def suspect(self, index: int, now: float) -> list[Effect]:
        return self._posts(self.membership.suspect, index, now)

    def leave(self) -> list[Effect]:
        return self._posts(self.membership.leave)

    def tick(self, now: float) -> list[Effect]:
        horizon = self.membership.ring.horizon(now, float("inf"))
        return self._posts(self.membership.tick, now, horizon)

    def _posts(self, event: Callable[..., None], *args: object) -> list[Effect]:
        self.posted.clear()
        event(*args)
        return self.posted[:]

    @property
    def me(self) -> Identity | None:
        return self.roster.me

    @property
    def live(self) -> frozenset[int]:
        return self.roster.live

    @property
    def next_due(self) -> float:
        return self.membership.next_due

    @property
    def awaits_directory(self) -> bool:
        return self.membership.awaits_directory
