"""One session: a name, its line, and whoever consumes from it now."""

from typing import TYPE_CHECKING, Any, Final, Literal

from lbg_broker.server.core.kinds.sessions.line import SessionLine

if TYPE_CHECKING:
    from lbg_broker.server.core.channel import Channel
    from lbg_broker.server.core.consumer import Consumer

__all__ = ["EPOCHS", "ROOM", "Session"]

EPOCHS: Final = 16
"""Epochs that a session knows. A consumer whose position is of an older one goes on after what was acknowledged, and
processes again what it had processed beyond."""

ROOM: Final = 1000
"""Messages that a session is given to work on when its consumer set no prefetch limit: what it has is its own for ever,
so nobody is given everything."""


class Session:
    """`away_since`: when its consumer went, seconds since the epoch; None while it has one, and when that was in an
    earlier life of the broker. `ending`: its last message, the End-of-Session, is in its line. `room`: how many
    unsettled messages it may have before it gets no more. `channel`: where what it was given may be. `epochs`: which
    lives of the broker gave its numbers, each from which number on, the oldest first."""

    __slots__ = ("away_since", "channel", "consumer", "ending", "epochs", "line", "name", "room")

    def __init__(self, name: str, line: SessionLine) -> None:
        self.name = name
        self.line = line
        self.consumer: Consumer | None = None
        self.channel: Channel | None = None
        self.away_since: float | None = None
        self.ending = False
        self.room = 0
        self.epochs: list[tuple[str, int]] = []

    def enter(self, epoch: str) -> bool:
        """Its next number is given in this epoch. Returns whether that is news, and to be kept."""
        epochs = self.epochs
        if epochs and epochs[-1][0] == epoch:
            return False
        epochs.append((epoch, self.line.next_position + 1))
        # Also those whose numbers are all acknowledged: a consumer that comes back before them is refused.
        del epochs[:-EPOCHS]
        return True

    def position(self, committed: int, epoch: str) -> int | None:
        """The last number that a consumer has processed which was at `committed` in `epoch`, of those that the session
        has; None where that epoch is not known. A broker that was restored has fewer than the consumer saw."""
        upper = self.line.next_position
        for token, first in reversed(self.epochs):
            if token == epoch:
                return committed if committed <= upper else max(upper, self.line.acknowledged)
            upper = first - 1
        return None

    @property
    def is_held(self) -> bool:
        """Whether it has a consumer, or one that was cancelled still holds what it was given."""
        return self.consumer is not None or self.line.outstanding > 0

    @property
    def is_over(self) -> bool:
        """Whether everything up to its End-of-Session is acknowledged."""
        return self.ending and not (self.line.ready or self.line.outstanding)

    @property
    def has_room(self) -> bool:
        """Whether it takes part in the round."""
        line = self.line
        return self.consumer is not None and not self.ending and line.ready + line.outstanding < self.room

    @property
    def state(self) -> Literal["live", "away", "stranded", "closing"]:
        if self.ending:
            return "closing"
        if self.is_held:
            return "live"
        return "stranded" if self.line.ready else "away"

    def attach(self, consumer: "Consumer") -> None:
        """Its consumer is here, or one that took over."""
        limits = [limit for limit in (consumer.prefetch, consumer.channel.prefetch_total) if limit]
        self.consumer = consumer
        self.channel = consumer.channel
        self.room = min(limits, default=ROOM)
        self.away_since = None
        self.line.held = True
        self.line.shuffled = False

    def detach(self, now: float) -> None:
        """Its consumer is gone."""
        self.consumer = None
        self.away_since = now
        self.line.held = False
        if not self.line.outstanding:
            self.channel = None
        self.line.rest()

    def kept(self) -> dict[str, Any]:
        """What the broker must know of it after a restart, beside its line."""
        return {
            "session": self.name,
            "line": self.line.id,
            "settled_to": self.line.settled_to,
            "ending": self.ending,
            "away_since": self.away_since,
            "epochs": self.epochs,
        }
