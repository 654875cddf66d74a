"""Settlement: few acks, and none for unfinished messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.core.delivery import Attachment, InFlight


def deliveries(count: int) -> tuple[Attachment, list[InFlight]]:
    attachment = Attachment(0, 1)
    arrivals = [InFlight(attachment, tag) for tag in range(1, count + 1)]
    attachment.ack_window.delivered(arrivals)
    return attachment, arrivals


def test_what_is_acked_singly_is_in_no_cumulative_ack_and_not_given_back() -> None:
    attachment, (one, two, three, four) = deliveries(4)
    ack_window = attachment.ack_window
    ack_window.done(three)
    ack_window.done(two)
    assert ack_window.pop_scattered(1) == [three]
    assert ack_window.unacked == 3
    ack_window.done(one)
    assert ack_window.take() == [one, two]
    assert ack_window.unacked == 1
    assert ack_window.leave() == [four]


def test_only_what_is_done_for_long_enough_is_acked_singly() -> None:
    attachment, (_, two, three) = deliveries(3)
    two.finished_at, three.finished_at = 1.0, 2.0
    attachment.ack_window.done(two)
    attachment.ack_window.done(three)
    assert attachment.ack_window.pop_scattered(5, is_due=lambda held: held.finished_at == 1.0) == [two]


@given(st.permutations(range(12)), st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_in_any_order_everything_is_acked_once_and_nothing_undone(order: list[int], acts: list[int]) -> None:
    attachment, arrivals = deliveries(12)
    ack_window = attachment.ack_window
    done: set[InFlight] = set()
    acked: list[InFlight] = []
    for place, act in zip(order, acts, strict=True):
        ack_window.done(arrivals[place])
        done.add(arrivals[place])
        if act == 1:
            batch = ack_window.take()
            if batch:
                covered = {held for held in arrivals if held.tag <= batch[-1].tag}
                assert covered <= done, "a cumulative ack would settle what is not done"
            acked += batch
        elif act == 2:
            acked += ack_window.pop_scattered(2)
        assert ack_window.unacked == 12 - len(acked)
    acked += ack_window.take()
    assert sorted(held.tag for held in acked) == list(range(1, 13))
    assert ack_window.leave() == []
