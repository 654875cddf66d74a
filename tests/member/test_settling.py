"""Settling: few acks, never for what is not done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.consuming.held import Attachment, Held


def deliveries(count: int) -> tuple[Attachment, list[Held]]:
    attachment = Attachment(0, 1)
    arrivals = [Held(attachment, tag) for tag in range(1, count + 1)]
    attachment.settling.delivered(arrivals)
    return attachment, arrivals


def test_only_the_contiguous_prefix_is_acknowledged() -> None:
    attachment, (one, two, three) = deliveries(3)
    settling = attachment.settling
    settling.done(two)
    assert settling.take() == []
    settling.done(one)
    assert settling.take() == [one, two]
    assert settling.take() == []
    settling.done(three)
    assert settling.take() == [three]
    assert settling.unacked == 0


def test_what_is_acked_singly_is_in_no_cumulative_ack_and_not_given_back() -> None:
    attachment, (one, two, three, four) = deliveries(4)
    settling = attachment.settling
    settling.done(three)
    settling.done(two)
    assert settling.take_scattered(1) == [three]
    assert settling.unacked == 3
    settling.done(one)
    assert settling.take() == [one, two]
    assert settling.unacked == 1
    assert settling.leave() == [four]


def test_a_cumulative_ack_ends_at_a_delivery_that_is_still_outstanding() -> None:
    """RabbitMQ answers 406 to an ack of a tag that was acked before."""
    attachment, (one, two, _) = deliveries(3)
    settling = attachment.settling
    settling.done(two)
    assert settling.take_scattered(5) == [two]
    settling.done(one)
    assert settling.take()[-1].tag == 1


def test_only_what_is_done_for_long_enough_is_acked_singly() -> None:
    attachment, (_, two, three) = deliveries(3)
    two.finished_at, three.finished_at = 1.0, 2.0
    attachment.settling.done(two)
    attachment.settling.done(three)
    assert attachment.settling.take_scattered(5, done_before=1.5) == [two]


@given(st.permutations(range(12)), st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_in_any_order_everything_is_acked_once_and_nothing_undone(order: list[int], acts: list[int]) -> None:
    attachment, arrivals = deliveries(12)
    settling = attachment.settling
    done: set[Held] = set()
    acked: list[Held] = []
    for place, act in zip(order, acts, strict=True):
        settling.done(arrivals[place])
        done.add(arrivals[place])
        if act == 1:
            batch = settling.take()
            if batch:
                covered = {held for held in arrivals if held.tag <= batch[-1].tag}
                assert covered <= done, "a cumulative ack would settle what is not done"
            acked += batch
        elif act == 2:
            acked += settling.take_scattered(2)
        assert settling.unacked == 12 - len(acked)
    acked += settling.take()
    assert sorted(held.tag for held in acked) == list(range(1, 13))
    assert settling.leave() == []
