"""Republishing keeps its order under refusal."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.retransmit import Retransmitter, RetransmitTimeouts


def messages(count: int) -> list[InFlight]:
    attachment = Attachment(0, 1)
    return [InFlight(attachment, tag) for tag in range(1, count + 1)]


def sent(machine: Retransmitter, now: float, first_tag: int) -> list[InFlight]:
    out = []
    while (held := machine.next_to_send(now)) is not None:
        machine.sent(first_tag + len(out), held, now)
        out.append(held)
    return out


def test_the_first_goes_alone_and_then_many_are_on_the_way() -> None:
    machine = Retransmitter(window=3)
    one, two, three, four, five = messages(5)
    for held in (one, two, three, four, five):
        machine.offer(held)
    assert sent(machine, 0, 1) == [one]
    assert machine.resolved(1, 0, ok=True) is one
    assert sent(machine, 0, 2) == [two, three, four]


def test_after_a_refusal_everything_goes_out_again_in_order_one_at_a_time() -> None:
    machine = Retransmitter(window=5, pause_s=1.0)
    held = messages(4)
    for each in held:
        machine.offer(each)
    sent(machine, 0, 1)
    machine.resolved(1, 0, ok=True)
    assert sent(machine, 0, 2) == held[1:]
    machine.resolved(3, 0, ok=False)
    assert machine.next_to_send(0) is None, "a later one must not overtake"
    machine.resolved(2, 0, ok=False)
    machine.resolved(4, 0, ok=False)
    assert sent(machine, 0.5, 5) == []
    assert machine.next_due == 1.0
    assert sent(machine, 1.0, 5) == [held[1]]
    machine.resolved(5, 1.0, ok=True)
    assert sent(machine, 1.0, 6) == held[2:]


@pytest.mark.parametrize("how", ["its channel is closed", "it is another's"])
def test_what_nobody_can_acknowledge_any_more_is_not_published(how: str) -> None:
    machine = Retransmitter()
    (held,) = messages(1)
    machine.offer(held)
    if how == "it is another's":
        held.is_taken = True
    else:
        held.attachment.closed = True
    assert machine.next_to_send(0) is None


PATIENCE = RetransmitTimeouts(answer_s=20.0, refused_s=1.0)


def test_a_channel_is_doubted_when_its_oldest_message_has_no_answer() -> None:
    machine = Retransmitter(patience=PATIENCE)
    one, two, three = messages(3)
    for each in (one, two, three):
        machine.offer(each)
    sent(machine, 0, 1)
    machine.resolved(1, 5, ok=True)
    assert sent(machine, 5, 2) == [two, three]
    machine.resolved(3, 24, ok=True)
    assert machine.doubt(24.9) is None
    assert machine.doubt(25) == "has no answer after 20 s"
    machine.renewed(25)
    assert machine.doubt(25) is None
    assert sent(machine, 25, 1) == [two]


def test_the_time_in_which_the_broker_takes_nothing_is_no_reason_for_doubt() -> None:
    machine = Retransmitter(patience=PATIENCE)
    machine.offer(*messages(1))
    sent(machine, 0, 1)
    machine.blocked(100)
    assert machine.doubt(119) is None
    assert machine.doubt(120) is not None


def test_a_channel_that_refuses_everything_is_doubted_and_the_next_one_twice_as_late() -> None:
    machine = Retransmitter(pause_s=0.5, patience=PATIENCE)
    machine.offer(*messages(1))
    for now, doubts in ((0.0, False), (0.5, False), (1.0, True)):
        sent(machine, now, 1)
        assert machine.doubt(now) is None, "an answer is on its way"
        machine.resolved(1, now, ok=False)
        assert (machine.doubt(now) is not None) == doubts
    machine.renewed(1.0)
    for now, doubts in ((1.0, False), (2.5, False), (3.0, True)):
        sent(machine, now, 1)
        machine.resolved(1, now, ok=False)
        assert (machine.doubt(now) is not None) == doubts


def test_a_message_that_reaches_no_queue_is_no_reason_for_doubt() -> None:
    machine = Retransmitter(pause_s=0.5, patience=PATIENCE)
    machine.offer(*messages(1))
    for now in range(30):
        sent(machine, now, 1)
        assert machine.resolved(1, now, ok=True, returned=True) is None
        assert machine.doubt(now) is None


def test_a_new_channel_gets_what_was_refused_or_not_answered_in_order_before_the_rest() -> None:
    machine = Retransmitter(window=4, patience=PATIENCE)
    held = messages(7)
    for each in held:
        machine.offer(each)
    sent(machine, 0, 1)
    machine.resolved(1, 0, ok=True)
    assert sent(machine, 0, 2) == held[1:5]
    machine.resolved(2, 0, ok=False)
    machine.resolved(4, 0, ok=True)
    machine.resolved(5, 0, ok=False)
    machine.renewed(20)
    assert sent(machine, 20, 1) == [held[1]], "one at a time until one gets through"
    machine.resolved(1, 20, ok=True)
    assert sent(machine, 20, 2) == [held[2], held[4], held[5], held[6]]


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_over_channels_that_refuse_or_fall_silent_each_is_confirmed_once_and_in_order(
    seed: int, count: int
) -> None:
    chance = random.Random(seed)
    machine = Retransmitter(window=4, pause_s=0.5, patience=RetransmitTimeouts(answer_s=3.0, refused_s=1.0))
    held = messages(count)
    for each in held:
        machine.offer(each)
    now, tag = 0.0, 0
    kind = "takes"
    pending: list[int] = []
    confirmed: list[InFlight] = []
    while len(confirmed) < count:
        now += 0.5
        assert now < 2000
        if machine.doubt(now) is not None:
            machine.renewed(now)
            pending, tag = [], 0
            kind = chance.choice(["takes", "refuses", "silent"])
        elif chance.random() < 0.1:
            kind = chance.choice(["refuses", "silent"])
        batch = sent(machine, now, tag + 1)
        pending += range(tag + 1, tag + 1 + len(batch))
        tag += len(batch)
        for _ in range(0 if kind == "silent" else chance.randrange(len(pending) + 1)):
            taken = machine.resolved(pending.pop(0), now, ok=kind == "takes")
            if taken is not None:
                confirmed.append(taken)
    assert confirmed == held
    assert machine.next_to_send(now + 100) is None


@given(st.integers(0, 2**32), st.integers(1, 30))
def test_with_ordered_refusal_the_receiver_sees_every_message_in_order(seed: int, count: int) -> None:
    chance = random.Random(seed)
    machine = Retransmitter(window=4, pause_s=1.0)
    held = messages(count)
    for each in held:
        machine.offer(each)
    now, tag = 0.0, 0
    pending: list[tuple[int, InFlight]] = []
    received: list[InFlight] = []
    refusing = False
    while len(received) < count:
        now += 0.5
        assert now < 1000
        batch = sent(machine, now, tag + 1)
        pending += [(tag + 1 + n, each) for n, each in enumerate(batch)]
        tag += len(batch)
        if len(batch) and len(pending) == len(batch):
            refusing = False  # a new attempt: the channel is open again
        rounds = chance.randrange(len(pending) + 1)
        for _ in range(rounds):
            at, each = pending.pop(0)
            refusing = refusing or chance.random() < 0.2
            if not refusing:
                received.append(each)
            machine.resolved(at, now, ok=not refusing)
    assert received == held
