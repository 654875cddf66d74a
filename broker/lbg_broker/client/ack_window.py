"""Acknowledgements out of order in few frames: one cumulative ack for the contiguous prefix.

Why few: when a channel of a RabbitMQ quorum queue closes, acks that are queued behind about 32 commands of the
channel can be discarded; the messages come again. So a batcher never has more than `UNPROVEN_FRAMES_MAX` ack
frames on the way of which it does not know that the broker has applied them, and a close needs one more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from lbg_broker.client.channel import Channel

UNPROVEN_FRAMES_MAX: Final = 15
"""One less than the 16 that are safe: the last is kept for the final ack before a close."""

APPLIED_AFTER_S: Final = 0.1
"""Without a sign from the broker, a frame counts as applied after this time. RabbitMQ 3.10 applies an ack to a
quorum queue within a few milliseconds."""

HOLD_FRACTION: Final = 4
"""An ack goes out at the end of the loop turn when this part of the prefetch is settled, …"""

HOLD_S: Final = 0.002
"""… or after this time. Each ack is a command in a quorum queue's log: bench/wire.py consumes a sixth more with
the fewer frames that this makes."""


class AckBatcher:
    """Collects settled delivery tags of one channel and acknowledges the contiguous prefix of them.

    Make it before the channel's first delivery. A delivery proves that the broker has applied every ack up to its
    own tag less the channel's prefetch: otherwise it would not have been sent. Acks that must wait for such a proof
    are added to the next frame.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._prefix = channel.last_delivery_tag  # every tag up to here is settled
        self._above: dict[int, bool] = {}  # settled above the prefix: tag -> to be acked by us
        self._ack_upto = 0  # the newest tag of the prefix that is ours to ack
        self._acked_upto = 0
        self._unproven: deque[tuple[int, float]] = deque()  # cumulative tag, when it counts as applied
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self.frames_sent = 0

    def settle(self, delivery_tag: int) -> None:
        """This message is done. Raises ValueError when it was settled before."""
        if delivery_tag == self._prefix + 1:
            self._prefix = self._ack_upto = delivery_tag
            if self._above:
                self._advance()
            if not self._is_due:
                self._is_due = True
                self._channel.before_writing(self._at_turn_end)
        elif delivery_tag <= self._prefix or delivery_tag in self._above:
            raise ValueError(f"delivery tag {delivery_tag} was settled before")
        else:
            self._above[delivery_tag] = True

    def skip(self, delivery_tag: int) -> None:
        """This message was settled by other means (nack, reject): step over it."""
        if delivery_tag <= self._prefix or delivery_tag in self._above:
            raise ValueError(f"delivery tag {delivery_tag} was settled before")
        self._above[delivery_tag] = False
        self._advance()
        if not self._is_due and self._ack_upto > self._acked_upto:
            self._is_due = True
            self._channel.before_writing(self._at_turn_end)

    @property
    def settled_above_gap(self) -> int:
        """Number of settled messages that wait for an earlier one: they come again if the channel closes now."""
        return sum(self._above.values())

    def flush(self) -> None:
        """Acknowledge the prefix now, in at most one frame. The last call before `Channel.close`."""
        self._cancel_timer()
        if self._ack_upto > self._acked_upto and self._channel.is_open:
            self._send()

    def _advance(self) -> None:
        above = self._above
        prefix = self._prefix
        while (ours := above.pop(prefix + 1, None)) is not None:
            prefix += 1
            if ours:
                self._ack_upto = prefix
        self._prefix = prefix

    def _at_turn_end(self) -> None:
        self._is_due = False
        settled = self._ack_upto - self._acked_upto
        if settled >= self._channel.prefetch_count // HOLD_FRACTION:
            self._send_unless_many()
        elif settled > 0 and self._timer is None:
            self._timer = self._loop.call_later(HOLD_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._send_unless_many()

    def _send_unless_many(self) -> None:
        if not self._channel.is_open or self._ack_upto <= self._acked_upto:
            return
        self._drop_proven(self._loop.time())
        self._cancel_timer()
        if len(self._unproven) < UNPROVEN_FRAMES_MAX:
            self._send()
        else:
            self._timer = self._loop.call_at(self._unproven[0][1], self._on_timer)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send(self) -> None:
        self._channel.ack(self._ack_upto, multiple=True)
        self._acked_upto = self._ack_upto
        self._unproven.append((self._ack_upto, self._loop.time() + APPLIED_AFTER_S))
        self.frames_sent += 1

    def _drop_proven(self, now: float) -> None:
        channel = self._channel
        proven = channel.last_delivery_tag - channel.prefetch_count if channel.prefetch_count else 0
        while self._unproven and (self._unproven[0][0] <= proven or self._unproven[0][1] <= now):
            self._unproven.popleft()
