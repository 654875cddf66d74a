"""The order of keys, against a list of all that was processed."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.core.key_order import INVERSION_S, History, KeyOrder


@dataclass(eq=False)
class Stream:
    history: History
    began_us: int
    is_established: bool = True


Steps = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.integers(0, 30)), unique=True)


@given(Steps, st.integers(1, 4), st.booleans())
def test_all_inversions_are_claimed_or_unknown_and_nothing_else_is_claimed(
    steps: list[tuple[str, int, int]], keys_max: int, is_established: bool
) -> None:
    order, history = KeyOrder(), History()
    order.keys_max = keys_max
    streams = [Stream(history, began_us, is_established) for began_us in range(2)]
    inverted = 0
    for place, (key, epoch, number) in enumerate(steps):
        order.processed(key, streams[epoch], ("p", epoch, number), 0.0)
        inverted += any(former[0] == key and former[1:] > (epoch, number) for former in steps[:place])

    assert order.out_of_order <= inverted <= order.out_of_order + order.unknown
    if keys_max >= 3 and is_established:
        assert (order.out_of_order, order.unknown) == (inverted, 0)


def test_the_id_of_the_last_inversion_is_kept_for_an_hour() -> None:
    order, stream = KeyOrder(), Stream(History(), 0)
    for number in (2, 1):
        order.processed("a", stream, ("p", 7, number), 5.0)
    order.tick(5.0 + INVERSION_S)
    assert order.out_of_order_id == "p-7-1"
    order.tick(5.1 + INVERSION_S)
    assert (order.out_of_order_id, order.out_of_order) == ("", 1)
