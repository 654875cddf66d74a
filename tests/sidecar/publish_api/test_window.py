from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.publish_api.dedup_window import DedupWindow, Entry, OtherEvent

IDS = st.sampled_from([b"a", b"b", b"c", b"d"])


def test_a_confirmed_event_is_forgotten_after_the_time_and_not_before() -> None:
    window: DedupWindow[int] = DedupWindow(entries_max=10, seconds=5)
    window.confirm(window.add(b"a", b"x", 1), 10.0)
    found = window.find(b"a", b"x", 15.0)
    assert found is not None
    assert found.value == 1
    assert window.find(b"a", b"x", 15.1) is None


def test_an_event_on_its_way_is_never_forgotten_by_time_or_number() -> None:
    window: DedupWindow[int] = DedupWindow(entries_max=1, seconds=5)
    window.add(b"a", b"x", 1)
    for number in range(5):
        window.confirm(window.add(b"%d" % number, b"x", number), 0.0)
    assert window.find(b"a", b"x", 1e9) is not None


def test_the_same_id_with_another_content_is_told() -> None:
    window: DedupWindow[int] = DedupWindow(entries_max=1, seconds=5)
    entry = window.add(b"a", b"x", 1)
    with pytest.raises(OtherEvent):
        window.find(b"a", b"y", 0.0)
    window.forget(entry)
    assert window.find(b"a", b"y", 0.0) is None


@given(st.lists(st.tuples(st.sampled_from(["send", "confirm", "forget", "later"]), IDS), max_size=60))
def test_no_event_is_published_twice_within_the_window_and_memory_is_bounded(
    steps: list[tuple[str, bytes]],
) -> None:
    window: DedupWindow[int] = DedupWindow(entries_max=2, seconds=3)
    pending: dict[bytes, Entry[int]] = {}
    confirmed: list[tuple[bytes, float]] = []
    now = 0.0
    for what, id_ in steps:
        if what == "later":
            now += 1.0
        elif what == "send":
            lately = {each for each, at in confirmed[-2:] if now - at <= 3}
            found = window.find(id_, b"x", now)
            assert (found is not None) == (id_ in pending or id_ in lately)
            if found is None:
                pending[id_] = window.add(id_, b"x", len(steps))
        elif (entry := pending.pop(id_, None)) is not None:
            if what == "confirm":
                window.confirm(entry, now)
                confirmed.append((id_, now))
            else:
                window.forget(entry)
        assert window.confirmed_count <= 2
