"""True if the watches still deliver events."""

from __future__ import annotations

from lbg_operator.kube.kinds import BROKER, GROUP
from lbg_operator.reconcile.object_cache import Key
from lbg_operator.runtime.watches import WatchLiveness

A, B = Key("shop", "a"), Key("shop", "b")


def test_a_watch_is_silent_from_the_oldest_write_that_it_has_not_told_of() -> None:
    silence = WatchLiveness()
    assert silence.silent_s(GROUP, 1000.0) == 0
    silence.wrote(GROUP, A, "7", 10.0)
    silence.wrote(GROUP, B, "8", 20.0)
    assert (silence.silent_s(GROUP, 50.0), silence.silent_s(BROKER, 50.0)) == (40.0, 0)
    silence.saw(GROUP, A, "7")
    assert silence.silent_s(GROUP, 50.0) == 30.0
    silence.saw(GROUP, B, "9")
    assert silence.silent_s(GROUP, 50.0) == 0


def test_what_is_older_than_the_write_is_no_answer_to_it() -> None:
    silence = WatchLiveness()
    silence.wrote(GROUP, A, "10", 0.0)
    silence.saw(GROUP, A, "9")
    assert silence.silent_s(GROUP, 5.0) == 5.0


def test_a_write_that_came_back_before_its_answer_is_not_waited_for() -> None:
    silence = WatchLiveness()
    silence.saw(GROUP, A, "10")
    silence.wrote(GROUP, A, "10", 0.0)
    assert silence.silent_s(GROUP, 5.0) == 0


def test_further_writes_do_not_make_a_silent_watch_look_younger() -> None:
    silence = WatchLiveness()
    for second in range(100):
        silence.wrote(GROUP, A, str(second + 1), float(second))
    assert silence.silent_s(GROUP, 100.0) == 100.0


def test_what_is_gone_is_waited_for_no_longer() -> None:
    silence = WatchLiveness()
    silence.wrote(GROUP, A, "10", 0.0)
    silence.gone(GROUP, A)
    assert silence.silent_s(GROUP, 5.0) == 0
