"""One log line for each thing that happens to a queue: which, from whom to whom, why, how long it stood still."""

from __future__ import annotations

import logging

from ..effects import Effect, Kept, LiveSet, Moved, Poisoned, Stalled, Superseded, TakenOver, TimedOut

log = logging.getLogger("lbg.member")


def tell(name: str, effect: Effect) -> None:
    match effect:
        case Moved(queue, to, why, drain_s, close_s, forced):
            target = "whoever waits" if to is None else f"member {to}"
            times = f"drained in {drain_s * 1000:.1f} ms, closed in {close_s * 1000:.1f} ms"
            again = f"; {forced} messages were cut off at work and are delivered again" if forced else ""
            log.info("%s: queue %d to %s (%s): %s%s", name, queue, target, why, times, again)
        case Kept(queue, _, why, running, after_s):
            log.warning(
                "%s: queue %d stays (%s): %d calls did not end within %.1f s; trying again later",
                *(name, queue, why, running, after_s),
            )
        case TakenOver(queue, former, planned, pause_s):
            whence = f"from member {former}" if planned else "by chance"
            pause = f", it stood still for {pause_s * 1000:.1f} ms" if pause_s is not None else ""
            log.info("%s: queue %d taken over %s%s", name, queue, whence, pause)
        case Poisoned(queue, key, identity, attempts, reason):
            which = "without a publisher's stamp" if identity is None else "-".join(map(str, identity))
            log.error(
                "%s: queue %d: message %s failed %d times (%s); key %r waits while it is tried on, and when the window "
                "is full of that key the whole queue does",
                *(name, queue, which, attempts, reason or "no reason given", key),
            )
        case Stalled(queue, ready, quiet_s):
            log.warning(
                "%s: queue %d is stalled: %d messages wait at the broker, and none came in %.1f s; attaching anew",
                *(name, queue, ready, quiet_s),
            )
        case TimedOut(queue, timeout_s, expected_s):
            log.warning(
                "%s: queue %d: the broker closed the channel, because a message was held for longer than its consumer "
                "timeout of %g s; this member reckoned with %g s: set consumer_timeout_s to %g, or raise the broker's",
                *(name, queue, timeout_s, expected_s, timeout_s),
            )
        case Superseded(queue, by, cut_off):
            log.warning(
                "%s: queue %d is served by member %d, though this one was not told to stop (the broker was "
                "partitioned?); attaching anew, %d messages that were at work here are done there",
                *(name, queue, by, cut_off),
            )
        case LiveSet(live):
            log.info("%s: live members: %s", name, " ".join(map(str, sorted(live))) or "none")
        case _:
            pass
