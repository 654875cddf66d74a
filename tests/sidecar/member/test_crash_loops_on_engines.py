"""A message that ends the process of each member that is called with it, and members that are started again."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from lbg_core.admin.groups import enable_parking
from lbg_core.admin.live import LiveAdmin
from lbg_core.client import ConnectionSettings
from lbg_core.publisher import GroupPublisher
from testing.member.crash_loop import CrashLoop, crash_loop
from testing.member.place import Place
from testing.needs import repeated
from testing.waiting import until, until_answer

KEYS, COUNT = 20, 400
KILLER = 43
OF_KEY = f"k{KILLER % KEYS}"
BEHIND = len(range(KILLER, COUNT, KEYS)) - 1
MEMBERS, ATTEMPTS = 3, 3
WITHIN_S = 200.0

pytestmark = pytest.mark.timeout(300)


def calls_of_killer(loop: CrashLoop) -> int:
    ended = loop.ended()
    return sum((key, seq) not in ended for _, key, seq in loop.lines("begin") if key == OF_KEY)


def require_order(loop: CrashLoop) -> None:
    """Of each key, by the first end of each of its messages."""
    firsts: dict[str, list[int]] = {}
    for _, key, seq in loop.lines("end"):
        if seq not in (of_key := firsts.setdefault(key, [])):
            of_key.append(seq)
    assert all(a < b for of_key in firsts.values() for a, b in pairwise(of_key))


async def publish(place: Place, killer: bytes) -> None:
    async with GroupPublisher(place.url, group=place.spec.name) as publisher:
        for number in range(COUNT):
            body = killer if number == KILLER else b"%d" % number
            await publisher.publish(key=f"k{number % KEYS}", body=body, topic="t")
        await publisher.flush()


@pytest.mark.parametrize(
    ("when_exhausted", "concurrency", "blocking"),
    repeated(
        [
            ("dead-letter", 8, False),
            ("dead-letter", 1, True),
            ("block", 8, True),
            ("block", 1, False),
            ("park", 8, False),
            ("park", 8, True),
        ]
    ),
)
async def test_a_message_that_kills_members_costs_its_own_attempts_and_holds_up_its_own_key(
    place: Place, tmp_path: Path, when_exhausted: str, concurrency: int, blocking: bool
) -> None:
    if when_exhausted == "park":
        admin = LiveAdmin(ConnectionSettings.parse(place.url))
        await enable_parking(admin, place.spec.name)
        await admin.close()
    await publish(place, b"killer 9" if blocking else b"killer")
    told = place.told(
        concurrency=concurrency, when_exhausted=when_exhausted, max_attempts=ATTEMPTS, retry_max_s=10.0
    )
    in_front = KILLER // KEYS
    goes_on = when_exhausted == "dead-letter"
    count = COUNT - 1 if goes_on else COUNT - 1 - BEHIND
    async with crash_loop(told, tmp_path, members=MEMBERS, blocking=blocking) as loop:
        await until(
            lambda: len(loop.ended()) >= count, timeout_s=WITHIN_S, every_s=0.2, what="other messages"
        )
        if when_exhausted == "block":
            await until(lambda: calls_of_killer(loop) > ATTEMPTS, timeout_s=WITHIN_S, every_s=0.2)
        target = {"dead-letter": place.names.dead, "park": place.names.parking}.get(when_exhausted)
        expected = 1 if goes_on else 1 + BEHIND
        if target is not None:
            await until_answer(lambda: place.count(target), lambda messages: messages >= expected)
    done = Counter(key for key, _ in loop.ended())
    assert len(loop.ended()) == count
    assert done[OF_KEY] == in_front + (BEHIND if goes_on else 0)
    require_order(loop)
    assert await place.count(place.names.dead) == (1 if goes_on else 0), "nothing else is a dead letter"
    assert calls_of_killer(loop) >= ATTEMPTS
    if when_exhausted != "block":
        # Two deaths of each member may be ambiguous; after that each counts at least its own.
        assert calls_of_killer(loop) <= MEMBERS * (2 + ATTEMPTS)
