"""Every promise can be seen to be broken: each test but the first few is a history that breaks one."""

from __future__ import annotations

from collections.abc import Sequence

from testing.chaos.history_checks import judge
from testing.chaos.ledger import Kind, Record
from testing.chaos.losses import Loss
from testing.chaos.verdict import Name, Rules, Verdict

SAME_KEY = [7, 7, 7]
OTHER_KEYS = [1, 2, 3]
MS = 1_000_000


class Written:
    """Calls of the messages of one publisher, whose keys are given; lives and times are the test's."""

    def __init__(self, keys: Sequence[int], *, window: int = 4, told_twice: int = 0) -> None:
        self.keys = keys
        self.losses: list[Loss] = []
        self.dead: set[Name] = set()
        self._rules = Rules(window=window, overlap_s=1.0, told_twice=[told_twice])
        self._records: list[tuple[int, int, Record]] = []

    def write(self, at_ms: int, life: int, position: int, kind: Kind, **other: int) -> None:
        fields = {"key": self.keys[position], "seq": position, "queue": 0, **other}
        record = Record(at_ms * MS, position, publisher=0, kind=kind, redelivered=0, attempt=1, **fields)
        self._records.append((at_ms, len(self._records), (life, record)))

    def call(
        self, at_ms: int, life: int, position: int, end: Kind | None = Kind.ACKED, *, took_ms: int = 1
    ) -> None:
        """A call and how it ended; None: it never did."""
        self.write(at_ms, life, position, Kind.ENTERED)
        if end is not None:
            self.write(at_ms + took_ms, life, position, end)

    def loses(
        self,
        life: int,
        begin_ms: int,
        end_ms: int,
        *,
        why: str = "reset",
        limit: int | None = None,
        thaw_ms: int | None = None,
    ) -> None:
        thaw_ns = None if thaw_ms is None else thaw_ms * MS
        self.losses.append(Loss(why, begin_ms * MS, end_ms * MS, (life,), limit, thaw_ns))

    def judged(self) -> Verdict:
        records = (entry for _, _, entry in sorted(self._records, key=lambda each: each[:2]))
        return judge([self.keys], records, losses=self.losses, dead=self.dead, rules=self._rules)

    def broken(self) -> dict[str, int]:
        return dict(self.judged().counts)


def test_a_quiet_history_breaks_nothing() -> None:
    history = Written(SAME_KEY)
    for position in range(3):
        history.call(10 * position, 0, position)
    verdict = history.judged()
    assert not verdict.violations
    assert verdict.calls == 3
    assert not verdict.repeats


def test_a_message_that_nobody_was_called_with_is_lost() -> None:
    history = Written(OTHER_KEYS)
    history.call(0, 0, 0)
    history.call(0, 0, 2)
    verdict = history.judged()
    assert verdict.counts == {"lost": 1}
    assert verdict.violations[0].name == (0, 1)


def test_a_message_whose_only_call_did_not_end_is_lost() -> None:
    history = Written([1])
    history.call(0, 0, 0, None)
    assert history.broken() == {"lost": 1}


def test_a_refused_message_is_lost_unless_it_is_among_the_dead_letters() -> None:
    history = Written([1])
    history.call(0, 0, 0, Kind.DROPPED)
    assert history.broken() == {"lost": 1}
    history.dead.add((0, 0))
    assert history.broken() == {}


def test_a_message_before_an_earlier_one_of_its_key_is_out_of_order() -> None:
    history = Written(SAME_KEY)
    history.call(0, 0, 0)
    history.call(10, 0, 2)
    history.call(20, 0, 1)
    assert history.broken() == {"order": 1}


def test_a_message_after_one_that_was_begun_and_not_finished_is_out_of_order() -> None:
    history = Written(SAME_KEY)
    history.call(0, 0, 0)
    history.call(10, 0, 1, None)
    history.loses(0, 12, 13, why="SIGKILL")
    history.call(20, 1, 2)
    history.call(30, 1, 1)
    assert history.broken() == {"order": 1}


