"""Republishing keeps its order under refusal."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.client.retransmit import Outgoing
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.message_states import State
from lbg_sidecar.core.retransmit import SETTINGS, Retransmitter, RetransmitTimeouts

Publish = Outgoing[InFlight]


def messages(count: int) -> list[InFlight]:
    attachment = Attachment(0, 1)
    return [InFlight(attachment, tag) for tag in range(1, count + 1)]


def of(window: int = 1024, *, patience: RetransmitTimeouts | None = None) -> Retransmitter[InFlight]:
    return Retransmitter(settings=replace(SETTINGS, window_messages=window), patience=patience)


def sendable(machine: Retransmitter[InFlight], now: float) -> list[Publish]:
    sends = []
    while (message := machine.next_to_send(now)) is not None:
        sends.append(message)
    return sends


def items(sends: list[Publish]) -> list[InFlight]:
    return [message.item for message in sends]


def test_the_first_goes_alone_and_then_many_are_on_the_way() -> None:
    machine = of(window=3)
    held = messages(7)
    for each in held:
        machine.offer(each)
    rounds = []
    for now in range(3):
        sends = sendable(machine, now)
        rounds.append(items(sends))
        assert [machine.answered(message, now, ok=True) for message in sends] == items(sends)
    assert rounds == [held[:1], held[1:3], held[3:6]], "doubled each round trip, up to the window"


def test_after_a_refusal_everything_goes_out_again_in_order_one_at_a_time() -> None:
    machine = of(window=3)
    held = messages(6)
    for each in held:
        machine.offer(each)
    for _ in range(2):
        for message in sendable(machine, 0):
            machine.answered(message, 0, ok=True)
    first, second, third = sendable(machine, 0)
    assert items([first, second, third]) == held[3:]
    machine.answered(second, 0, ok=False)
    assert sendable(machine, 0) == [], "a later one must not overtake"
    machine.answered(first, 0, ok=False)
    machine.answered(third, 0, ok=False)
    assert sendable(machine, 0.25) == []
    assert machine.next_due == 0.5
    (again,) = sendable(machine, 0.5)
    assert again.item is held[3]
    machine.answered(again, 0.5, ok=True)
    assert machine.next_due is None
    assert items(sendable(machine, 0.5)) == held[4:]


@pytest.mark.parametrize("how", ["its channel is closed", "it is another's"])
def test_what_nobody_can_acknowledge_any_more_is_not_published(how: str) -> None:
    machine = of(window=2)
    held = messages(3)
    for each in held:
        machine.offer(each)
    if how == "it is another's":
        held[0].state = held[1].state = State.GONE
        assert items(sendable(machine, 0)) == [held[2]], "and takes no place in the window"
    else:
        for each in held:
            each.state = State.GONE
        assert sendable(machine, 0) == []
        assert not machine.waits


PATIENCE = RetransmitTimeouts(answer_s=20.0, refused_s=1.0)


def test_a_channel_is_doubted_when_it_owes_answers_and_gives_none() -> None:
    machine = of(patience=PATIENCE)
    held = messages(3)
    for each in held:
        machine.offer(each)
    (one,) = sendable(machine, 0)
    machine.answered(one, 5, ok=True)
    two, three = sendable(machine, 6)
    machine.answered(three, 24, ok=True)
    assert machine.doubt(43.9) is None, "it answered at 24"
    assert machine.doubt(44) == "has no answer after 20 s"
    machine.renewed(44)
    assert machine.doubt(44) is None
    assert sendable(machine, 44) == [two]


def test_the_time_in_which_the_broker_takes_nothing_is_no_reason_for_doubt() -> None:
    machine = of(patience=PATIENCE)
    machine.offer(*messages(1))
    sendable(machine, 0)
    machine.blocked(100)
    assert machine.doubt(119) is None
    assert machine.doubt(120) is not None


def refused(machine: Retransmitter[InFlight], times: tuple[tuple[float, bool], ...]) -> None:
    for now, doubts in times:
        (message,) = sendable(machine, now)
        assert machine.doubt(now) is None, "an answer is on its way"
        machine.answered(message, now, ok=False)
        assert (machine.doubt(now) is not None) == doubts


def test_a_channel_that_refuses_everything_is_doubted_and_the_next_one_twice_as_late() -> None:
    machine = of(patience=PATIENCE)
    machine.offer(*messages(1))
    refused(machine, ((0.0, False), (0.5, False), (1.0, True)))
    machine.renewed(1.0)
    refused(machine, ((1.0, False), (2.5, False), (3.0, True)))


def test_a_channel_that_works_again_is_doubted_as_soon_as_the_first() -> None:
    machine = of(patience=PATIENCE)
    for each in messages(2):
        machine.offer(each)
    refused(machine, ((0.0, False), (1.0, True)))
    machine.renewed(1.0)
    (message,) = sendable(machine, 1.0)
    machine.answered(message, 1.0, ok=True)
    refused(machine, ((2.0, False), (2.5, False), (3.0, True)))


def test_a_message_that_reaches_no_queue_is_no_reason_for_doubt() -> None:
    machine = of(patience=PATIENCE)
    machine.offer(*messages(1))
    for now in range(30):
        (message,) = sendable(machine, now)
        assert machine.answered(message, now, ok=True, returned=True) is None
        assert machine.doubt(now) is None


def test_a_new_channel_gets_what_was_refused_or_not_answered_in_order_before_the_rest() -> None:
    machine = of(window=4, patience=PATIENCE)
    held = messages(10)
    for each in held:
        machine.offer(each)
    for _ in range(2):
        for message in sendable(machine, 0):
            machine.answered(message, 0, ok=True)
    sends = sendable(machine, 0)
    assert items(sends) == held[3:7]
    machine.answered(sends[0], 0, ok=False)
    machine.answered(sends[2], 0, ok=True)
    machine.answered(sends[3], 0, ok=False)
    machine.renewed(20)
    order = []
    for _ in range(6):
        sends = sendable(machine, 20)
        order += items(sends)
        assert len(order) > 1 or len(sends) == 1, "one at a time until one gets through"
        for message in sends:
            machine.answered(message, 20, ok=True)
    assert order == [held[3], held[4], held[6], *held[7:]]


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_over_channels_that_refuse_or_fall_silent_each_is_confirmed_once_and_in_order(
    seed: int, count: int
) -> None:
    chance = random.Random(seed)
    machine = of(window=4, patience=RetransmitTimeouts(answer_s=3.0, refused_s=1.0))
    held = messages(count)
    for each in held:
        machine.offer(each)
    now = 0.0
    kind = "takes"
    pending: list[Publish] = []
    confirmed: list[InFlight] = []
    while len(confirmed) < count:
        now += 0.5
        assert now < 2000
        if machine.doubt(now) is not None:
            machine.renewed(now)
            pending = []
            kind = chance.choice(["takes", "refuses", "silent"])
        elif chance.random() < 0.1:
            kind = chance.choice(["refuses", "silent"])
        pending += sendable(machine, now)
        for _ in range(0 if kind == "silent" else chance.randrange(len(pending) + 1)):
            taken = machine.answered(pending.pop(0), now, ok=kind == "takes")
            if taken is not None:
                confirmed.append(taken)
    assert confirmed == held
    assert sendable(machine, now + 100) == []


@given(st.integers(0, 2**32), st.integers(1, 30))
def test_with_ordered_refusal_the_receiver_sees_every_message_in_order(seed: int, count: int) -> None:
    chance = random.Random(seed)
    machine = of(window=4)
    held = messages(count)
    for each in held:
        machine.offer(each)
    now = 0.0
    pending: list[Publish] = []
    received: list[InFlight] = []
    refusing = False
    while len(received) < count:
        now += 0.5
        assert now < 1000
        batch = sendable(machine, now)
        pending += batch
        if len(batch) and len(pending) == len(batch):
            refusing = False  # a new attempt: the channel is open again
        for _ in range(chance.randrange(len(pending) + 1)):
            message = pending.pop(0)
            refusing = refusing or chance.random() < 0.2
            if not refusing:
                received.append(message.item)
            machine.answered(message, now, ok=not refusing)
    assert received == held
