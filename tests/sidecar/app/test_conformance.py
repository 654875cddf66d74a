"""Promises of every channel to an application, in any protocol."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from weakref import ref
from zlib import crc32

import pytest

from lbg_sidecar.app.http_push import PushChannel
from lbg_sidecar.message import ACK, INTERRUPTED, Kind
from testing.app.application_channel import Offering, offering_to
from testing.app.subjects import QUICK, SUBJECTS, HttpApp, Subject
from testing.ports import free_port
from testing.sidecar.unreadable import unreadable
from testing.waiting import until

Open = Callable[[Path, int], AbstractAsyncContextManager[Subject]]


IN_PROCESS = ("coroutine", "threads")
ON_OTHER_SOCKETS = ("http-unix", "batch-tcp", "stream-tcp")
"""Each protocol is shown on one kind of socket; the other kind repeats it."""


def needs(name: str) -> list[pytest.MarkDecorator]:
    if name in IN_PROCESS:
        return []
    return [pytest.mark.process, *([pytest.mark.slow] if name in ON_OTHER_SOCKETS else [])]


ALL = [pytest.param(name, marks=needs(name)) for name in SUBJECTS]


@pytest.fixture(params=ALL)
def opened(request: pytest.FixtureRequest) -> Open:
    return SUBJECTS[request.param]


@pytest.fixture
async def subject(opened: Open, tmp_path: Path) -> AsyncIterator[Subject]:
    async with opened(tmp_path, 4) as subject:
        yield subject


async def test_every_message_is_acknowledged_once_and_in_order_of_its_key(subject: Subject) -> None:
    async with offering_to(subject.channel, Offering()) as offering:
        for number in range(120):
            offering.offer(f"k{number % 7}")
        await until(lambda: len(offering.ended) == 120)
    assert sorted(offering.acked()) == list(range(120))
    for seqs in offering.acked_by_key().values():
        assert seqs == sorted(seqs)


@pytest.mark.long
async def test_a_retry_holds_its_key_and_only_its_key(subject: Subject) -> None:
    async with offering_to(subject.channel, Offering()) as offering:
        slow = offering.offer("a", b"later 1")
        offering.offer("a")
        offering.offer("b")
        await until(lambda: len(offering.acked()) == 3)
    assert [message.seq for message in offering.taken] == [0, 2, 0, 1]
    assert slow.first_started_at is not None
    assert slow.started_at - slow.first_started_at >= 1.0


async def test_a_message_is_tried_until_it_succeeds(subject: Subject) -> None:
    async with offering_to(subject.channel, Offering()) as offering:
        offering.offer("a", b"retry 3")
        await until(lambda: offering.acked())
    verdicts = [verdict for _, verdict in offering.ended]
    assert [verdict.kind for verdict in verdicts] == ["retry", "retry", "ack"]
    assert "busy" in verdicts[0].reason


async def test_a_drop_says_why(subject: Subject) -> None:
    async with offering_to(subject.channel, Offering()) as offering:
        offering.offer("a", b"drop no such order")
        await until(lambda: offering.ended)
    (_, verdict) = offering.ended[0]
    assert (verdict.kind, verdict.reason) == (Kind.DROP, "no such order")


@pytest.mark.long
async def test_calls_of_a_key_do_not_overlap_and_others_run_up_to_the_limit(subject: Subject) -> None:
    async with offering_to(subject.channel, Offering(concurrency=3)) as offering:
        for number in range(8):
            offering.offer(f"k{number % 4}", b"sleep 0.3")
        await until(lambda: len(offering.ended) == 8)
    inside: set[int] = set()
    most = 0
    for line in subject.log():
        word, seq = line.split()
        if word == "end":
            inside.discard(int(seq))
            continue
        assert (int(seq) + 4) % 8 not in inside, "two calls of a key at once"
        inside.add(int(seq))
        most = max(most, len(inside))
    assert most == 3


@pytest.mark.long
@pytest.mark.parametrize("opened", [one for one in ALL if one.values != ("threads",)], indirect=True)
async def test_a_call_that_takes_too_long_counts_as_failed_and_is_made_again(subject: Subject) -> None:
    async with offering_to(subject.channel, Offering(call_timeout_s=0.4)) as offering:
        offering.offer("a", b"sleep 30")
        await until(lambda: offering.acked())
    assert offering.ended[0][1] == INTERRUPTED
    attempts = offering.ended[-1][0].attempt
    assert attempts >= 2
    assert offering.dispatcher.counts.timed_out == attempts - 1


@pytest.mark.long
async def test_what_runs_when_the_connection_is_lost_is_ended_once(subject: Subject) -> None:
    async with offering_to(subject.channel, Offering()) as offering:
        offering.offer("a", b"sleep 30")
        offering.offer("b", b"sleep 30")
        await until(lambda: len(subject.log()) == 2)
        offering.lose()
        await until(lambda: len(offering.ended) == 2)
    assert not offering.dispatcher.lanes.running
    assert {verdict.kind for _, verdict in offering.ended} == {
        Kind.INTERRUPTED if subject.aborts else Kind.ACK
    }


@pytest.mark.long
async def test_what_has_begun_ends_with_its_own_verdict_when_the_broker_wants_it_back(
    subject: Subject,
) -> None:
    async with offering_to(subject.channel, Offering()) as offering:
        offering.offer("a", b"sleep 0.3")
        await until(lambda: subject.log())
        offering.revoke(*offering.taken, taken=False)
        await until(lambda: offering.ended)
    assert [verdict for _, verdict in offering.ended] == [ACK]


@pytest.mark.long
async def test_what_was_taken_ends_once_and_costs_no_other_call(subject: Subject) -> None:
    async with offering_to(subject.channel, Offering()) as offering:
        offering.offer("a", b"sleep 0.5")
        offering.offer("b", b"sleep 0.5")
        await until(lambda: len(subject.log()) == 2)
        offering.revoke(offering.taken[0], taken=True)
        await until(lambda: len(offering.ended) == 2)
    assert offering.acked().count(1) == 1
    assert len(offering.taken) == 2
    assert not offering.dispatcher.lanes.running


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("k", b""),
        ("k", b"\x00\xff\xfe\n"),
        ('ключ % "x" 🗝', "grüße".encode()),
        (None, b"{}"),
        ("", b"x" * 300_000),
    ],
    ids=["empty", "binary", "unicode key", "no key", "empty key, large body"],
)
async def test_any_key_and_any_body_reaches_the_application(
    subject: Subject, key: str | None, body: bytes
) -> None:
    async with offering_to(subject.channel, Offering()) as offering:
        offering.offer(key, body)
        await until(lambda: offering.ended)
    assert offering.acked() == [0]


async def test_a_body_of_three_megabytes_arrives_whole(subject: Subject) -> None:
    body = b"sum " + b"".join(b"%07d" % number for number in range(450_000))
    async with offering_to(subject.channel, Offering()) as offering:
        offering.offer("k", body)
        await until(lambda: offering.ended)
    ((_, verdict),) = offering.ended
    assert (verdict.kind, verdict.reason) == (Kind.DROP, f"{len(body)} {crc32(body)}")


async def test_a_body_that_cannot_be_read_is_a_failed_attempt_of_its_message_alone(subject: Subject) -> None:
    async with offering_to(subject.channel, Offering()) as offering:
        await until(lambda: offering.is_ready)
        offering.ready(False)
        held = offering.offer("a")
        held.delivery = unreadable(held.delivery, times=1)
        offering.offer("b")
        offering.ready(True)
        await until(lambda: len(offering.acked()) == 2)
    assert held.calls == 2
    assert not offering.dispatcher.lanes.running


class Lease:
    """In place of that of a body: what refers to a message refers to it."""


async def test_a_channel_that_waits_refers_to_no_message(subject: Subject) -> None:
    async with offering_to(subject.channel, Offering()) as offering:
        leases: list[ref[Lease]] = []
        for number in range(6):
            lease = Lease()
            leases.append(ref(lease))
            offering.offer(f"k{number}").body_lease = lease
            del lease
        await until(lambda: len(offering.acked()) == 6)
        offering.lose()
        offering.taken.clear()
        offering.ended.clear()
        await until(lambda: all(one() is None for one in leases))


@pytest.mark.long
async def test_stopping_takes_no_longer_than_the_grace(subject: Subject) -> None:
    offering = Offering()
    async with offering_to(subject.channel, offering):
        offering.offer("a", b"sleep 30")
        await until(lambda: subject.log())
        began_at = asyncio.get_running_loop().time()
        await subject.channel.stop(1.0)
        assert asyncio.get_running_loop().time() - began_at < 20.0, "the call's own 30 s"


@pytest.mark.process
@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
async def test_an_application_that_is_killed_and_comes_back_loses_and_reorders_nothing(
    tmp_path: Path, unix: bool
) -> None:
    app = HttpApp(tmp_path, f"unix:{tmp_path}/app.sock" if unix else str(free_port()))
    await app.start()
    channel = PushChannel(app.target, concurrency=4, health=QUICK)
    try:
        async with offering_to(channel, Offering()) as offering:
            for number in range(600):
                offering.offer(f"k{number % 5}")
            await until(lambda: len(offering.acked()) >= 100)
            await app.kill()
            await until(lambda: not offering.is_ready, what="the crash is noticed")
            assert len(offering.acked()) < 600
            await app.start()
            await until(lambda: len(offering.acked()) == 600)
    finally:
        await app.kill()
    assert sorted(offering.acked()) == list(range(600))
    for seqs in offering.acked_by_key().values():
        assert seqs == sorted(seqs)
    # While it is not ready, each probe that fails reports its reason.
    readiness = [
        is_ready for is_ready, _ in itertools.groupby(is_ready for is_ready, _ in offering.readiness)
    ]
    assert readiness == [False, True] * max(2, len(readiness) // 2)
