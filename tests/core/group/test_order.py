from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group import OrderChecker, incarnation_of_epoch
from lbg_core.group.order_checker import Kind, Lost, Move, Verdict
from testing.growth import allocated


def kinds(judge: OrderChecker, *observed: tuple[str | None, int]) -> list[Kind]:
    """Kinds of deliveries (key, sequence number) of one publisher and hash, to one member."""
    return [judge.observe("p", key, 3, seq, 0, 1_000).kind for key, seq in observed]


def test_rising_numbers_of_a_key_are_in_order_though_other_keys_have_some_between() -> None:
    assert kinds(OrderChecker(), ("a", 0), ("b", 1), ("a", 4), ("b", 2), ("c", 3)) == [Kind.OK] * 5


def test_a_message_delivered_again_is_a_rewind_and_no_inversion() -> None:
    judge = OrderChecker()

    assert kinds(judge, ("a", 0), ("a", 1), ("a", 0), ("a", 1), ("a", 2)) == [
        *(Kind.OK, Kind.OK, Kind.REWIND, Kind.REWIND, Kind.OK),
    ]
    assert (judge.observed, judge.distinct, judge.rewinds, judge.inversions) == (5, 3, 2, 0)


def test_a_message_seen_first_after_a_later_one_of_its_key_is_an_inversion() -> None:
    judge = OrderChecker()

    assert kinds(judge, ("a", 0), ("a", 2), ("a", 1)) == [Kind.OK, Kind.OK, Kind.INVERSION]
    assert (judge.rewinds, judge.inversions) == (0, 1)


def test_an_inverted_message_that_comes_again_is_a_rewind() -> None:
    assert kinds(OrderChecker(), ("a", 2), ("a", 1), ("a", 1)) == [Kind.OK, Kind.INVERSION, Kind.REWIND]


def test_after_a_crash_what_was_never_seen_is_an_inversion_even_among_rewinds() -> None:
    assert kinds(OrderChecker(), ("a", 5), ("a", 7), ("a", 5), ("a", 6), ("a", 7)) == [
        *(Kind.OK, Kind.OK, Kind.REWIND, Kind.INVERSION, Kind.REWIND),
    ]


def test_messages_without_a_key_have_no_order_but_repeats_are_seen() -> None:
    judge = OrderChecker()

    assert kinds(judge, (None, 2), (None, 0), (None, 1), (None, 0)) == [
        Kind.OK,
        Kind.OK,
        Kind.OK,
        Kind.REWIND,
    ]
    assert judge.lost({"p": {3: 3}}) == []


EPOCHS = [f"p-{incarnation_of_epoch('0a1b2c3d' + 24 * '0', began, bytes(16))}" for began in (5, 6)]


def in_epochs(*observed: tuple[str, int]) -> list[Verdict]:
    """Verdicts on deliveries (publisher, sequence number) of one key and hash."""
    judge = OrderChecker()
    return [judge.observe(publisher, "a", 3, seq, 0, 1_000) for publisher, seq in observed]


def test_a_later_epoch_goes_on_behind_the_one_before() -> None:
    first = "p-0a1b2c3d" + 24 * "0"
    found = in_epochs((first, 0), (first, 1), (EPOCHS[0], 0), (EPOCHS[0], 1), (EPOCHS[1], 0))
    assert [each.kind for each in found] == [Kind.OK] * 5
    assert [each.expected for each in found] == [0, 1, 0, 1, 0]


def test_a_message_seen_first_after_one_of_a_later_epoch_is_an_inversion() -> None:
    found = in_epochs((EPOCHS[0], 0), (EPOCHS[1], 4), (EPOCHS[0], 7), (EPOCHS[0], 0))
    assert [each.kind for each in found] == [Kind.OK, Kind.OK, Kind.INVERSION, Kind.REWIND]
    assert (found[2].expected, found[2].expected_of) == (5, EPOCHS[1])


def test_what_was_sent_again_under_the_old_epoch_is_a_rewind() -> None:
    """A killed publisher's last bytes may arrive behind the epoch of its next start."""
    found = in_epochs(("p-0a1b2c3d", 0), ("p-0a1b2c3d", 1), (EPOCHS[0], 0), ("p-0a1b2c3d", 1))
    assert [each.kind for each in found] == [Kind.OK, Kind.OK, Kind.OK, Kind.REWIND]


def test_the_same_key_of_two_publishers_is_two_orders() -> None:
    judge = OrderChecker()

    assert judge.observe("p-1", "a", 3, 5, 0, 0).kind is Kind.OK
    assert judge.observe("p-2", "a", 3, 0, 0, 0).kind is Kind.OK


