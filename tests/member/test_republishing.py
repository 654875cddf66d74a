"""Republishing keeps its order under refusal."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.consuming.held import Attachment, Held
from lbg_sidecar.republishing import Republishing


def messages(count: int) -> list[Held]:
    attachment = Attachment(0, 1)
    return [Held(attachment, tag) for tag in range(1, count + 1)]


def sent(machine: Republishing, now: float, first_tag: int) -> list[Held]:
    out = []
    while (held := machine.next_to_send(now)) is not None:
        machine.sent(first_tag + len(out), held)
        out.append(held)
    return out


def test_the_first_goes_alone_and_then_many_are_on_the_way() -> None:
    machine = Republishing(window=3)
    one, two, three, four, five = messages(5)
    for held in (one, two, three, four, five):
        machine.offer(held)
    assert sent(machine, 0, 1) == [one]
    assert machine.resolved(1, 0, ok=True) is one
    assert sent(machine, 0, 2) == [two, three, four]


def test_after_a_refusal_everything_goes_out_again_in_order_one_at_a_time() -> None:
    machine = Republishing(window=5, pause_s=1.0)
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


def test_what_nobody_can_acknowledge_any_more_is_not_published() -> None:
    machine = Republishing()
    (held,) = messages(1)
    machine.offer(held)
    held.attachment.closed = True
    assert machine.next_to_send(0) is None


@given(st.integers(0, 2**32), st.integers(1, 30))
def test_with_ordered_refusal_the_receiver_sees_every_message_in_order(seed: int, count: int) -> None:
    chance = random.Random(seed)
    machine = Republishing(window=4, pause_s=1.0)
    held = messages(count)
    for each in held:
        machine.offer(each)
    now, tag = 0.0, 0
    pending: list[tuple[int, Held]] = []
    received: list[Held] = []
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