def test_a_message_after_one_that_asked_for_a_retry_is_out_of_order() -> None:
    history = Written([7, 7])
    history.call(0, 0, 0, Kind.RETRIED)
    history.call(10, 0, 1)
    history.call(20, 0, 0)
    assert history.broken() == {"order": 1}


def test_other_keys_may_overtake() -> None:
    history = Written(OTHER_KEYS)
    for position in (2, 0, 1):
        history.call(10 - position, 0, position, took_ms=20)
    assert history.broken() == {}


def test_a_rewind_after_a_crash_is_no_inversion() -> None:
    history = Written(SAME_KEY)
    history.call(0, 0, 0)
    history.call(10, 0, 1)
    history.loses(0, 15, 16, why="SIGKILL")
    for position in range(3):
        history.call(20 + 10 * position, 1, position)
    verdict = history.judged()
    assert not verdict.violations
    assert verdict.repeats == {"SIGKILL": 2}
    assert verdict.most_repeated == 2


def test_two_calls_of_a_key_at_once_in_one_member_are_seen() -> None:
    history = Written([7, 7])
    history.call(0, 0, 0, took_ms=20)
    history.call(10, 0, 1, took_ms=20)
    assert history.broken() == {"lanes": 1, "order": 1}


def test_two_members_with_a_key_at_once_need_a_lost_connection() -> None:
    history = Written([7])
    history.call(0, 0, 0, took_ms=50)
    history.call(10, 1, 0)
    assert history.broken() == {"fencing": 1, "repeats": 1}
    history.loses(0, 5, 6)
    verdict = history.judged()
    assert not verdict.violations
    assert verdict.overlaps == 1
    assert verdict.longest_overlap_s == 0.04


def test_a_connection_that_was_lost_before_the_call_began_excuses_nothing() -> None:
    history = Written([7])
    history.call(10, 0, 0, took_ms=50)
    history.call(20, 1, 0)
    history.loses(0, 5, 6)
    assert history.broken() == {"fencing": 1, "repeats": 1}


def test_a_third_members_lost_connection_excuses_nothing() -> None:
    history = Written([7])
    history.call(0, 0, 0, took_ms=50)
    history.call(10, 1, 0)
    history.loses(2, 5, 6)
    assert history.broken() == {"fencing": 1, "repeats": 1}


def test_a_member_may_begin_a_call_before_it_notices_that_its_connection_is_lost() -> None:
    history = Written([7])
    history.loses(0, 5, 30)
    history.call(8, 1, 0, took_ms=20)
    history.call(10, 0, 0, took_ms=50)
    verdict = history.judged()
    assert not verdict.violations
    assert verdict.overlaps == 1
    assert verdict.longest_overlap_s == 0.052
    assert verdict.repeats == {"reset": 1}


def test_a_member_that_begins_a_call_long_after_it_lost_its_connection_is_seen() -> None:
    history = Written([7])
    history.loses(0, 5, 9)
    history.call(8, 1, 0, took_ms=20)
    history.call(10, 0, 0, took_ms=50)
    assert history.broken() == {"fencing": 1, "repeats": 1}


def test_a_call_that_goes_on_for_too_long_beside_its_successor_is_seen() -> None:
    history = Written([7])
    history.call(0, 0, 0, Kind.ABORTED, took_ms=1200)
    history.loses(0, 5, 6)
    history.call(10, 1, 0)
    assert history.broken() == {"fencing": 1}


def test_time_in_which_a_stopped_process_did_not_run_is_no_overlap() -> None:
    history = Written([7])
    history.call(0, 0, 0, Kind.ABORTED, took_ms=9000)
    history.loses(0, 5, 9500, why="SIGSTOP", thaw_ms=8990)
    history.call(4000, 1, 0)
    verdict = history.judged()
    assert not verdict.violations
    assert verdict.longest_overlap_s == 0.01


