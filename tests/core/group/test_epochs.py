from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group import Epoch, epoch_of, incarnation_of_epoch

RANDOM = bytes(range(16))
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}", fullmatch=True)


@given(NAMES, st.binary(min_size=16, max_size=16), st.integers(1, (1 << 52) - 1))
def test_the_epochs_of_a_publisher_are_one_history_in_their_order(
    name: str, first: bytes, began_us: int
) -> None:
    later = incarnation_of_epoch(first.hex(), began_us, RANDOM)
    of_first, of_later = epoch_of(f"{name}-{first.hex()}"), epoch_of(f"{name}-{later}")
    assert of_first == Epoch(f"{name}-{first.hex()[:8]}", 0)
    assert of_later == Epoch(of_first.history, began_us)
    assert len(f"{name}-{later}") <= 180


def test_a_history_that_an_older_publisher_began_goes_on() -> None:
    later = incarnation_of_epoch("0a1b2c3d", 7, RANDOM)
    assert epoch_of("flights-0a1b2c3d") == Epoch("flights-0a1b2c3d", 0)
    assert epoch_of(f"flights-{later}") == Epoch("flights-0a1b2c3d", 7)


def test_names_that_are_no_epochs_are_publishers_of_their_own() -> None:
    for publisher in (
        "app-production1",
        "app-production2",
        "a.0000000000007.x",
        "",
        "dead-0a",
        "x-" + 33 * "a",
    ):
        assert epoch_of(publisher) == Epoch(publisher, 0)


def test_the_epoch_of_a_long_header_is_found_at_once() -> None:
    """A pattern on the whole of it takes minutes, in which a member stands still."""
    for text in ("-" * 120_000, "a-" * 60_000, "-00000000" * 13_000):
        assert epoch_of(text) == Epoch(text, 0)
