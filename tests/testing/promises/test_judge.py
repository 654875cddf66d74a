"""The judge finds every planted fault and nothing in a sound history. Times are in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.promises.judge import (
    OFFENCES,
    Call,
    Findings,
    NotRecorded,
    begun_between,
    by_process,
    calls_of,
    judge,
)

MS = 1_000_000


def call(number: int, start: int, end: int | None, *, key: str = "k", by: str = "m0.0") -> Call:
    """A call that finished; `end` None: whose process was killed right after its start."""
    at_ns = start * MS
    if end is None:
        return Call(by, number, key, at_ns, alive_ns=at_ns)
    return Call(by, number, key, at_ns, end * MS, finished=True, alive_ns=end * MS)


def aborted(number: int, start: int, end: int, *, key: str = "k", by: str = "m0.0") -> Call:
    return Call(by, number, key, start * MS, end * MS, alive_ns=end * MS)


def found(calls: Iterable[Call], *, sent: Sequence[str] = ("k", "k", "k")) -> dict[str, int]:
    """The offences that there are, counted."""
    return seen(judge(dict(enumerate(sent)), calls))


def seen(findings: Findings) -> dict[str, int]:
    return {name: count for name, count in findings.counts.items() if count}


SOUND = [call(0, 0, 10), call(1, 10, 20, by="m1.0"), call(2, 25, 30)]


def test_a_sound_history_has_no_offence() -> None:
    assert found(SOUND) == {}


def test_the_order_of_the_files_does_not_matter() -> None:
    assert found(reversed(SOUND)) == {}


def test_keys_may_run_beside_each_other_and_in_any_order() -> None:
    calls = [call(2, 0, 50, key="c"), call(0, 5, 40, key="a"), call(1, 1, 60, key="b")]
    assert found(calls, sent="abc") == {}


def test_a_message_without_a_call_is_lost() -> None:
    assert found([SOUND[0], SOUND[2]]) == {"lost": 1}


def test_a_message_whose_call_never_finished_is_lost() -> None:
    assert found([*SOUND[:2], aborted(2, 25, 30)]) == {"lost": 1}
    assert found([*SOUND[:2], call(2, 25, None)]) == {"lost": 1}


def test_a_call_after_a_finished_one_is_a_repeat() -> None:
    assert found([*SOUND, call(2, 40, 50, by="m1.0")]) == {"repeated": 1}


def test_every_call_after_the_first_counts() -> None:
    assert found([*SOUND, call(2, 40, 50), call(2, 60, 70)]) == {"repeated": 2}


def test_a_call_after_one_that_was_aborted_or_killed_at_the_limit_was_cut_off() -> None:
    assert found([*SOUND[:2], aborted(2, 25, 3025), call(2, 3026, 3040)]) == {"cut_off": 1}
    assert found([*SOUND[:2], call(2, 25, None), call(2, 3026, 3040)]) == {"cut_off": 1}


def test_a_call_after_one_that_was_aborted_or_killed_before_the_limit_is_a_repeat() -> None:
    assert found([*SOUND[:2], aborted(2, 25, 30), call(2, 31, 40)]) == {"repeated": 1}
    assert found([*SOUND[:2], call(2, 25, None), call(2, 31, 40)]) == {"repeated": 1}


def test_a_call_beside_an_earlier_one_with_the_same_message_doubles_it() -> None:
    late = call(2, 3026, 3040, by="m1.0")
    assert found([*SOUND[:2], call(2, 25, 3525), late]) == {"cut_off": 1, "doubled": 1}
    assert found([*SOUND[:2], call(2, 3020, 3520), late]) == {"repeated": 1, "doubled": 1}


def test_a_repeat_of_a_finished_message_is_none_of_a_call_cut_off_before_it() -> None:
    calls = [*SOUND[:2], aborted(2, 21, 3021), call(2, 3025, 3030), call(2, 9040, 9050)]
    assert found(calls) == {"cut_off": 1, "repeated": 1}


def test_a_finished_call_is_repeated_however_long_it_ran() -> None:
    assert found([*SOUND[:2], call(2, 25, 5000), call(2, 5000, 5010)]) == {"repeated": 1}


def test_a_first_call_after_that_of_a_later_message_is_an_inversion() -> None:
    assert found([call(0, 0, 10), call(2, 10, 20), call(1, 20, 30)]) == {"inverted": 1}


def test_every_message_that_came_late_counts() -> None:
    assert found([call(2, 0, 10), call(0, 10, 20), call(1, 20, 30)]) == {"inverted": 2}


def test_a_repeat_is_no_inversion() -> None:
    assert found([call(0, 0, 5), call(1, 5, 9), call(0, 10, 12), call(1, 12, 15), call(2, 15, 20)]) == {
        "repeated": 2
    }


def test_an_aborted_first_call_counts_for_the_order() -> None:
    calls = [call(0, 0, 10), aborted(2, 10, 11), call(1, 12, 20), call(2, 20, 30)]
    assert found(calls) == {"repeated": 1, "inverted": 1}


def test_two_messages_of_a_key_at_once_overlap() -> None:
    assert found([call(0, 0, 10), call(1, 9, 20, by="m1.0"), call(2, 20, 30)]) == {"overlapped": 1}
    assert found([call(0, 0, 10), call(1, 9, 20), call(2, 20, 30)]) == {"overlapped": 1}


def test_every_overlapping_pair_counts() -> None:
    assert found([call(0, 0, 30), call(1, 5, 20), call(2, 10, 15)]) == {"overlapped": 3}


def test_a_long_call_overlaps_with_all_that_come_while_it_runs() -> None:
    assert found([call(0, 0, 100), call(1, 5, 6), call(2, 90, 95)]) == {"overlapped": 2}


def test_a_killed_call_ran_as_long_as_its_process_wrote() -> None:
    dead = call(0, 0, None)
    dead.alive_ns = 20 * MS
    assert found([dead, call(1, 10, 15, by="m1.0"), call(0, 30, 40), call(2, 40, 50)]) == {
        "repeated": 1,
        "overlapped": 1,
    }


def test_a_message_that_nobody_published_or_with_another_key_is_strange() -> None:
    assert found([*SOUND, call(7, 40, 50)]) == {"strange": 1}
    assert found([*SOUND[:2], call(2, 25, 30, key="other")]) == {"strange": 1, "lost": 1}


def test_sessions_are_judged_by_session() -> None:
    sent = dict(enumerate("kkkk"))
    calls = [
        call(1, 0, 50, by="a.0"),
        call(0, 5, 60, by="b.0"),
        call(2, 50, 55, by="a.1"),
        call(3, 60, 65, by="b.0"),
    ]
    assert seen(judge(sent, calls, lane=by_process)) == {}
    late = [*calls[:2], call(3, 50, 55, by="a.0"), call(2, 54, 58, by="a.1")]
    assert seen(judge(sent, late, lane=by_process)) == {"inverted": 1, "overlapped": 1}


def test_each_offence_says_which_message_and_when() -> None:
    found = judge({0: "k"}, [call(0, 0, 10), call(0, 12, 20, by="m1.0")])
    assert found.repeated == [
        "0 of k: m0.0 at 0.000 s for 10.0 ms (finished); m1.0 at 0.012 s for 8.0 ms (finished)"
    ]


def test_calls_that_begin_in_a_stretch_of_time_are_counted() -> None:
    assert [begun_between(SOUND, low * MS, high * MS) for low, high in ((0, 30), (1, 10), (11, 24))] == [
        3,
        1,
        0,
    ]


# The files


def test_calls_are_read_with_their_ends() -> None:
    lines = ["S 100 7-0 3 k", "S 110 7-1 4 l", "F 120 7-1 4 l", "A 130 7-0 3 k"]
    assert calls_of("m0.0", lines) == [
        Call("m0.0", 3, "k", 100, 130, finished=False, alive_ns=130),
        Call("m0.0", 4, "l", 110, 120, finished=True, alive_ns=130),
    ]


def test_a_killed_command_and_the_one_after_it_share_a_file() -> None:
    lines = ["S 100 7-0 3 k", "S 150 7-1 4 l", "S 200 9-0 3 k", "F 300 9-0 3 k"]
    killed, other, again = calls_of("m0.0", lines)
    assert (killed.end_ns, killed.alive_ns) == (None, 150)
    assert (other.end_ns, other.alive_ns) == (None, 150)
    assert again.finished


@pytest.mark.parametrize(
    "line", ["", "S 1 7-0 3", "X 1 7-0 3 k", "F 1 7-5 3 k", "S one 7-0 3 k", "S 1 7-0 3 k"]
)
def test_a_line_that_cannot_be_is_refused(line: str) -> None:
    with pytest.raises(NotRecorded, match=r"m0\.0"):
        calls_of("m0.0", ["S 1 7-0 3 k", line])


# Any sound history, with any one fault


@st.composite
def sound_histories(draw: st.DrawFn) -> tuple[list[str], list[Call]]:
    """Keys by number, and calls of several members, each key's one after another."""
    keys = draw(st.lists(st.sampled_from("abc"), min_size=3, max_size=30))
    free_at: dict[str, int] = {}
    calls = []
    for number, key in enumerate(keys):
        start = free_at.get(key, 0) + draw(st.integers(0, 20))
        end = start + draw(st.integers(1, 30))
        free_at[key] = end
        calls.append(call(number, start, end, key=key, by=draw(st.sampled_from(["m0.0", "m1.0", "m1.1"]))))
    return keys, calls


