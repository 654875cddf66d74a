"""Delivery tags of publishes, and the window of one queue, without a broker."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lbg_core.client.backoff import doubled_s
from lbg_core.client.retransmit import (
    OpenTags,
    Outgoing,
    QueueWindow,
    RetransmitSettings,
    WindowState,
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("sent"), st.integers(1, 3)),
        st.tuples(st.just("single"), st.integers(0, 40)),
        st.tuples(st.just("multiple"), st.integers(0, 40)),
        st.tuples(st.just("clear"), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_an_answer_stands_for_its_tag_or_for_all_open_ones_up_to_it(steps: list[tuple[str, int]]) -> None:
    tags = OpenTags[str]()
    model: dict[int, str] = {}
    last = names = 0
    for what, number in steps:
        if what == "sent":
            last += number  # tags of messages that nobody awaits are left out
            names += 1
            tags.sent(last, f"m{names}")
            model[last] = f"m{names}"
        elif what == "single":
            assert tags.answered(number, multiple=False) == ([model.pop(number)] if number in model else [])
        elif what == "multiple":
            covered = [tag for tag in model if number == 0 or tag <= number]
            assert tags.answered(number, multiple=True) == [model.pop(tag) for tag in covered]
        else:
            assert tags.clear() == list(model.values())
            model, last = {}, 0
        assert len(tags) == len(model)
        assert list(tags.open) == list(model.values())


def test_messages_in_a_row_have_the_tags_after_the_last() -> None:
    tags = OpenTags[str]()
    tags.sent(3, "a")
    tags.sent_next(["b", "c"])
    assert tags.answered(4, multiple=False) == ["b"]
    assert tags.answered(5, multiple=True) == ["a", "c"]


def sendable(window: QueueWindow[Outgoing[int]]) -> list[Outgoing[int]]:
    sends: list[Outgoing[int]] = []
    window.pop_sendable(sends, 0.0)
    return sends


def test_with_one_per_key_no_key_is_twice_among_what_is_open() -> None:
    window: QueueWindow[Outgoing[int]] = QueueWindow(RetransmitSettings(one_per_key=True))
    for number, key in enumerate(["a", "b", None, None, "a", "a", "c"]):
        window.pending.append(Outgoing(number, key))
    runs = []
    while sends := sendable(window):
        runs.append([message.item for message in sends])
        for message in sends:
            window.answered(message, ok=True)
        window.settle(0.0)
    assert runs == [[0, 1, 2, 3], [4], [5, 6]]


def test_a_withdrawn_message_leaves_its_place_and_its_key_to_others() -> None:
    settings = RetransmitSettings(window_messages=1, one_per_key=True)
    window: QueueWindow[Outgoing[int]] = QueueWindow(settings)
    window.pending.extend([Outgoing(1, "a"), Outgoing(2, "a")])
    (first,) = sendable(window)
    window.withdraw(first)
    assert [message.item for message in sendable(window)] == [2]
    assert [message.item for message in window.sent] == [2]


def test_a_window_that_drains_sends_again_when_all_is_answered() -> None:
    window: QueueWindow[Outgoing[int]] = QueueWindow(RetransmitSettings(first_window_messages=2))
    window.drain()
    assert window.state is WindowState.FLOWING, "nothing is open"
    window.pending.extend(Outgoing(number) for number in range(4))
    sends = sendable(window)
    window.drain()
    window.answered(sends[0], ok=True)
    window.settle(0.0)
    assert sendable(window) == []
    window.answered(sends[1], ok=True)
    window.settle(0.0)
    assert window.is_drained
    window.end_round(0.0)
    assert [message.item for message in sendable(window)] == [2, 3]


def test_a_wait_doubles_up_to_its_longest() -> None:
    assert [doubled_s(1.0, 5.0, times) for times in (0, 1, 2, 3, 5000)] == [1, 2, 4, 5, 5]
