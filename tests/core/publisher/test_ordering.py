from __future__ import annotations

import pytest

from lbg_core.group import GroupSpec, SpecError, hash_of
from lbg_core.publisher.errors import Unroutable
from lbg_core.publisher.send_window import PublishingSettings, SendWindow
from lbg_core.publisher.stamper import StampedMessage, StartingPoint

ONE_QUEUE = GroupSpec("g", "g", hash_count=1, queue_count=1, queue_size_mb=1, client_username="u")
TWO_QUEUES = GroupSpec("g", "g", hash_count=2, queue_count=2, queue_size_mb=1, client_username="u")
KEY_OF_QUEUE = {hash_of(key, 2): key for key in ("a", "b", "c", "d", "e", "f")}
SETTINGS = PublishingSettings(
    window_messages=8, first_window_messages=4, backoff_first_s=1.0, backoff_max_s=4.0
)


def machine_of(
    spec: GroupSpec = ONE_QUEUE, *, fenced: bool = True, settings: PublishingSettings = SETTINGS
) -> SendWindow:
    machine = SendWindow(spec, settings)
    machine.connected(fenced=fenced)
    return machine


def accept(machine: SendWindow, count: int, key: str | None = "k") -> list[StampedMessage]:
    return [machine.accept(key, "t", b"body") for _ in range(count)]


def seqs(messages: list[StampedMessage]) -> list[int]:
    return [message.seq for message in messages]


def test_sequences_count_per_hash_from_zero_and_routing_keys_carry_the_hash() -> None:
    machine = machine_of(TWO_QUEUES)
    stamped = [machine.accept(KEY_OF_QUEUE[queue], "t.x", b"") for queue in (0, 1, 0, 0, 1)]
    assert [(each.hash, each.seq) for each in stamped] == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1)]
    assert stamped[1].routing_key == "g.1.t.x"


def test_no_more_than_the_window_is_sent_and_each_success_opens_it_by_one_more() -> None:
    machine = machine_of()
    accept(machine, 20)
    assert seqs(machine.step(0).sends) == [0, 1, 2, 3]
    assert machine.step(0).sends == []
    machine.answered(2, multiple=True, ok=True, now=0)
    assert seqs(machine.step(0).sends) == [4, 5, 6, 7]
    machine.answered(6, multiple=True, ok=True, now=0)
    assert machine.in_flight + len(machine.step(0).sends) == 8, "the maximum"


def test_a_refusal_stops_the_queue_until_every_answer_is_in_and_resends_in_order_one_by_one() -> None:
    machine = machine_of()
    accept(machine, 6)
    machine.step(0)
    machine.answered(2, multiple=False, ok=False, now=0)
    machine.answered(1, multiple=False, ok=True, now=0)
    assert machine.step(0).sends == [], "3 and 4 are still open"
    machine.answered(4, multiple=True, ok=False, now=0)
    waiting = machine.step(0.5)
    assert (waiting.sends, waiting.barrier, waiting.wake_at) == ([], False, 1.0)
    again = machine.step(1.0)
    assert again.barrier
    assert seqs(again.sends) == [1]
    machine.answered(5, multiple=False, ok=True, now=1)
    assert seqs(machine.step(1).sends) == [2, 3]
    assert machine.counts.refused == 3
    assert machine.counts.accepted_after_gap == 0


def test_what_was_accepted_behind_the_gap_is_reported_and_not_sent_again() -> None:
    machine = machine_of(fenced=False)
    messages = accept(machine, 3)
    machine.step(0)
    machine.answered(3, multiple=False, ok=True, now=0)
    machine.answered(1, multiple=False, ok=False, now=0)
    machine.answered(2, multiple=False, ok=False, now=0)
    assert machine.counts.accepted_after_gap == 1
    assert machine.counts.inverted == 1
    assert messages[2].inverted
    again = machine.step(1)
    assert not again.barrier, "only a broker with ordered refusal needs one"
    assert seqs(again.sends) == [0]
    machine.answered(4, multiple=False, ok=True, now=1)
    assert seqs(machine.step(1).sends) == [1]
    machine.answered(5, multiple=False, ok=True, now=1)
    assert machine.is_settled


def test_other_keys_behind_a_gap_are_reported_but_are_no_inversion() -> None:
    machine = machine_of(fenced=False)
    machine.accept("k", "t", b"")
    machine.accept("other", "t", b"")
    machine.accept(None, "t", b"")
    machine.step(0)
    machine.answered(1, multiple=False, ok=False, now=0)
    machine.answered(3, multiple=True, ok=True, now=0)
    assert (machine.counts.accepted_after_gap, machine.counts.inverted) == (2, 0)


def test_the_wait_doubles_while_the_queue_stays_full_and_starts_over_after_a_success() -> None:
    machine = machine_of()
    accept(machine, 2)
    now, tag, waits = 0.0, 1, []
    machine.step(now)
    machine.answered(2, multiple=True, ok=False, now=now)
    tag = 3
    for _ in range(4):
        wake_at = machine.step(now).wake_at
        assert wake_at is not None
        waits.append(wake_at - now)
        now = wake_at
        assert seqs(machine.step(now).sends) == [0]
        machine.answered(tag, multiple=False, ok=False, now=now)
        tag += 1
    assert waits == [1, 2, 4, 4]
    now += 4
    machine.step(now)
    machine.answered(tag, multiple=False, ok=True, now=now)
    machine.step(now)
    machine.answered(tag + 1, multiple=False, ok=False, now=now)
    assert machine.step(now).wake_at == now + 1


