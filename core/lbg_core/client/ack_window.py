"""Acknowledgements out of order in few frames: one cumulative ack for the contiguous prefix.

Why few: when a channel of a RabbitMQ quorum queue closes, acks that are queued behind about 32 commands of the
channel can be discarded; the messages come again. So a channel never has more than `UNPROVEN_FRAMES_MAX` ack
frames on the way that the broker has not provably applied, and a close needs at most 16 more.

`AckWindow` and `AckFrames` are pure. `AckBatcher` is their shell for one channel of the client, and
`lbg_sidecar.core.acks: AckScheduler` the schedule of a member.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

from lbg_core.client.channel import Channel

UNPROVEN_FRAMES_MAX: Final = 15
"""With the 16 of a close they are fewer than 32."""

APPLIED_AFTER_S: Final = 0.1
"""Without a sign from the broker, a frame counts as applied after this time, where the queue may have nothing more
to deliver. RabbitMQ 3.10 applies an ack to a quorum queue within a few milliseconds …"""

FULL_APPLIED_AFTER_S: Final = 1.0
"""… and after this time where the window was full, so that deliveries should have followed it: a broker that stands
still for a moment (a disk, the CPU) finds all acks of that time, and the close, in one read."""

HOLD_FRACTION: Final = 4
"""An ack goes out at the end of the loop turn when this part of the prefetch is settled, …"""

HOLD_S: Final = 0.002
"""… or after this time. Each ack is a command in a quorum queue's log: bench/wire.py consumes a sixth more with
the fewer frames that this makes."""

D = TypeVar("D", bound=Hashable)


class AckWindow(Generic[D]):
    """The deliveries of one channel: outstanding, done behind one that is not, and done without such a gap.

    The contiguous prefix is acknowledged with one frame. What is done behind a gap may be acknowledged singly: when it
    has waited for long, or before a close.

    `in_order`: none is acknowledged before all that were delivered before it. So it is with a session: how far it is,
    is one number, and what was acknowledged beyond it would be neither done nor to come.
    """

    __slots__ = ("_in_order", "_outstanding", "_singly", "prefix", "scattered")

    def __init__(self, *, in_order: bool = False) -> None:
        self._in_order = in_order
        self._outstanding: deque[D] = deque()
        self._singly: set[D] = set()  # acknowledged alone, and not the oldest yet
        self.prefix: list[D] = []
        """Done, in the order they were delivered, with nothing undone before them, and not acked yet."""
        self.scattered: dict[D, None] = {}
        """Done, in the order they were done, with something undone before them, and not acked yet."""

    def delivered(self, arrivals: Iterable[D]) -> None:
        self._outstanding.extend(arrivals)

    def done(self, delivery: D) -> None:
        outstanding = self._outstanding
        oldest = outstanding[0]
        if oldest is not delivery and oldest != delivery:
            self.scattered[delivery] = None
            return
        self.prefix.append(outstanding.popleft())
        if self.scattered or self._singly:
            self._advance()

    def all_unacked(self) -> Iterator[D]:
        """Deliveries that are not acknowledged yet, in the order they were delivered."""
        return (
            delivery for delivery in chain(self.prefix, self._outstanding) if delivery not in self._singly
        )

    def forget(self, released: Collection[D]) -> None:
        """These unacknowledged deliveries are the broker's again, or settled by other means (nack, reject), and never
        acknowledged here."""
        self.prefix = [delivery for delivery in self.prefix if delivery not in released]
        for delivery in released:
            self.scattered.pop(delivery, None)
        self._singly.update(delivery for delivery in self._outstanding if delivery in released)
        self._advance()

    def pop_done(self, deliveries: Iterable[D]) -> list[D]:
        """Of these what is done, to acknowledge singly; it counts as acked from now on."""
        acked = [] if self._in_order else [delivery for delivery in deliveries if delivery in self.scattered]
        self._acked_singly(acked)
        return acked

    def _acked_singly(self, acked: Iterable[D]) -> None:
        for delivery in acked:
            del self.scattered[delivery]
            self._singly.add(delivery)

    def _advance(self) -> None:
        """Let what is done, or not to be acknowledged any more, leave the front."""
        outstanding, scattered, singly = self._outstanding, self.scattered, self._singly
        while outstanding and (scattered or singly):
            delivery = outstanding[0]
            if delivery in scattered:
                del scattered[delivery]
                self.prefix.append(delivery)
            elif delivery in singly:
                singly.remove(delivery)
            else:
                break
            outstanding.popleft()

    def take(self) -> list[D]:
        """Messages that the next cumulative ack covers: ack the tag of the last. It counts as acked from now on."""
        prefix, self.prefix = self.prefix, []
        return prefix

    @property
    def next_single(self) -> D | None:
        """The delivery to acknowledge singly before others."""
        return None if self._in_order else next(iter(self.scattered), None)

    def pop_scattered(self, limit: int, *, is_due: Callable[[D], bool] | None = None) -> list[D]:
        """Up to `limit` deliveries to acknowledge singly, those done first; they count as acked from now on."""
        acked: list[D] = []
        for delivery in () if self._in_order else self.scattered:
            if len(acked) == limit or (is_due is not None and not is_due(delivery)):
                break
            acked.append(delivery)
        self._acked_singly(acked)
        return acked

    @property
    def unacked(self) -> int:
        """Deliveries that the broker still counts against the prefetch window."""
        return len(self._outstanding) - len(self._singly) + len(self.prefix)

    @property
    def oldest(self) -> D | None:
        """The delivery that has waited for its verdict longest."""
        return self._outstanding[0] if self._outstanding else None

    def is_settled_early(self, delivery: D) -> bool:
        """It is done, acknowledged or forgotten, and an earlier one is not."""
        return delivery in self.scattered or delivery in self._singly

    def leave(self) -> list[D]:
        """Everything that was never acked, in order of delivery: the broker delivers it again."""
        rest = list(self.all_unacked())
        self.prefix = []
        self._outstanding.clear()
        self._singly.clear()
        self.scattered.clear()
        return rest


class AckFrames:
    """Ack frames of one channel that the broker may not have applied.

    A delivery beyond the window proves that the broker has applied the acks of as many messages as it is beyond:
    otherwise it would not have been sent. `delivered` counts the channel's messages; a `prefetch` of 0 is no window,
    and its deliveries prove nothing.
    """

    __slots__ = ("_unproven", "acked")

    def __init__(self) -> None:
        self.acked = 0
        self._unproven: deque[tuple[int, float]] = deque()
        """All that was acknowledged with a frame and those before it, and when it counts as applied."""

    def sent(self, counts: Iterable[int], now: float, *, delivered: int, prefetch: int) -> None:
        """`counts`: how many messages each frame acknowledges."""
        is_full = 0 < prefetch <= delivered - self.acked
        applied_at = now + (FULL_APPLIED_AFTER_S if is_full else APPLIED_AFTER_S)
        for count in counts:
            self.acked += count
            self._unproven.append((self.acked, applied_at))

    def room(self, now: float, *, delivered: int, prefetch: int) -> int:
        """Number of frames that may be sent beside those on the way."""
        unproven = self._unproven
        proven = delivered - prefetch if prefetch else 0
        while unproven and (unproven[0][0] <= proven or unproven[0][1] <= now):
            unproven.popleft()
        return max(0, UNPROVEN_FRAMES_MAX - len(unproven))

    @property
    def next_room_at(self) -> float:
        """Time at which the oldest frame counts as applied; infinity if none is on the way."""
        return self._unproven[0][1] if self._unproven else float("inf")


class AckBatcher:
    """Collects settled delivery tags of one channel and acknowledges the contiguous prefix of them.

    Make it before the channel's first delivery.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._window = AckWindow[int]()
        self._frames = AckFrames()
        self._began_after = self._last_tag = channel.last_delivery_tag
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self.frames_sent = 0

    def settle(self, delivery_tag: int) -> None:
        """This message is done. Raises ValueError when it was settled before."""
        window = self._window
        if delivery_tag > self._last_tag or delivery_tag != window.oldest:
            self._expect(delivery_tag)
        window.done(delivery_tag)
        if not self._is_due and window.prefix:
            self._is_due = True
            self._channel.before_writing(self._at_turn_end)

    def skip(self, delivery_tag: int) -> None:
        """This message was settled by other means (nack, reject): step over it."""
        self._expect(delivery_tag)
        self._window.forget((delivery_tag,))
        if self._window.prefix and not self._is_due:
            self._is_due = True
            self._channel.before_writing(self._at_turn_end)

    @property
    def settled_above_gap(self) -> int:
        """Number of settled messages that wait for an earlier one: they come again if the channel closes now."""
        return len(self._window.scattered)

    def flush(self) -> None:
        """Acknowledge the prefix now, in at most one frame. The last call before `Channel.close`."""
        self._cancel_timer()
        if self._window.prefix and self._channel.is_open:
            self._send()

    def _expect(self, delivery_tag: int) -> None:
        if delivery_tag > self._last_tag:
            last = max(delivery_tag, self._channel.last_delivery_tag)
            self._window.delivered(range(self._last_tag + 1, last + 1))
            self._last_tag = last
            return
        oldest = self._window.oldest
        if oldest is None or delivery_tag < oldest or self._window.is_settled_early(delivery_tag):
            raise ValueError(f"delivery tag {delivery_tag} was settled before")

    @property
    def _acked_upto(self) -> int:
        return self._began_after + self._frames.acked

    @property
    def _delivered(self) -> int:
        return self._channel.last_delivery_tag - self._began_after

    def _at_turn_end(self) -> None:
        self._is_due = False
        if not self._window.prefix:
            return
        settled = self._window.prefix[-1] - self._acked_upto
        if settled >= self._channel.prefetch_count // HOLD_FRACTION:
            self._send_unless_many()
        elif self._timer is None:
            self._timer = self._loop.call_later(HOLD_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._send_unless_many()

    def _send_unless_many(self) -> None:
        if not self._channel.is_open or not self._window.prefix:
            return
        self._cancel_timer()
        if self._frames.room(
            self._loop.time(), delivered=self._delivered, prefetch=self._channel.prefetch_count
        ):
            self._send()
        else:
            self._timer = self._loop.call_at(self._frames.next_room_at, self._on_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self) -> None:
        tag = self._window.take()[-1]
        self._channel.ack(tag, multiple=True)
        self._frames.sent(
            (tag - self._acked_upto,),
            self._loop.time(),
            delivered=self._delivered,
            prefetch=self._channel.prefetch_count,
        )
        self.frames_sent += 1
