"""Samples of a group's demand, and how a demand is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lbg_core.admin.demand import sample_of, sizing_json, sizing_text
from lbg_core.admin.describe import Description
from lbg_core.admin.rows import ObservedQueue
from lbg_core.admin.snapshot import UNKNOWN, Handoffs, PartitionsStatus, PartitionStatus, QueueStatus, Unknown
from lbg_core.group import GroupSpec
from lbg_core.group.member_state import Identity, QueueState, Role, Status
from lbg_core.group.members_protocol import Beat
from lbg_core.group.sizing import MemberSample, Sample, Sizing, Why

SPEC = GroupSpec("g", "g", hash_count=8, queue_count=2, queue_size_mb=1, client_username="g")
MEMBER = Beat(
    Identity(0, "w0", "life-0"),
    (
        QueueState(0, Role.PRIMARY, True, Status.READY, delivered=70),
        QueueState(1, Role.SECONDARY, False, Status.UNBOUND),
    ),
    counts={"acked": 60, "calls": 61, "busy_us": 1_500_000},
    concurrency=4,
)


def queue(number: int | None, ready: int, unacked: int) -> ObservedQueue:
    return ObservedQueue(f"q{number}", number, QueueStatus(ready=ready, unacked=unacked))


GROUP = Description("g", SPEC, (queue(0, 3, 4), queue(1, 0, 0)), 0, 0, (MEMBER,), ())


def test_a_sample_has_the_calls_of_members_and_the_messages_of_queues() -> None:
    assert sample_of(GROUP, 7.0) == Sample(7.0, (MemberSample("life-0", 4, 61, 1.5, {0: 70}),), {0: 7, 1: 0})


def test_where_all_consume_one_queue_its_messages_are_a_samples() -> None:
    spec = replace(SPEC, mode="MessageGroups", queue_count=1, max_clients=8, assignment="Balanced")
    sample = sample_of(replace(GROUP, spec=spec, queues=(queue(None, 3, 4),)), 7.0)
    assert sample is not None
    assert sample.waiting == {0: 7}


def test_what_could_not_be_counted_is_no_sample() -> None:
    unknown = ObservedQueue("q1", 1, UNKNOWN)
    assert sample_of(replace(GROUP, queues=(queue(0, 1, 1), unknown)), 7.0) is None
    assert sample_of(replace(GROUP, members=UNKNOWN), 7.0) is None


def test_what_members_do_not_count_is_no_sample() -> None:
    """A member that reports no calls at a time is of an older version, and one of a paused group may not call."""
    assert sample_of(replace(GROUP, members=(MEMBER, replace(MEMBER, concurrency=0))), 7.0) is None
    assert sample_of(replace(GROUP, members=(replace(MEMBER, paused=True),)), 7.0) is None
    assert sample_of(replace(GROUP, members=(replace(MEMBER, paused=True), MEMBER)), 7.0) is not None


def test_messages_of_further_queues_count_as_those_of_the_queues_that_there_are() -> None:
    """Staging queues, and new queues of a change that is under way."""
    more = (queue(0, 3, 4), queue(1, 0, 0), queue(2, 900, 0), queue(3, 50, 1))
    sample = sample_of(replace(GROUP, queues=more), 7.0)
    assert sample is not None
    assert sample.waiting == {0: 907, 1: 51}


def partitioned(native: PartitionsStatus | Unknown) -> Description:
    spec = replace(SPEC, mode="Partitioned")
    one = ObservedQueue("q", None, QueueStatus(ready=9, unacked=0, native=native))
    member = replace(MEMBER, queues=(replace(MEMBER.queues[0], delivered=900),))
    return replace(GROUP, spec=spec, queues=(one,), members=(member,))


def test_partitions_are_taken_to_get_as_many_messages_each() -> None:
    """A member counts the messages of the one queue."""
    status = PartitionsStatus(
        "Ready",
        ingress=True,
        handoffs=Handoffs(0, 0, 0),
        partitions=(PartitionStatus(0, "Ready", None, 5, 1), PartitionStatus(1, "Ready", None, 3, 0)),
    )
    sample = sample_of(partitioned(status), 7.0)
    assert sample is not None
    assert sample.waiting == {0: 6, 1: 3}
    assert [one.delivered for one in sample.members] == [{}]


def test_partitions_that_could_not_be_read_are_no_sample() -> None:
    assert sample_of(partitioned(UNKNOWN), 7.0) is None


KNOWN = Sizing(
    wanted=9,
    arrivals_hz=812.4,
    service_s=0.0077,
    capacity_hz=130.2,
    waiting=12_300,
    clears_in_s=95.4,
    why=Why.BACKLOG,
)


@pytest.mark.parametrize(
    ("sizing", "text"),
    [
        (
            KNOWN,
            "812 messages/s arrive, a member processes 130/s, 12300 wait, gone in 95 s at the present rate: 9 members "
            "for a delay of 10 s",
        ),
        (
            replace(KNOWN, wanted=1, clears_in_s=None, why=Why.QUEUE_LIMITS, queue=3),
            "812 messages/s arrive, a member processes 130/s, 12300 wait: 1 member for a delay of 10 s; queue 3 has "
            "more than one member can process, which more members do not help",
        ),
        (
            Sizing(waiting=5),
            "5 messages wait, and no call has ended: the number of members is unknown",
        ),
    ],
)
def test_a_demand_is_one_line(sizing: Sizing, text: str) -> None:
    assert sizing_text(sizing, 10.0) == text


def test_the_fields_of_a_demand_are_plain() -> None:
    assert sizing_json(KNOWN) == {
        "members_wanted": 9,
        "arrivals_per_s": 812.4,
        "member_processes_per_s": 130.2,
        "service_s": 0.0077,
        "waiting": 12_300,
        "clears_in_s": 95.4,
        "why": "Backlog",
        "queue": None,
    }