def test_another_queue_goes_on_while_one_is_full_and_pauses_only_behind_the_barrier() -> None:
    machine = machine_of(TWO_QUEUES)
    accept(machine, 1, KEY_OF_QUEUE[0])
    accept(machine, 2, KEY_OF_QUEUE[1])
    machine.step(0)
    machine.answered(1, multiple=False, ok=False, now=0)
    accept(machine, 1, KEY_OF_QUEUE[1])
    assert [each.queue for each in machine.step(0).sends] == [1]
    step = machine.step(1)
    assert (step.barrier, [each.queue for each in step.sends]) == (True, [0])
    accept(machine, 1, KEY_OF_QUEUE[1])
    assert machine.step(1).sends == [], "one of the open answers may be a refusal"
    machine.answered(4, multiple=True, ok=True, now=1)
    assert [each.queue for each in machine.step(1).sends] == [1]


def test_after_a_lost_connection_the_unanswered_go_again_in_order_and_are_counted_once() -> None:
    machine = machine_of()
    accept(machine, 6)
    machine.step(0)
    machine.answered(1, multiple=False, ok=True, now=0)
    for _ in range(2):
        machine.disconnected(0)
        assert machine.step(0).sends == []
        machine.connected(fenced=True)
        step = machine.step(0)
        assert seqs(step.sends) == [1, 2, 3, 4]
    assert machine.counts.maybe_twice == 4
    machine.answered(4, multiple=True, ok=True, now=0)
    assert seqs(machine.step(0).sends) == [5]
    assert machine.counts.confirmed == 5


def test_a_refused_message_is_not_maybe_twice_when_the_connection_is_lost() -> None:
    machine = machine_of()
    accept(machine, 3)
    machine.step(0)
    machine.answered(1, multiple=False, ok=False, now=0)
    machine.disconnected(0)
    machine.connected(fenced=True)
    assert machine.step(0).sends == [], "the queue was full: it waits"
    assert seqs(machine.step(1).sends) == [0]
    assert machine.counts.maybe_twice == 2


def test_a_blocked_connection_sends_nothing_and_still_takes_answers() -> None:
    machine = machine_of()
    accept(machine, 6)
    machine.step(0)
    machine.blocked(True, 20.0)
    machine.answered(4, multiple=True, ok=True, now=0)
    assert machine.step(0).sends == []
    machine.blocked(False, 20.0)
    assert seqs(machine.step(0).sends) == [4, 5]


def test_a_returned_message_is_an_error_that_names_the_routing_key_and_is_never_confirmed() -> None:
    machine = machine_of()
    accept(machine, 2)
    machine.step(0)
    machine.returned("g.0.t", "312 NO_ROUTE")
    machine.answered(1, multiple=False, ok=True, now=0)
    assert isinstance(machine.failure, Unroutable)
    assert "g.0.t" in str(machine.failure)
    assert machine.counts.confirmed == 0
    assert machine.floor.position == 0


def test_room_is_bounded_in_bytes_and_comes_back_with_confirms() -> None:
    machine = machine_of(settings=PublishingSettings(read_ahead_bytes=2000))
    while machine.has_room:
        machine.accept("k", "t", bytes(600))
    assert machine.stamper.position == 2
    machine.step(0)
    machine.answered(2, multiple=True, ok=True, now=0)
    assert machine.has_room
    assert machine.is_settled


def test_room_is_bounded_in_messages_behind_a_stuck_queue() -> None:
    machine = machine_of(TWO_QUEUES, settings=PublishingSettings(span_messages=3))
    accept(machine, 1, KEY_OF_QUEUE[0])
    accept(machine, 2, KEY_OF_QUEUE[1])
    machine.step(0)
    machine.answered(3, multiple=False, ok=True, now=0)
    machine.answered(2, multiple=False, ok=True, now=0)
    assert not machine.has_room
    machine.answered(1, multiple=False, ok=True, now=0)
    assert machine.has_room


def test_one_per_key_sends_a_key_again_only_after_its_answer() -> None:
    machine = machine_of(settings=PublishingSettings(one_per_key=True))
    for key in ("a", "b", None, None, "a", "c"):
        machine.accept(key, "t", b"")
    assert [each.key for each in machine.step(0).sends] == ["a", "b", None, None]
    machine.answered(1, multiple=False, ok=True, now=0)
    assert [each.key for each in machine.step(0).sends] == ["a", "c"]


def test_answers_to_tags_that_are_not_open_change_nothing() -> None:
    machine = machine_of()
    accept(machine, 1)
    machine.step(0)
    assert machine.answered(7, multiple=False, ok=True, now=0) == []
    assert seqs(machine.answered(0, multiple=True, ok=True, now=0)) == [0]
    assert machine.answered(1, multiple=False, ok=False, now=0) == []
    assert machine.is_settled


