"""The judge of the comparison tells what is out of order, repeated and lost, from what consumers noted."""

from __future__ import annotations

from pathlib import Path

from testing.work_log import DONE, Log, judged, longest_gaps_ms

Done = tuple[int, int, int]  # when, number, key


def log_of(directory: Path, *consumers: list[Done]) -> Log:
    log = Log(directory)
    for number, done in enumerate(consumers):
        log.new_file(f"c{number}").write_bytes(b"".join(DONE.pack(*each) for each in done))
    return log


def test_a_message_done_after_a_later_one_of_its_key_is_out_of_order(tmp_path: Path) -> None:
    log = log_of(tmp_path, [(10, 0, 5), (40, 2, 5)], [(20, 3, 5), (30, 1, 6)])
    assert log.distinct() == 4
    judgement = judged(log, 0, 4)
    assert (judgement.keys, judgement.inverted) == ({5}, 1)
    assert (judgement.repeated, judgement.lost) == (0, 0)


def test_keys_may_overtake_each_other(tmp_path: Path) -> None:
    log = log_of(tmp_path, [(10, 1, 6), (20, 0, 5)])
    log.distinct()
    assert not judged(log, 0, 2).keys


def test_a_repeat_is_no_inversion(tmp_path: Path) -> None:
    log = log_of(tmp_path, [(10, 0, 5), (20, 1, 5)], [(30, 0, 5), (40, 1, 5)])
    assert log.distinct() == 2
    judgement = judged(log, 0, 2)
    assert (judgement.inverted, judgement.repeated) == (0, 2)


def test_what_nobody_did_is_lost(tmp_path: Path) -> None:
    log = log_of(tmp_path, [(10, 0, 5), (20, 3, 5)])
    log.distinct()
    assert judged(log, 0, 4).lost == 2


def test_only_the_range_asked_for_counts_against_all_that_was_done(tmp_path: Path) -> None:
    log = log_of(tmp_path, [(10, 9, 5), (20, 0, 5), (30, 9, 5), (40, 8, 5)])
    log.distinct()
    earlier, later = judged(log, 0, 5), judged(log, 8, 10)
    assert (earlier.inverted, earlier.repeated) == (1, 0)
    assert (later.inverted, later.repeated) == (1, 1)


def test_a_record_cut_off_by_a_kill_is_read_when_it_is_whole(tmp_path: Path) -> None:
    log = Log(tmp_path)
    file = log.new_file("c")
    whole = DONE.pack(10, 0, 5) + DONE.pack(20, 1, 5)
    file.write_bytes(whole[:-3])
    assert log.distinct() == 1
    file.write_bytes(whole)
    assert log.distinct() == 2
    assert (log.last_ns, log.newest) == (20, 1)


def test_a_gap_counts_for_the_window_in_which_its_key_goes_on(tmp_path: Path) -> None:
    log = log_of(
        tmp_path,
        [(1_000_000, 0, 5), (2_000_000, 1, 6), (5_000_000, 2, 5)],
        [(6_000_000, 0, 5), (9_000_000, 3, 6)],
    )
    log.distinct()
    assert longest_gaps_ms(log, 0, 4, [1_500_000, 8_000_000, 10_000_000]) == [4.0, 7.0, 0.0]


def test_a_repeat_does_not_end_a_gap(tmp_path: Path) -> None:
    log = log_of(tmp_path, [(1_000_000, 0, 5), (2_000_000, 0, 5), (3_000_000, 1, 5), (4_000_000, 2, 5)])
    log.distinct()
    assert longest_gaps_ms(log, 0, 2, [0]) == [2.0]
