"""Lanes: one call of a key at a time, in order, whatever ends in whatever order."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.lanes import Lanes


def held(attachment: Attachment, tag: int, lane: object) -> InFlight:
    message = InFlight(attachment, tag)
    message.lane = lane
    return message


def admitted(lanes: Lanes, attachment: Attachment, *keys: object) -> list[InFlight]:
    first = attachment.delivered + 1
    arrivals = [held(attachment, first + n, key) for n, key in enumerate(keys)]
    attachment.delivered += len(arrivals)
    lanes.admit(attachment, arrivals)
    return arrivals


def all_taken(lanes: Lanes) -> list[InFlight]:
    taken = []
    while (message := lanes.take()) is not None:
        taken.append(message)
    return taken


def test_messages_of_a_key_run_one_after_another_and_other_keys_beside_them() -> None:
    lanes, queue = Lanes(concurrency=8), Attachment(0, 1)
    a1, a2, b1, free1, free2 = admitted(lanes, queue, "a", "a", "b", None, None)
    assert all_taken(lanes) == [a1, b1, free1, free2]
    lanes.finish(a1)
    assert all_taken(lanes) == [a2]


def test_no_more_than_concurrency_run_over_all_attachments() -> None:
    lanes, one, two = Lanes(concurrency=2), Attachment(0, 1), Attachment(1, 1)
    admitted(lanes, one, "a", "b")
    admitted(lanes, two, "c", "d")
    taken = all_taken(lanes)
    assert [message.lane for message in taken] == ["a", "c"]
    lanes.finish(taken[0])
    assert [message.lane for message in all_taken(lanes)] == ["b"]


def test_a_delayed_message_blocks_its_lane_until_it_is_due_and_no_other() -> None:
    lanes, queue = Lanes(concurrency=4), Attachment(0, 1)
    a1, a2, b1, b2 = admitted(lanes, queue, "a", "a", "b", "b")
    assert all_taken(lanes) == [a1, b1]
    lanes.delay(a1, due=5.0)
    lanes.finish(b1)
    lanes.wake(4.9)
    assert all_taken(lanes) == [b2]
    assert lanes.next_due() == 5.0
    lanes.wake(5.0)
    assert all_taken(lanes) == [a1]
    lanes.finish(a1)
    assert all_taken(lanes) == [a2]


def test_a_parked_message_frees_its_slot_and_blocks_its_lane() -> None:
    lanes, queue = Lanes(concurrency=1), Attachment(0, 1)
    a1, a2, b1 = admitted(lanes, queue, "a", "a", "b")
    assert all_taken(lanes) == [a1]
    lanes.await_confirm(a1)
    assert all_taken(lanes) == [b1]
    lanes.finish(b1)
    assert all_taken(lanes) == []
    lanes.confirmed(a1)
    assert all_taken(lanes) == [a2]


def test_a_paused_attachment_starts_only_what_is_older_than_what_was_started() -> None:
    lanes, queue = Lanes(concurrency=2), Attachment(0, 1)
    a1, a2, b3, c4 = admitted(lanes, queue, "a", "a", "b", "c")
    assert all_taken(lanes) == [a1, b3]
    lanes.pause(queue)
    admitted(lanes, queue, "d")
    lanes.finish(b3)
    lanes.finish(a1)
    assert not queue.drained
    assert all_taken(lanes) == [a2], (
        "it lies before b3, which is done: without it b3 could not be acknowledged"
    )
    lanes.finish(a2)
    assert queue.drained
    lanes.resume(queue)
    assert [message.lane for message in all_taken(lanes)] == ["c", "d"]
    assert c4 in queue.running


def test_a_halted_attachment_starts_nothing_and_thaw_brings_all_back() -> None:
    lanes, queue = Lanes(concurrency=2), Attachment(0, 1)
    a1, a2, b3 = admitted(lanes, queue, "a", "a", "b")
    assert all_taken(lanes) == [a1, b3]
    lanes.pause(queue)
    lanes.finish(a1)
    lanes.halt(queue)
    lanes.finish(b3)
    assert queue.drained
    assert all_taken(lanes) == []
    lanes.resume(queue)
    assert all_taken(lanes) == [a2]


def test_an_attachment_is_paused_and_drained_with_that_of_released_copies() -> None:
    lanes, queue, beside = Lanes(concurrency=1), Attachment(0, 1), Attachment(0, 1)
    queue.beside, beside.beside_of = beside, queue
    first, second = admitted(lanes, beside, "a", "b")
    assert all_taken(lanes) == [first]
    lanes.pause(queue)
    assert not queue.drained
    lanes.finish(first)
    assert queue.drained
    assert not all_taken(lanes)
    lanes.resume(queue)
    assert all_taken(lanes) == [second]
    lanes.pause(queue)
    lanes.halt(queue)
    lanes.delay(second, due=0.0)
    lanes.wake(1.0)
    assert not all_taken(lanes)


def test_a_closed_attachment_forgets_what_waits_and_reports_what_runs() -> None:
    lanes, queue = Lanes(concurrency=4), Attachment(0, 1)
    a1, _, b1 = admitted(lanes, queue, "a", "a", "b")
    assert all_taken(lanes) == [a1, b1]
    lanes.delay(b1, due=1.0)
    assert lanes.close(queue) == [a1]
    lanes.finish(a1)
    lanes.wake(2.0)
    assert lanes.next_due() is None
    assert all_taken(lanes) == []
    admitted(lanes, queue, "c")
    assert all_taken(lanes) == []


def test_a_lane_waits_for_its_aborted_call_also_in_a_newer_attachment() -> None:
    lanes, old = Lanes(concurrency=4), Attachment(0, 1)
    (a1,) = admitted(lanes, old, "a")
    assert all_taken(lanes) == [a1]
    lanes.close(old)
    new = Attachment(0, 2)
    a1_again, a2, b1 = admitted(lanes, new, "a", "a", "b")
    assert all_taken(lanes) == [b1]
    lanes.finish(a1)
    assert all_taken(lanes) == [a1_again]
    lanes.finish(a1_again)
    assert all_taken(lanes) == [a2]


def test_the_same_key_on_another_queue_is_another_lane() -> None:
    lanes, one, two = Lanes(concurrency=4), Attachment(0, 1), Attachment(1, 1)
    (a,) = admitted(lanes, one, "a")
    all_taken(lanes)
    lanes.close(one)
    (other,) = admitted(lanes, two, "a")
    assert all_taken(lanes) == [other]
    lanes.finish(a)


@given(
    seed=st.integers(0, 2**32),
    concurrency=st.integers(1, 5),
    keys=st.lists(st.sampled_from(["a", "b", "c", None]), max_size=40),
)
def test_any_history_keeps_order_limit_and_every_message(
    seed: int, concurrency: int, keys: list[str | None]
) -> None:
    chance = random.Random(seed)
    lanes = Lanes(concurrency=concurrency)
    attachments = [Attachment(0, 1), Attachment(1, 1)]
    arrivals = [(attachments[n % 2], key) for n, key in enumerate(keys)]
    running: list[InFlight] = []
    refused: list[InFlight] = []
    finished: dict[object, list[int]] = {}
    now = 0.0
    total = 0
    while True:
        now += 1
        action = chance.randrange(8)
        if arrivals and action < 2:
            attachment, key = arrivals.pop(0)
            admitted(lanes, attachment, key)
        elif action == 2:
            lanes.pause(attachments[chance.randrange(2)])
        elif action == 3:
            lanes.resume(attachments[chance.randrange(2)])
        elif running:
            message = running.pop(chance.randrange(len(running)))
            end = chance.randrange(4)
            if end == 0:
                lanes.delay(message, now + chance.randrange(5))
            elif end == 1:
                lanes.await_confirm(message)
                refused.append(message)
            else:
                lanes.finish(message)
                finished.setdefault((message.attachment.queue, message.lane), []).append(message.tag)
                total += 1
        elif refused:
            message = refused.pop()
            lanes.confirmed(message)
            finished.setdefault((message.attachment.queue, message.lane), []).append(message.tag)
            total += 1
        lanes.wake(now)
        while (taken := lanes.take()) is not None:
            same = [m for m in running if m.lane is not None and m.lane == taken.lane]
            assert not any(m.attachment is taken.attachment for m in same)
            running.append(taken)
        assert lanes.running == len(running) <= concurrency
        if total == len(keys):
            break
        assert now < 10_000
    for (_, lane), tags in finished.items():
        if lane is not None:
            assert tags == sorted(tags)
    assert all(attachment.drained or attachment.paused for attachment in attachments)
