"""Ring of members: each awaits the last will of the next one (docs/adr/0072-last-wills.md) and pings it now and then.

So each crash is detected by one member. It also pings one of log2 N others, with a digest of its live set: what was
lost on the way shows as two digests that differ.
"""

from __future__ import annotations

from collections.abc import Callable

from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Ping
from lbg_sidecar.core.effects import Effect, Post
from lbg_sidecar.core.peer import Peer, following, neighbour
from lbg_sidecar.core.roster import Roster
from lbg_sidecar.core.timings import Timings, spread

RING_PINGS_MAX = 64
SOON_SHARE = 0.15  # of the interval of pings: what is due within it is sent with what is due now


class Ring:
    def __init__(
        self, roster: Roster, timings: Timings, effects: list[Effect], uniform: Callable[[], float]
    ) -> None:
        self.due = 0.0
        self._digest_due = 0.0
        self._roster = roster
        self._timings = timings
        self._effects = effects
        self._uniform = uniform
        self._will_of: int | None = None
        self._compared_at = self._returned_at = float("-inf")
        self._returns_in_row = 0

    def joined(self, now: float) -> None:
        self._will_of = None
        self.due = now + self._spread(self._timings.ping_s)
        self._digest_due = now + self._spread(self._timings.digest_s)

    def changed(self, now: float) -> None:
        """Others may be gone with this one, and somebody may have missed the change: ping sooner."""
        if self.due > now + self._timings.ping_s:
            self.due = now + self._spread(self._timings.ping_s)
        if self._digest_due > now + self._timings.digest_s:
            self._digest_due = now + self._spread(self._timings.digest_s)

    def awaited_will(self, now: float) -> int | None:
        """The member whose last will this member should receive: the next in the ring of a live set that has not
        changed for a second. None before that, and for a member that leaves."""
        if self._roster.is_leaving or now - self._roster.changed_at < self._timings.quiet_s:
            return None
        return self._roster.next

    def will_watched(self, index: int | None, now: float) -> None:
        """The broker would deliver the last will of this member, and of no other from now on; None: of none."""
        self._will_of = index
        if index is None:
            self.due = min(self.due, now + self._spread(self._timings.settled_unwatched_ping_s))

    def horizon(self, now: float, also_due: float) -> float:
        """Time until which all that is due is sent now: one wake-up and one write for what is due soon."""
        if now < min(also_due, self.due):
            return now
        return now + max(self._timings.ping_s, SOON_SHARE * self._interval_s(now))

    def tick(self, now: float, horizon: float) -> None:
        roster, timings = self._roster, self._timings
        if self.due <= horizon:
            self.due = now + self._spread(self._interval_s(now))
            self._ping_next(now)
        if self._digest_due <= horizon:
            is_settled = roster.is_settled(now)
            self._digest_due = now + self._spread(
                timings.settled_digest_s if is_settled else timings.digest_s
            )
            if roster.me is not None and not roster.is_leaving and roster.peers:
                self.ping(roster.peers[neighbour(roster.order, roster.me.index, self._uniform())], now)

    def ping(self, peer: Peer, now: float) -> None:
        roster, to = self._roster, peer.identity
        if roster.me is None:
            return
        message = Ping(roster.me, to.incarnation)
        if not roster.is_leaving:
            quiet_s = now - roster.changed_at
            message = Ping(roster.me, to.incarnation, len(roster.peers) + 1, roster.digest, quiet_s)
        self._effects.append(Post(message, to=to.index))

    def returned(self, now: float) -> None:
        """A ping came back. Members often go together (a node of a cluster)."""
        if now - self._returned_at > self._timings.quiet_s:
            self._returns_in_row = 0
        self._returned_at = now
        self._returns_in_row += 1

    def ping_behind(self, now: float) -> None:
        """The next one is gone: pings those behind now, more each time."""
        self._ping_next(now, min(1 << self._returns_in_row >> 1 or 1, RING_PINGS_MAX))

    def differs(self, ping: Ping, now: float) -> bool:
        """True if the live set of the sender is another one, and has been for a while. Not again for a while then."""
        roster, quiet_s = self._roster, self._timings.quiet_s
        if not ping.members or roster.is_leaving:
            return False
        if (ping.members, ping.digest) == (len(roster.peers) + 1, roster.digest):
            return False
        if min(ping.quiet_s, now - roster.changed_at) < quiet_s or now - self._compared_at < quiet_s:
            return False
        self._compared_at = now
        return True

    def _ping_next(self, now: float, count: int = 1) -> None:
        roster = self._roster
        me: Identity | None = roster.me
        if me is not None and not roster.is_leaving:
            for step in range(1, min(count, len(roster.order)) + 1):
                self.ping(roster.peers[following(roster.order, me.index, step)], now)

    def _interval_s(self, now: float) -> float:
        timings = self._timings
        if not self._roster.is_settled(now):
            return timings.ping_s
        is_watching = self._will_of is not None and self._will_of == self._roster.next
        return timings.settled_ping_s if is_watching else timings.settled_unwatched_ping_s

    def _spread(self, seconds: float) -> float:
        return spread(seconds, self._uniform)
