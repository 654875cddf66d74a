"""How many unacknowledged messages a queue may hand to this member: the prefetch window, derived."""

from __future__ import annotations

WINDOW_MAX = 256
"""Enough for one queue at 20,000 msg/s when an ack takes 12 ms to become the next delivery, which is what a quorum
queue needs at that rate with acks 5 ms apart. More would only be memory, and more to requeue at a handoff."""


def derived_prefetch(
    *,
    concurrency: int,
    service_time_s: float | None,
    consumer_timeout_s: float,
    handoff_s: float | None = None,
) -> int:
    """The default prefetch of one queue.

    RabbitMQ closes a channel that leaves a delivery unacknowledged for `consumer_timeout_s` (30 min by default).
    In the worst case all of a window is one key, so its messages run one after another and the last waits for
    prefetch x service time: that must stay under half the timeout. `service_time_s` is what the member measured
    (99th percentile of its calls); None before it has. Then the window is as wide as is useful, and safe all the
    same: the member gives a queue back when its oldest delivery reaches half the timeout, and comes back with a
    window by the service time it knows by then.

    At least two messages per slot of `concurrency`, so that a slot has its next message at hand, unless the
    timeout forbids it; always at least 1.

    `handoff_s`: the broker moves parts of the queue to others and waits for so long at most; None: it does not. The
    window is then no more than all slots together do in that time.
    """
    least, widest = 2 * concurrency, max(WINDOW_MAX, 2 * concurrency)
    if service_time_s is None or service_time_s <= 0:
        return widest
    safe = int(consumer_timeout_s / 2 / service_time_s)
    if handoff_s is not None:
        widest = max(least, min(widest, int(concurrency * handoff_s / service_time_s)))
    return max(1, min(safe, widest))
