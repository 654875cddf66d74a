"""The acts where the embedded broker itself shares the messages out, one script for each mode."""

from __future__ import annotations

from lbg.demo.script import SCRIPT, Act, Do, Step
from lbg_broker.group import EXCLUSIVE, MESSAGE_GROUPS, PARTITIONED, SESSIONS

_KILL, _BACK = (Step(Do.KILL, "m2"),), (Step(Do.START, "m2"),)
_THIRD, _FOURTH = (Step(Do.START, "m3"),), (Step(Do.START, "m4"),)
_TWO_LEAVE = (Step(Do.LEAVE, "m4"), Step(Do.LEAVE, "m3"))
_LAST_LEAVES = (Step(Do.LEAVE, "m2"),)

PARTITIONS: tuple[Act, ...] = (
    Act(
        0.0, "Two consumers share the partitions", "One queue. The broker gives each consumer its partitions."
    ),
    Act(
        0.14,
        "m2 is killed",
        "SIGKILL, no goodbye. Its partitions wait for it, unbound, as long as the rebalance delay; then m1 has them.",
        _KILL,
    ),
    Act(0.27, "m2 comes back", "The delay runs; then partitions are paused, drained and handed over.", _BACK),
    Act(0.42, "A third consumer joins", "Loads differ by at most one; nothing else moves.", _THIRD),
    Act(0.56, "Scale to four", "One partition each: as far as four partitions can be shared.", _FOURTH),
    Act(
        0.71,
        "Back down: m4 and m3 leave",
        "They finish what they hold and go; when the delay is over, the others have their partitions.",
        _TWO_LEAVE,
    ),
    Act(0.85, "One is left", "m2 leaves too: m1 serves all partitions.", _LAST_LEAVES),
)

GROUPS: tuple[Act, ...] = (
    Act(
        0.0,
        "Two consumers, any number of keys",
        "A key is at one consumer at a time; any takes any free key.",
    ),
    Act(
        0.14,
        "m2 is killed",
        "SIGKILL, no goodbye. The keys that it had go on at m1 at once, in order; no other key notices.",
        _KILL,
    ),
    Act(0.27, "m2 comes back", "It gets the next free key. There is nothing to move, and no delay.", _BACK),
    Act(0.42, "A third consumer joins", "More hands, at once.", _THIRD),
    Act(0.56, "Scale to four", "As many consumers as there are keys with messages could work.", _FOURTH),
    Act(
        0.71,
        "Back down: m4 and m3 leave",
        "They finish what they hold, give back what they had not begun, in its place, and go.",
        _TWO_LEAVE,
    ),
    Act(0.85, "One is left", "m2 leaves too: m1 gets every key.", _LAST_LEAVES),
)

NUMBERED: tuple[Act, ...] = (
    Act(
        0.0,
        "Two sessions",
        "Each message goes to one session, for ever, with the next number there: 1, 2, 3 …",
    ),
    Act(
        0.14,
        "m2 is killed",
        "SIGKILL, no goodbye. What its session was given waits for it, and nobody else ever gets it.",
        _KILL,
    ),
    Act(0.27, "m2 comes back", "It says how far it is; the broker goes on right after that number.", _BACK),
    Act(
        0.42, "A third session", "An unknown name: a new session, which gets its share of what comes.", _THIRD
    ),
    Act(0.56, "A fourth", "What each is given is its own.", _FOURTH),
    Act(
        0.71,
        "m4 and m3 are closed",
        "They are given nothing more; when theirs is done they get End-of-Session, and go by themselves.",
        (Step(Do.CLOSE, "m4"), Step(Do.CLOSE, "m3")),
    ),
    Act(0.85, "One is left", "m2 is closed as well: m1 gets all that is to come.", (Step(Do.CLOSE, "m2"),)),
)


def script_of(mode: str, *, is_native: bool) -> tuple[Act, ...]:
    """On RabbitMQ mode Partitioned is the queues of Exclusive, and so is its play."""
    played_as = mode if is_native else EXCLUSIVE
    return {EXCLUSIVE: SCRIPT, PARTITIONED: PARTITIONS, MESSAGE_GROUPS: GROUPS, SESSIONS: NUMBERED}[played_as]
