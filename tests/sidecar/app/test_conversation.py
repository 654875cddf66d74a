"""Messages of a stream, against a model with every number in a plain set."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_sidecar.app.channel import Extension
from lbg_sidecar.app.websocket_protocol import Conversation, Hello, messages_frame, read_hello
from lbg_sidecar.errors import StreamError
from lbg_sidecar.message import ACK, INTERRUPTED, Verdict, drop, retry
from testing.exploration import example_count


def conversation(sent: int = 0, *, credit: int = 100) -> Conversation[int]:
    """Each message is its own number."""
    talk: Conversation[int] = Conversation(Hello(credit))
    talk.send(range(1, sent + 1))
    return talk


def test_a_hello_gives_credit_and_positions() -> None:
    assert read_hello('{"hello": {"credit": 5, "processed": [["p", 1, [[0, 3]]]]}}') == Hello(
        5, (("p", 1, ((0, 3),)),)
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "[" * 100_000,
        "{}",
        '{"ack": 1}',
        '{"hello": {}}',
        '{"hello": {"credit": -1}}',
        '{"hello": {"credit": 1.5}}',
        '{"hello": {"credit": true}}',
        '{"hello": {"credit": 65536}}',
        '{"hello": {"credit": 1, "proccessed": []}}',
        '{"hello": {"credit": 1, "processed": [1]}}',
    ],
)
def test_what_is_no_hello_is_refused(text: str) -> None:
    with pytest.raises(StreamError):
        read_hello(text)


def test_messages_are_numbered_one_by_one() -> None:
    talk = conversation()
    assert talk.send([10, 11]) == 1
    assert talk.send([12]) == 3
    assert json.loads(messages_frame(1, ["{}", "{}"])) == {"first": 1, "messages": [{}, {}]}


def test_the_smaller_of_credit_and_concurrency_is_the_limit() -> None:
    talk = conversation(2, credit=5)
    assert talk.room(100) == 3
    assert talk.room(4) == 2
    talk.answer('{"credit": 1}')
    assert talk.room(100) == 0, "credit may shrink below what is out"
    talk.answer('{"ack": 2}')
    assert talk.room(100) == 1


def test_up_to_a_number_is_acknowledged_but_for_what_the_same_frame_says_otherwise() -> None:
    talk = conversation(5)
    frame = {
        "ack": 4,
        "acks": [5],
        "verdicts": [
            {"n": 2, "verdict": "retry", "reason": "busy", "after_s": 2},
            {"n": 3, "verdict": "drop", "reason": "bad"},
        ],
    }
    assert dict(talk.answer(json.dumps(frame))) == {
        1: ACK,
        2: retry("busy", after_s=2),
        3: drop("bad"),
        4: ACK,
        5: ACK,
    }
    assert talk.out == 0


def test_a_cancel_is_confirmed_or_answered() -> None:
    talk = conversation(3)
    assert talk.cancel(lambda number: number < 3) == [1, 2]
    assert talk.cancel(lambda number: number < 3) == [], "named once"
    assert talk.answer('{"cancelled": [1], "acks": [2]}') == [(2, ACK), (1, INTERRUPTED)]
    assert talk.unanswered([1, 2, 3]) == [3]


def test_a_cancel_and_an_answer_may_cross() -> None:
    talk = conversation(1)
    talk.cancel(lambda _: True)
    assert talk.answer('{"ack": 1}') == [(1, ACK)]
    assert talk.answer('{"cancelled": [1]}') == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello", "not JSON"),
        ("7", "not a JSON object"),
        ('{"ack": 4}', "4 was never sent"),
        ('{"ack": 0}', "0 was never sent"),
        ('{"ack": "1"}', "not the number"),
        ('{"ack": true}', "not the number"),
        ('{"ack": 1e400}', "not the number"),
        ('{"ack": 1}', "up to 1 was acknowledged before"),
        ('{"acks": 2}', "not a list"),
        ('{"acks": [1]}', "1 was answered twice"),
        ('{"acks": [2, 2]}', "2 was answered twice"),
        ('{"acks": [9]}', "9 was never sent"),
        ('{"cancelled": [2]}', "2 was not to be cancelled"),
        ('{"verdicts": [{"n": 2}]}', "verdict"),
        ('{"verdicts": [2]}', "not an object"),
        ('{"verdicts": [{"n": 2, "verdict": "retry", "after_s": NaN}]}', "after_s"),
        ('{"verdicts": [{"verdict": "ack"}]}', "not the number"),
        ('{"credit": -1}', "credit"),
        ('{"ackk": 2}', "ackk"),
    ],
)
def test_a_frame_that_cannot_be_is_refused_and_nothing_of_it_counts(text: str, said: str) -> None:
    talk = conversation(3)
    talk.answer('{"ack": 1}')
    with pytest.raises(StreamError, match=said):
        talk.answer(text)
    assert talk.close() == [2, 3]


def test_a_frame_that_is_wrong_at_its_end_counts_for_nothing() -> None:
    talk = conversation(3)
    with pytest.raises(StreamError):
        talk.answer('{"acks": [1, 2], "ack": 9}')
    assert talk.out == 3


numbers = st.integers(0, 12)
verdicts = st.sampled_from([("ack", ACK), ("drop", drop("")), ("retry", retry())])
frames = st.fixed_dictionaries(
    {},
    optional={
        "ack": numbers,
        "acks": st.lists(numbers, max_size=3),
        "verdicts": st.lists(st.tuples(numbers, verdicts), max_size=3),
        "cancelled": st.lists(numbers, max_size=2),
    },
)
steps = st.one_of(
    st.tuples(st.just("give"), st.integers(1, 4)),
    st.tuples(st.just("cancel"), st.sets(numbers)),
    st.tuples(st.just("answer"), frames),
)


@settings(max_examples=example_count(150), deadline=None)
@given(st.lists(steps, max_size=30))
def test_every_message_given_is_answered_or_taken_back_once(story: list[tuple[str, object]]) -> None:
    talk = conversation()
    sent = 0
    out: set[int] = set()
    cancelled: set[int] = set()
    acked_to = 0
    ended: list[int] = []
    for what, value in story:
        if what == "give":
            talk.send(range(sent + 1, sent + 1 + value))
            out.update(range(sent + 1, sent + 1 + value))
            sent += value
        elif what == "cancel":
            named = talk.cancel(lambda number, meant=value: number in meant)
            assert set(named) == (value & out) - cancelled
            cancelled.update(named)
        else:
            frame = dict(value)
            expected = _expected(frame, sent, out, cancelled, acked_to)
            frame["verdicts"] = [{"n": n, "verdict": word} for n, (word, _) in frame.get("verdicts", [])]
            if expected is None:
                with pytest.raises(StreamError):
                    talk.answer(json.dumps(frame))
            else:
                assert dict(talk.answer(json.dumps(frame))) == expected
                ended += expected
                out.difference_update(expected)
                acked_to = frame.get("ack", acked_to)
        assert talk.out == len(out)
    rest = talk.close()
    assert rest == sorted(out)
    assert sorted(ended + rest) == list(range(1, sent + 1))


def _expected(
    frame: dict[str, object], sent: int, out: set[int], cancelled: set[int], acked_to: int
) -> dict[int, Verdict] | None:
    """None: the frame must be refused."""
    said: list[tuple[int, Verdict]] = [(n, ACK) for n in frame.get("acks", [])]
    said += [(n, verdict) for n, (_, verdict) in frame.get("verdicts", [])]
    for n in frame.get("cancelled", []):
        if n in out:
            if n not in cancelled:
                return None
            said.append((n, INTERRUPTED))
        elif not 1 <= n <= sent:
            return None
    named = [n for n, _ in said]
    if len(set(named)) < len(named) or not set(named) <= out:
        return None
    verdicts = dict(said)
    if "ack" in frame:
        to = frame["ack"]
        assert isinstance(to, int)
        if not acked_to < to <= sent:
            return None
        verdicts = {n: ACK for n in out if n <= to} | verdicts
    return verdicts


def test_a_call_is_extended_and_stays_unanswered() -> None:
    talk = conversation(3)
    frame = {"extend": [{"n": 2, "seconds": 60, "progress": "half"}, {"n": 3, "seconds": 0.5}], "acks": [1]}
    assert talk.answer(json.dumps(frame)) == [(2, Extension(60, "half")), (3, Extension(0.5)), (1, ACK)]
    assert talk.out == 2
    assert talk.answer('{"acks": [2, 3]}') == [(2, ACK), (3, ACK)]


def test_an_extension_of_what_is_answered_counts_for_nothing() -> None:
    """A timer may extend a call that has just ended."""
    talk = conversation(2)
    assert talk.answer('{"acks": [1], "extend": [{"n": 1, "seconds": 60}]}') == [(1, ACK)]
    assert talk.answer('{"extend": [{"n": 1, "seconds": 60}]}') == []


@pytest.mark.parametrize(
    "entry",
    [
        {"n": 3, "seconds": 60},
        {"seconds": 60},
        {"n": 1},
        {"n": 1, "seconds": 0},
        {"n": 1, "seconds": "60"},
        {"n": 1, "seconds": 60, "progress": 5},
        7,
    ],
)
def test_a_frame_with_a_bad_extension_is_refused_whole(entry: object) -> None:
    talk = conversation(2)
    with pytest.raises(StreamError):
        talk.answer(json.dumps({"acks": [2], "extend": [entry]}))
    assert talk.out == 2