def test_a_verdict_tells_what_was_expected_and_what_was_received() -> None:
    judge = OrderChecker()
    judge.observe("p", "a", 3, 482, 0, 0)

    verdict = judge.observe("p", "a", 3, 480, 0, 0)

    assert (verdict.kind, verdict.expected, verdict.received) == (Kind.INVERSION, 483, 480)


def test_a_shard_that_changes_member_is_a_move_with_its_pause() -> None:
    judge = OrderChecker()

    verdicts = [
        judge.observe("p", "a", 3, 0, 1, 1_000),
        judge.observe("p", "b", 4, 0, 1, 1_100),
        judge.observe("q", "a", 3, 0, 2, 1_250),
        judge.observe("p", "a", 3, 1, 2, 1_300),
        judge.observe("p", "a", 3, 2, 1, 1_900),
    ]

    assert [verdict.move for verdict in verdicts] == [
        *(None, None, Move(3, 1, 2, 250, 1_250), None, Move(3, 2, 1, 600, 1_900)),
    ]
    assert judge.moves == 2


def test_lost_is_what_publishers_sent_and_nobody_got() -> None:
    judge = OrderChecker()
    kinds(judge, ("a", 0), ("b", 3), ("a", 4))

    assert judge.lost({"p": {3: 7, 9: 2}, "unheard": {1: 1, 2: 0}}) == [
        Lost("p", 3, 1, 2),
        Lost("p", 3, 5, 6),
        Lost("p", 9, 0, 1),
        Lost("unheard", 1, 0, 0),
    ]


@pytest.mark.long
def test_memory_does_not_grow_with_messages() -> None:
    judge = OrderChecker()
    for seq in range(1_000):
        judge.observe("p", f"k{seq % 10}", 0, seq, 0, seq)

    def observe() -> None:
        for seq in range(1_000, 20_000):
            judge.observe("p", f"k{seq % 10}", 0, seq, 0, seq)

    assert allocated(observe) < 10_000


@dataclass
class PlainJudge:
    """The same from the whole history: slow and plainly right."""

    history: list[tuple[str, str | None, int, int, int, int]] = field(default_factory=list)

    def observe(
        self, publisher: str, key: str | None, hash_: int, seq: int, member: int, at_us: int
    ) -> tuple[Kind, Move | None]:
        same_stream = [one for one in self.history if one[0] == publisher and one[2] == hash_]
        if any(one[3] == seq for one in same_stream):
            kind = Kind.REWIND
        elif key is not None and any(one[1] == key and one[3] > seq for one in same_stream):
            kind = Kind.INVERSION
        else:
            kind = Kind.OK
        latest = next((one for one in reversed(self.history) if one[2] == hash_), None)
        move = None
        if latest is not None and latest[4] != member:
            move = Move(hash_, latest[4], member, at_us - latest[5], at_us)
        self.history.append((publisher, key, hash_, seq, member, at_us))
        return kind, move

    def missing(self, publisher: str, hash_: int, next_seq: int) -> set[int]:
        return set(range(next_seq)) - {
            one[3] for one in self.history if (one[0], one[2]) == (publisher, hash_)
        }


OBSERVED = st.tuples(
    st.sampled_from(["p", "q"]), st.integers(0, 2), st.integers(0, 8), st.integers(0, 2), st.integers(0, 9)
)


@given(st.lists(OBSERVED, max_size=60), st.integers(0, 10))
def test_any_history_is_judged_as_from_the_whole_of_it(
    observed: list[tuple[str, int, int, int, int]], next_seq: int
) -> None:
    judge, plain = OrderChecker(), PlainJudge()
    found = []

    for publisher, hash_, seq, member, at_us in observed:
        # A sequence number belongs to one message, so it has one key; every fourth has none.
        key = None if seq % 4 == 3 else f"k{seq % 2}"
        verdict = judge.observe(publisher, key, hash_, seq, member, at_us)
        found.append(plain.observe(publisher, key, hash_, seq, member, at_us))
        assert (verdict.kind, verdict.move) == found[-1]
        assert verdict.received == seq

    assert judge.rewinds == sum(kind is Kind.REWIND for kind, _ in found)
    assert judge.inversions == sum(kind is Kind.INVERSION for kind, _ in found)
    assert judge.moves == sum(move is not None for _, move in found)
    for publisher in ("p", "q"):
        for hash_ in range(3):
            lost = judge.lost({publisher: {hash_: next_seq}})
            numbers = {n for one in lost for n in range(one.first, one.last + 1)}
            assert numbers == plain.missing(publisher, hash_, next_seq)