def test_a_topic_that_does_not_fit_uses_up_no_sequence_number() -> None:
    machine = machine_of()
    with pytest.raises(SpecError):
        machine.accept("k", "t" * 300, b"")
    assert accept(machine, 1)[0].seq == 0
    assert machine.counts.published == 1


def test_messages_without_a_key_get_the_same_hashes_in_every_run() -> None:
    spec = GroupSpec("g", "g", hash_count=100, queue_count=4, queue_size_mb=1, client_username="u")
    first = [SendWindow(spec, seed=3).accept(None, "t", b"").hash]
    runs = [
        [machine.accept(None, "t", b"").hash for _ in range(1000)]
        for machine in (SendWindow(spec, seed=3), SendWindow(spec, seed=3))
    ]
    assert runs[0] == runs[1]
    assert runs[0][:1] == first
    assert len(set(runs[0])) == 100, "spread over all hashes"
    assert SendWindow(spec).accept("", "t", b"").key is None


def test_a_resumed_run_skips_the_confirmed_and_counts_what_may_have_been_sent() -> None:
    start = StartingPoint(
        position=3, digest=1, next_seq=[3], confirmed_seq=[5], sent_position=7, is_resumed=True
    )
    machine = SendWindow(ONE_QUEUE, start=start)
    machine.connected(fenced=True)
    messages = accept(machine, 4)
    assert seqs(messages) == [3, 4, 5, 6]
    assert seqs(machine.step(0).sends) == [5, 6]
    assert machine.counts.skipped == 2
    assert machine.counts.maybe_twice == 2
    assert machine.floor.position == 5


def test_a_new_epoch_begins_when_all_of_the_old_one_is_confirmed() -> None:
    start = StartingPoint(
        position=3, digest=1, next_seq=[3], confirmed_seq=[3], sent_position=4, is_resumed=True
    )
    machine = SendWindow(ONE_QUEUE, start=start)
    machine.connected(fenced=True)
    accept(machine, 1)
    assert not machine.has_room
    with pytest.raises(RuntimeError, match="check has_room first"):
        accept(machine, 1)
    machine.step(0)
    assert not machine.has_room
    machine.answered(1, multiple=False, ok=True, now=0)
    assert machine.has_room
    assert (machine.ended_epoch, machine.new_epoch_count) == (None, 0)
    assert seqs(accept(machine, 2)) == [0, 1]
    assert (machine.ended_epoch, machine.new_epoch_count) == ([4], 2)
    assert machine.has_room
    assert seqs(machine.step(0).sends) == [0, 1]
    machine.answered(3, multiple=True, ok=True, now=0)
    assert machine.floor.position == 6
    assert machine.floor.next_seq == machine.confirmed_seq == [2]


def test_what_was_accepted_behind_a_gap_does_not_make_the_gap_count_as_confirmed() -> None:
    """Else a publisher that dies before the refused message is accepted would never send it."""
    machine = machine_of(fenced=False)
    accept(machine, 3)
    machine.step(0)
    machine.answered(1, multiple=False, ok=False, now=0)
    machine.answered(3, multiple=True, ok=True, now=0)
    assert machine.counts.accepted_after_gap == 2
    assert machine.confirmed_seq == [0]
    assert machine.floor.position == 0
    machine.step(1)
    machine.answered(4, multiple=False, ok=True, now=1)
    assert machine.floor.position == 3


def test_a_queue_that_answers_nothing_is_silent_until_it_does() -> None:
    machine = machine_of(TWO_QUEUES)
    for queue in (0, 1):
        accept(machine, 2, KEY_OF_QUEUE[queue])
    machine.step(10.0)
    assert machine.silent_queues(14.9, for_s=5) == set()
    machine.answered(1, multiple=False, ok=True, now=14.9)
    assert machine.silent_queues(15.0, for_s=5) == {1}
    assert machine.silent_queues(20.0, for_s=5) == {0, 1}, "its other message waits since then"
    machine.blocked(True, 20.0)
    assert machine.silent_queues(20.0, for_s=5) == set()
    machine.blocked(False, 20.0)
    machine.answered(4, multiple=True, ok=True, now=20.0)
    assert machine.silent_queues(60.0, for_s=5) == set()
    accept(machine, 1, KEY_OF_QUEUE[0])
    machine.step(60.0)
    assert machine.silent_queues(61.0, for_s=5) == set(), "counted from when it was sent"


def test_the_time_in_which_the_broker_blocks_publishers_is_no_silence() -> None:
    machine = machine_of()
    accept(machine, 1)
    machine.step(0.0)
    machine.blocked(True, 1.0)
    machine.blocked(False, 60.0)
    assert machine.silent_queues(64.9, for_s=5) == set()
    assert machine.silent_queues(65.0, for_s=5) == {0}


def test_nothing_is_silent_without_a_connection() -> None:
    machine = machine_of()
    accept(machine, 1)
    machine.step(0.0)
    machine.disconnected(1.0)
    assert machine.silent_queues(60.0, for_s=5) == set()