def test_a_killed_command_leaves_its_calls_behind() -> None:
    history = Written([7])
    history.call(0, 0, 0, None)
    history.loses(0, 5, 6)
    history.call(10, 1, 0)
    history.write(9000, 0, 0, Kind.STARTED)
    verdict = history.judged()
    assert not verdict.violations
    assert verdict.longest_overlap_s == 0.0


def test_a_repeat_after_a_planned_move_is_seen() -> None:
    history = Written([7])
    history.call(0, 0, 0)
    history.call(10, 1, 0)
    assert history.broken() == {"repeats": 1}


def test_a_message_aborted_without_a_loss_is_a_repeat() -> None:
    history = Written([7])
    history.call(0, 0, 0, Kind.ABORTED)
    history.call(10, 1, 0)
    assert history.broken() == {"repeats": 1}


def test_a_retry_is_no_repeat_wherever_it_is_made() -> None:
    history = Written([7])
    history.call(0, 0, 0, Kind.RETRIED)
    history.call(10, 1, 0)
    verdict = history.judged()
    assert not verdict.violations
    assert not verdict.repeats


def test_one_loss_explains_no_more_than_a_window_of_each_queue() -> None:
    history = Written(list(range(10)), window=4)
    for position in range(10):
        history.call(position, 0, position)
    history.loses(0, 100, 101)
    for position in range(4):
        history.call(200 + position, 1, position)
    assert history.broken() == {}
    history.call(300, 1, 5)
    assert history.broken() == {"repeats": 1}


def test_the_window_is_of_each_queue() -> None:
    history = Written(list(range(8)), window=4)
    for position in range(8):
        history.call(position, 0, position)
    history.loses(0, 100, 101)
    for position in range(8):
        history.write(200 + position, 1, position, Kind.ENTERED, queue=position % 2)
        history.write(200 + position, 1, position, Kind.ACKED, queue=position % 2)
    assert history.broken() == {}


def test_who_leaves_explains_no_more_than_it_says_it_cut_off() -> None:
    history = Written(OTHER_KEYS)
    for position in range(3):
        history.call(position, 0, position)
    history.loses(0, 100, 101, why="cut off", limit=2)
    for position in range(2):
        history.call(200 + position, 1, position)
    assert history.broken() == {}
    history.call(300, 1, 2)
    assert history.broken() == {"repeats": 1}


def test_a_message_may_come_twice_if_its_publisher_says_that_it_may_have_sent_it_twice() -> None:
    history = Written([1, 2], told_twice=1)
    for position in range(2):
        history.call(position, 0, position)
    history.loses(5, 5, 6)
    history.call(10, 1, 0)
    verdict = history.judged()
    assert not verdict.violations
    assert verdict.repeats == {"published twice": 1}
    history.call(20, 1, 1)
    assert history.broken() == {"repeats": 1}


def test_a_second_copy_that_only_a_move_lies_before_is_counted_apart() -> None:
    history = Written([1], told_twice=1)
    history.call(0, 0, 0)
    history.call(10, 1, 0)
    verdict = history.judged()
    assert not verdict.violations
    assert verdict.repeats == {"published twice, moved in between": 1}


def test_another_sequence_key_or_message_is_seen() -> None:
    history = Written([1, 2])
    history.call(0, 0, 0)
    history.call(0, 0, 1)
    history.loses(0, 5, 6)
    history.write(10, 1, 0, Kind.ENTERED, seq=9)
    assert history.broken() == {"identity": 1}
    history = Written([1])
    history.write(0, 0, 0, Kind.ENTERED, key=3)
    history.write(1, 0, 0, Kind.ACKED, key=3)
    assert history.broken() == {"identity": 1}
    history = Written([1])
    history.call(0, 0, 0)
    history.keys = [1, 1]
    history.write(1, 0, 1, Kind.ENTERED)
    history.keys = [1]
    assert history.broken() == {"identity": 1}
