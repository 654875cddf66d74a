"""Every request on a message, wherever the message is: no two calls of a key at once, no delivery settled twice, and a
way on for each message."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from lbg_core.client.backoff import Backoff
from lbg_core.group.key_moves import JoinEntry
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Gone, SkipOutcome
from lbg_sidecar.core.barriers import AGAIN_S
from lbg_sidecar.core.dispatcher import ParkingBounds, Rules, WhenExhausted
from lbg_sidecar.core.effects import RecordKeyMove
from lbg_sidecar.core.key_moves import KeyMoves
from lbg_sidecar.core.parked_keys import Parking
from lbg_sidecar.message import ACK, drop, retry
from testing.member.bench import Bench, Published

BLOCK: dict[str, Any] = {
    "concurrency": 4,
    "max_attempts": 2,
    "backoff": Backoff(first_s=1.0, max_s=10.0, jitter=0.0),
}
PARK = BLOCK | {"when_exhausted": WhenExhausted.PARK, "parking": ParkingBounds(messages=0)}
"""No room: keys block."""

Place = Callable[[], tuple[Bench, Published]]


def at_work(*, is_native: bool = False, **options: Any) -> tuple[Bench, Published]:
    """The first of two messages of a key is called."""
    bench = Bench(Rules(**BLOCK | options), is_native=is_native)
    first = bench.publish("bad")
    bench.publish("bad")
    bench.answer()  # of the barrier that a group with parking waits for
    bench.turn()
    assert len(bench.calls) == 1
    return bench, first


def at_broker(**options: Any) -> tuple[Bench, Published]:
    bench, _ = at_work(**options)
    return bench, Published("bad", ("p", 2, 99))


def waiting(**options: Any) -> tuple[Bench, Published]:
    bench, first = at_work(**options)
    return bench, Published("bad", (*first.identity[:2], first.identity[2] + 1))


def retrying(**options: Any) -> tuple[Bench, Published]:
    bench, first = at_work(**options)
    bench.end_calls(retry("not now"))
    return bench, first


def poisoned(**options: Any) -> tuple[Bench, Published]:
    """It waits for its next call."""
    bench, first = at_work(**options)
    bench.pause(True)
    bench.pause(False)
    bench.end_calls(retry("it is poison"))
    bench.wait(10.0)
    bench.end_calls(retry("it is poison"))
    bench.answer()
    return bench, first


def poisoned_and_due(**options: Any) -> tuple[Bench, Published]:
    bench, first = poisoned(**options)
    bench.pause(True)
    bench.wait(10.0)
    return bench, first


def poisoned_and_called(**options: Any) -> tuple[Bench, Published]:
    bench, first = poisoned(**options)
    bench.wait(10.0)
    assert bench.calls
    return bench, first


def refused(**options: Any) -> tuple[Bench, Published]:
    bench, first = at_work(**options)
    bench.end_calls(drop("it is bad"))
    return bench, first


def republished(**options: Any) -> tuple[Bench, Published]:
    """It was poisoned, its last call succeeded, and the validator has not confirmed it."""
    bench, first = poisoned_and_called(republish=True, **options)
    bench.end_calls(ACK)
    return bench, first


def held(**options: Any) -> tuple[Bench, Published]:
    """It is poisoned, and its turn came while a change was announced and not read."""
    bench, first = poisoned(**options)
    bench.follow()
    bench.wait(10.0)
    assert not bench.calls
    return bench, first


def forwarded(**options: Any) -> tuple[Bench, Published]:
    """It is poisoned, and another member passed the fence of its queue."""
    bench, first = poisoned(**options)
    bench.follow()
    bench.begin()
    bench.passed()
    bench.wait(10.0)
    assert not bench.calls
    return bench, first


def parking(**options: Any) -> tuple[Bench, Published]:
    """It blocked while there was no room for parked messages, and is parked now."""
    bench, first = poisoned_and_called(**PARK | options)
    assert bench.machine.part(Parking) is not None
    bench.machine.part(Parking).bounds = ParkingBounds()
    bench.end_calls(retry("it is poison"))
    return bench, first


def parking_with_a_copy(**options: Any) -> tuple[Bench, Published]:
    """Its copy is confirmed, and its entry is on the way."""
    bench, first = parking(**options)
    bench.answer()
    return bench, first


def parked(**options: Any) -> tuple[Bench, Published]:
    bench, first = parking_with_a_copy(**options)
    bench.answer()
    return bench, first


def settling(**options: Any) -> tuple[Bench, Published]:
    """It blocked, was parked by a former member and released, and was processed; that is on the way to the stream."""
    bench, first = poisoned(**PARK | options)
    bench.park(first)
    bench.release("bad")
    bench.wait(10.0)
    bench.end_calls(ACK)
    return bench, first


def beside(**options: Any) -> tuple[Bench, Published]:
    """A copy of it came over the mailbox, and is called."""
    bench = Bench(Rules(**PARK | options))
    bench.publish("good")
    bench.answer()
    bench.end_calls(ACK)
    message = Published("bad", ("p", 2, 99))
    bench.park(message)
    bench.release("bad")
    bench.released_copy(message)
    assert bench.calls
    return bench, message


def poisoned_beside(**options: Any) -> tuple[Bench, Published]:
    bench, message = beside(**options)
    bench.end_calls(retry("it is poison"))
    bench.wait(10.0)
    bench.end_calls(retry("it is poison"))
    return bench, message


def gone(**options: Any) -> tuple[Bench, Published]:
    """Its channel is closed, and no other one is open."""
    bench, first = poisoned(**options)
    bench.close()
    return bench, first


NOT = SkipOutcome.NOT_POISONED
PLACES: dict[Place, tuple[str | None, SkipOutcome]] = {
    at_broker: (None, SkipOutcome.NOT_HELD),
    waiting: ("waiting", NOT),
    at_work: ("running", NOT),
    retrying: ("retrying", NOT),
    poisoned: ("poisoned", SkipOutcome.DEAD_LETTER),
    poisoned_and_due: ("poisoned", SkipOutcome.DEAD_LETTER),
    poisoned_and_called: ("poisoned", SkipOutcome.RUNNING),
    refused: ("refused", SkipOutcome.DEAD_LETTER),
    republished: ("processed", SkipOutcome.PROCESSED),
    held: ("poisoned", SkipOutcome.DEAD_LETTER),
    forwarded: ("moving", SkipOutcome.MOVING),
    parking: ("parking", SkipOutcome.PARKING),
    parking_with_a_copy: ("parking", SkipOutcome.PARKING),
    parked: (None, SkipOutcome.NOT_HELD),
    settling: ("processed", SkipOutcome.PROCESSED),
    beside: (None, SkipOutcome.NOT_HELD),
    poisoned_beside: (None, SkipOutcome.NOT_HELD),
    gone: (None, SkipOutcome.NOT_HELD),
}
"""With the state that a peek shows, and the first answer to a skip."""

NATIVE: list[Place] = [waiting, at_work, retrying, poisoned, poisoned_and_due, poisoned_and_called, refused]


def release(bench: Bench, message: Published) -> None:
    if bench.machine.part(Parking) is not None:
        bench.release(message.key)
        bench.released_copy(message)


def park(bench: Bench, message: Published) -> None:
    if bench.machine.part(Parking) is not None:
        bench.park(message)


REQUESTS: dict[str, Callable[[Bench, Published], None]] = {
    "skip": lambda bench, message: bench.skip(message),
    "peek": lambda bench, _: bench.peek(),
    "pause": lambda bench, _: bench.pause(True),
    "resume": lambda bench, _: bench.pause(False),
    "park": park,
    "release": release,
    "move keys": lambda bench, _: bench.follow(),
    "do not move keys": lambda bench, _: bench.give_up_move(),
    "answer": lambda bench, _: bench.answer(),
    "close": lambda bench, _: bench.close(),
    "succeed": lambda bench, _: bench.end_calls(ACK),
    "fail": lambda bench, _: bench.end_calls(retry("it is poison")),
    "wait": lambda bench, _: bench.wait(10.0),
}
NATIVE_REQUESTS: dict[str, Callable[[Bench, Published], None]] = {
    "recall": lambda bench, message: bench.revoke(message, reassigned=False),
    "reassign": lambda bench, message: bench.revoke(message, reassigned=True),
    **{
        one: REQUESTS[one]
        for one in ("skip", "pause", "resume", "answer", "close", "succeed", "fail", "wait")
    },
}


def finish(bench: Bench) -> None:
    """Ends what was requested, and lets the application work again."""

    def resume() -> None:
        bench.pause(False)
        if not bench.is_native:
            bench.give_up_move()
        if bench.machine.part(Parking) is not None:
            bench.release("bad")

    bench.finish(resume)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_skip_is_answered_by_the_place_of_the_message(place: Place) -> None:
    state, outcome = PLACES[place]
    bench, message = place()
    assert bench.state(message) == state
    bench.skip(message)
    bench.answer()
    assert bench.answers[:1] == [outcome]
    finish(bench)


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_every_request_at_every_place_leaves_each_message_a_way_on(place: Place) -> None:
    for names in product(REQUESTS, repeat=2):
        bench, message = place()
        for name in names:
            REQUESTS[name](bench, message)
        finish(bench)


def test_a_released_copy_is_not_called_while_its_key_is_called_for_another_publisher() -> None:
    bench = Bench(Rules(**PARK))
    first, other = bench.publish("bad"), Published("bad", ("q", 2, 0))
    bench.park(first)
    bench.park(other)
    bench.release("bad")
    bench.answer()
    assert [one.identity for one in bench.calls] == [first.identity]
    bench.released_copy(other)
    bench.end_calls(ACK)
    bench.released_copy(other)  # as it is not settled
    finish(bench)
    assert bench.order == [first.identity, other.identity]


@pytest.mark.parametrize("has_staging", [False, True])
def test_a_stream_without_a_first_entry_holds_calls_up_only_where_a_staging_queue_is_there(
    has_staging: bool,
) -> None:
    bench = Bench(Rules(**BLOCK), has_staging=has_staging)
    bench.follow()
    bench.publish("good")
    bench.answer()  # the barrier is read
    assert not bench.calls
    bench.answer()
    assert bool(bench.calls) is not has_staging
    bench.end_calls(ACK)
    bench.begin()
    bench.wait(AGAIN_S / 2)
    assert [one.entry for one in bench.sent if isinstance(one, RecordKeyMove)] == [JoinEntry(0, "m-0")]
    bench.publish("good")
    assert bench.calls
    finish(bench)


def test_a_member_that_others_found_gone_takes_part_in_a_change_under_its_new_incarnation_too() -> None:
    """Its mailbox was hidden by a partition of the broker: it had taken part, and is another one to the command."""
    bench = Bench(Rules(**BLOCK))
    bench.follow()
    bench.begin()
    bench.machine.entries(KeyMoves, [JoinEntry(0, "m-0")], bench.now)
    bench.wait(AGAIN_S)
    me = bench.machine.roster.me
    assert me == Identity(0, "m", "m-0")
    bench.machine.message(Gone(Identity(1, "other", "other"), me), bench.now)
    bench.turn()
    bench.wait(AGAIN_S)
    (latest,) = {one.entry for one in bench.sent if isinstance(one, RecordKeyMove)} - {JoinEntry(0, "m-0")}
    assert latest == JoinEntry(0, bench.machine.roster.me.incarnation)


@pytest.mark.parametrize("place", NATIVE, ids=lambda place: place.__name__)
def test_a_message_that_the_broker_recalls_has_a_way_on_at_every_place(place: Place) -> None:
    for names in product(NATIVE_REQUESTS, repeat=2):
        bench, message = place(is_native=True)
        for name in names:
            NATIVE_REQUESTS[name](bench, message)
        finish(bench)