@given(sound_histories())
def test_no_sound_history_has_an_offence(history: tuple[list[str], list[Call]]) -> None:
    keys, calls = history
    assert found(calls, sent=keys) == {}


@given(sound_histories(), st.data())
def test_any_planted_fault_is_found(history: tuple[list[str], list[Call]], data: st.DataObject) -> None:
    keys, calls = history
    at = data.draw(st.integers(0, len(calls) - 1))
    one = calls[at]
    last = max(other.ran_until_ns for other in calls) // MS
    match data.draw(
        st.sampled_from(["lost", "repeated", "cut_off", "doubled", "inverted", "overlapped", "strange"])
    ):
        case "lost":
            assert found([*calls[:at], *calls[at + 1 :]], sent=keys) == {"lost": 1}
        case "repeated":
            again = call(one.number, last, last + 5, key=one.key, by="m9.0")
            assert found([*calls, again], sent=keys) == {"repeated": 1}
        case "cut_off":
            one.finished = False
            again = call(one.number, last + 3000, last + 3005, key=one.key, by="m9.0")
            assert found([*calls, again], sent=keys) == {"cut_off": 1}
        case "doubled":
            again = Call("m9.0", one.number, one.key, one.start_ns, one.end_ns, finished=True)
            assert found([*calls, again], sent=keys) == {"doubled": 1, "repeated": 1}
        case "inverted":
            keys = [*keys, one.key]
            early = call(len(calls), -10, -5, key=one.key)
            assert found([*calls, early], sent=keys) == {"inverted": keys.count(one.key) - 1}
        case "overlapped":
            keys = [*keys, one.key]
            beside = Call("m9.0", len(calls), one.key, one.end_ns or 0, last * MS + 9 * MS, finished=True)
            beside.start_ns -= 1
            assert found([*calls, beside], sent=keys)["overlapped"] >= 1
        case "strange":
            assert found([*calls, call(len(keys), last, last + 5)], sent=keys) == {"strange": 1}


def test_every_offence_is_counted() -> None:
    assert set(judge({}, []).counts) == set(OFFENCES)
