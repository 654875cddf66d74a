"""Members' messages as JSON: each survives the wire, and hostile bytes do no more than raise a MessageError."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group.errors import MessageError, NewerMessage
from lbg_core.group.held_messages import Ending, Handled, HeldState, PeekedMessage
from lbg_core.group.member_state import (
    YEAR_9999_US,
    ExtendedCall,
    HeldSuspect,
    Identity,
    Overload,
    ParkingState,
    Placement,
    Positions,
    Progress,
    QueueLoad,
    QueueState,
    Rebalance,
    RetriedMessage,
    Role,
    Status,
    Suspected,
)
from lbg_core.group.members_protocol import (
    HELLO_ATTEMPTS_MAX,
    WATCH_MAX_S,
    Activity,
    Assign,
    Beat,
    CallsHeld,
    Changes,
    Directory,
    GivenBack,
    Gone,
    Handover,
    Hello,
    IndexOffer,
    IndexRequest,
    KeyAnswer,
    KeyRequest,
    KeysMove,
    Knowledge,
    KnowledgeRequest,
    Leave,
    Load,
    LoadRequest,
    Message,
    Move,
    Pause,
    Peek,
    Peeked,
    Ping,
    Place,
    Placed,
    QueueReport,
    Reattached,
    Repartition,
    Skip,
    SkipOutcome,
    Skipped,
    SuspectReport,
    Takeover,
    Watch,
)
from lbg_core.group.message_codec import decode, encode
from lbg_core.group.pace import KeyPace, Pace

A, B, C = (Identity(index, f"m{index}", f"life-{index}") for index in range(3))
ADMINISTRATOR = Identity(0, "administrator", "")

QUEUES = (
    QueueState(
        *(0, Role.PRIMARY, True, Status.READY, 3, 70, 2, Progress.BLOCKED),
        poisoned=2,
        poisoned_keys=("k", "ключ"),
        poisoned_ids=("p-0-1",),
        put_off=2,
        next_drain_s=0.125,
        retried_messages=(RetriedMessage("p-0-2", None, "no verdict"), RetriedMessage("i", "k", "later", 5)),
        suspects=(HeldSuspect("p-0-3", "k", 1, "m9"),),
        extended_calls=(ExtendedCall("p-0-4", "k", "half", 5, 6),),
        demand=1.5,
        service_s=0.01,
        overload=Overload("k", 1.5, 1),
    ),
    QueueState(1, Role.SECONDARY, False, Status.UNBOUND),
)
BEAT = Beat(
    A,
    QUEUES,
    Rebalance.HOLD_DOWN,
    {"acked": 9},
    paused=True,
    oldest_us=17,
    parking=ParkingState(is_read=True, keys=2, messages=9, size_bytes=900, is_full=False),
    concurrency=16,
    prefetch=256,
    behind_s=60.5,
    pace=Pace(0.5, 12.5, 700, 0.01, 0.25, (KeyPace("k", 1.0), KeyPace("ключ", 0.25, 9, 0.01, 0.02))),
)
POSITIONS = Positions((("p", 7, ((0, 4), (6, 9))),), (("p", 7, 5, 2),))
HELD = PeekedMessage(
    *("p-0-1", None, 3, HeldState.POISONED, 2, "refused", True, 12, "0.3.k", None, None, "AAE="),
    body_bytes=2,
)
HANDLED = Handled("p", 7, 3, 1, 10, 11, 12, 13, 14, 15, 2, Ending.FINISHED, redelivered=True)
UNSTAMPED = Handled(*(None, None, None, 1, 10, 11, 0, 0, 0, 15, 0, Ending.RELEASED), redelivered=True)
MESSAGES: list[Message] = [
    Hello(A),
    Hello(A, 2),
    Directory(A, (A, B, C), ("life-9",), is_answer=True, placements=(Placement(3, "life-2", 8),)),
    Changes(A, (B,), (C,), (), "life-0"),
    Changes(A, left=(B,)),
    IndexRequest(A, 12, (0, 3)),
    IndexOffer(A, 4),
    QueueReport(A, QUEUES),
    BEAT,
    Beat(A),
    Leave(A),
    Gone(A, B),
    Ping(A, "life-1"),
    Ping(A, "life-1", 3, 2**64 - 1, 1.5),
    Move(A, 3, 1, "m-1"),
    Move(A, 3, 1, "m-1", "leave"),
    Reattached(A, 3, "m-1", "secret"),
    Handover(A, 3, "m-1", POSITIONS, 0.25, proof="secret"),
    KnowledgeRequest(A, "secret"),
    Knowledge(A, POSITIONS, "secret"),
    SuspectReport(A, (Suspected(("p", 7, 5), 1, 2, 0, "m9"),)),
    Repartition(A, 6, done=True),
    KeysMove(A, "3-6-abc"),
    Peek(ADMINISTRATOR, "a1", None, "id", 10, 1000),
    Peeked(A, 1, (HELD,)),
    KeyRequest(ADMINISTRATOR, "a1", "k", 10, 1000, 500),
    KeyAnswer(A, 1, (HELD,), (HANDLED, UNSTAMPED), 3, 10_000, 12, (("p", 7, ((0, 4), (6, 9))),)),
    Skip(ADMINISTRATOR, "a1", "p-0-1"),
    Skipped(A, SkipOutcome.RUNNING),
    Pause(ADMINISTRATOR, consumption=True),
    Assign(ADMINISTRATOR, "Static", 3),
    Assign(ADMINISTRATOR, "ByLoad", 8, 30),
    Load(A, 16, (QueueLoad(3, 0.75, 0.01), QueueLoad(4, 0.0, 0.0))),
    Load(A, 1, (), is_steady=False),
    LoadRequest(A),
    GivenBack(A, (("p", 1, 2, 3),)),
    CallsHeld(A, 1.5, "the database is down"),
    Place(A, "life-1", (Placement(3, "life-2", 7),)),
    Placed(A, (Placement(3, "life-2", 8), Placement(4, "", 1))),
    Watch(ADMINISTRATOR, 15.0, keys=False),
    Activity(A, (("a", 2), ("b", 1))),
    Activity(A, takeover=Takeover(1, None, "lost", False, None)),
    Activity(A, takeover=Takeover(1, 0, "leave", True, 0.25)),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message
    assert decode(memoryview(encode(message))) == message


def test_each_type_has_an_example() -> None:
    assert {type(message) for message in MESSAGES} == set(get_args(Message))


def test_a_message_of_a_newer_version_is_refused_in_one_line() -> None:
    newer = encode(Hello(B)).replace(b'"v":1', b'"v":2').replace(b"hello", b"song")
    with pytest.raises(
        NewerMessage,
        match=r"^member 'm1' sends the group messages of version 2, and this member reads version 1: "
        r"upgrade this member$",
    ):
        decode(newer)
    with pytest.raises(NewerMessage, match=r"^administrator 'observer' sends") as refused:
        decode(b'{"v":2,"type":"watch","sender":[0,"observer",""]}')
    assert not refused.value.is_member


def test_a_newer_message_is_newer_whatever_its_sender_is() -> None:
    for sender in ([0, "m1", "x", 7], "m1", None):
        with pytest.raises(NewerMessage):
            decode(json.dumps({"v": 2, "type": "song", "sender": sender}).encode())


def test_the_attempts_of_a_hello_count_up_to_those_that_all_answer() -> None:
    assert decode(changed(Hello(A), attempt=10**40)) == Hello(A, HELLO_ATTEMPTS_MAX)


def test_half_of_a_character_and_a_run_that_ends_before_it_begins_are_refused() -> None:
    with pytest.raises(MessageError, match="surrogates not allowed"):
        decode(changed(Hello(A), sender=[3, "m", "\ud800"]))
    with pytest.raises(MessageError, match=r"\(5, 2\) ends before it begins"):
        decode(encode(Knowledge(A, Positions((("p", 7, ((5, 2),)),)), "secret")))


def test_a_field_that_is_not_known_is_passed_over() -> None:
    assert decode(changed(BEAT, later=[1])) == BEAT


def test_a_time_after_all_calendars_counts_as_the_last_one() -> None:
    beat = decode(changed(BEAT, oldest_us=2**70))
    assert isinstance(beat, Beat)
    assert beat.oldest_us == YEAR_9999_US


def test_a_type_that_is_not_read_is_no_message() -> None:
    assert decode(encode(Hello(B)).replace(b"hello", b"song")) is None


def changed(message: Message, **fields: Any) -> bytes:
    """The message with other values of these fields of its JSON."""
    return json.dumps({**json.loads(encode(message)), **fields}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"v":"1","type":"hello","sender":[0,"a","b"]}',
        b'{"v":1,"type":"hello","sender":[1e999,"a","b"]}',
        b'{"v":1,"type":"hello","sender":[0,"a"]}',
        changed(Leave(A), sender=[-1, "a", "b"]),
        changed(Leave(A), sender=[True, "a", "b"]),
        changed(Leave(A), sender=[1.0, "a", "b"]),
        changed(Leave(A), sender=[2**70, "a", "b"]),
        changed(Leave(A), sender=None),
        changed(Move(A, 3, 1, "m"), queue=-3),
        changed(Move(A, 3, 1, "m"), to="1"),
        changed(Move(A, 3, 1, "m"), move=5),
        changed(Pause(ADMINISTRATOR, consumption=True), consumption="yes"),
        changed(Assign(ADMINISTRATOR, "Static", 3), assignment="Fair"),
        changed(Assign(ADMINISTRATOR, "Static", 3), max_clients=0),
        changed(Handover(A, 3, "m-1", POSITIONS, 0.25), paused_s="0.25"),
        changed(Handover(A, 3, "m-1", POSITIONS, 0.25), paused_s=math.inf),
        changed(Handover(A, 3, "m-1", POSITIONS, 0.25), positions={"streams": [["p", 7, [[0]]]]}),
        changed(Handover(A, 3, "m-1", POSITIONS, 0.25), positions={"attempts": [["p", 7, 5, 2, 1]]}),
        changed(IndexRequest(A, 12), refused=[-1]),
        changed(IndexRequest(A, 12), refused=3),
        changed(IndexOffer(A, 4), offered=2**70),
        changed(QueueReport(A, QUEUES), queues=[{}]),
        changed(QueueReport(A, QUEUES), queues=[7]),
        changed(QueueReport(A, QUEUES), queues={"0": 1}),
        changed(Directory(A, (A,)), members=[[0, "a"]]),
        changed(Directory(A, (A,)), members=[[-1, "a", "b"]]),
        changed(Directory(A, (A,)), members=None),
        changed(BEAT, counts=[]),
        changed(BEAT, counts={"acked": -1}),
        changed(BEAT, rebalance="Song"),
        changed(BEAT, parking=3),
        changed(Skipped(A, SkipOutcome.RUNNING), outcome="song"),
        changed(Activity(A), takeover=[]),
        changed(Activity(A), keys=[["k", -1]]),
        changed(Activity(A), keys=[["k"]]),
        changed(Peeked(A, 1, (HELD,)), messages=[{}]),
        changed(Peek(ADMINISTRATOR, "a1", None, "id", 10, 1000), limit=-1),
    ],
    ids=lambda body: body[:60],
)
def test_hostile_bytes_are_refused_in_one_line(body: bytes) -> None:
    with pytest.raises(MessageError) as refused:
        decode(body)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("seconds", [0, -1, WATCH_MAX_S + 1, math.nan, math.inf, True, "5", None])
def test_a_watch_of_no_sensible_time_is_refused(seconds: Any) -> None:
    with pytest.raises(MessageError):
        decode(changed(Watch(ADMINISTRATOR, 1.0), seconds=seconds))


@pytest.mark.parametrize("answer", ["", "a.b", "#", "é", "a" * 65])
def test_an_answer_that_is_no_part_of_a_routing_key_is_refused(answer: str) -> None:
    with pytest.raises(MessageError):
        decode(changed(Skip(ADMINISTRATOR, "a1", "p-0-1"), answer=answer))


def test_more_positions_than_a_member_reports_are_refused() -> None:
    runs = tuple((2 * n, 2 * n) for n in range(4097))
    for positions in (
        Positions((("p", 5, runs),)),
        Positions(tuple(("p", n, ((0, 0),)) for n in range(513))),
        Positions(attempts=tuple(("p", n, 0, 1) for n in range(513))),
    ):
        with pytest.raises(MessageError):
            decode(encode(Knowledge(A, positions)))


def test_more_suspects_than_a_member_reports_are_refused() -> None:
    suspects = tuple(Suspected(("p", 7, n), 1, 2, 0, "m9") for n in range(513))
    with pytest.raises(MessageError):
        decode(encode(SuspectReport(A, suspects)))


def test_counts_of_a_suspect_have_a_bound() -> None:
    report = decode(encode(SuspectReport(A, (Suspected(("p", 7, 5), 2**80, 2**80, 2**80, "m9"),))))
    assert isinstance(report, SuspectReport)
    assert report.suspects == (Suspected(("p", 7, 5), 1_000_000, 1_000_000, 1_000_000, "m9"),)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_no_bytes_do_more_than_raise_a_message_error(body: bytes) -> None:
    with contextlib.suppress(MessageError):
        assert isinstance(decode(body), Message | None)


@given(st.sampled_from(list(map(encode, MESSAGES))), st.data())
def test_a_mutated_message_does_no_more_than_raise_a_message_error(body: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(body) - 1))
    mutated = body[:at] + data.draw(st.binary(max_size=3)) + body[at + 1 :]
    with contextlib.suppress(MessageError):
        assert isinstance(decode(mutated), Message | None)


@pytest.mark.parametrize(
    ("concurrency", "demand"), [(0, 0.5), (1, -0.5), (1, float("nan")), (1, float("inf"))], ids=str
)
def test_a_load_that_cannot_be_compared_is_refused(concurrency: int, demand: float) -> None:
    with pytest.raises(MessageError):
        decode(encode(Load(A, concurrency, (QueueLoad(3, demand, 0.01),))))


@pytest.mark.parametrize(
    "pace",
    [
        Pace(p50_s=1e308),
        Pace(p99_s=-5.0),
        Pace(keys=(KeyPace("k", 0.5),) * 6),
        Pace(keys=(KeyPace("k", 0.5, p50_s=1e308),)),
    ],
    ids=["p50", "p99", "keys", "key"],
)
def test_a_pace_that_no_view_can_show_is_refused(pace: Pace) -> None:
    assert decode(encode(Beat(A, pace=Pace(p50_s=1.0)))) is not None
    with pytest.raises(MessageError):
        decode(encode(Beat(A, pace=pace)))
