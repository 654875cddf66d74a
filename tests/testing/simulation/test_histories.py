"""Histories of fixed seeds have no violation, and each planted bug is found."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from lbg_core.group import BY_LOAD, MESSAGE_GROUPS, PARTITIONED, RABBITMQ, STATIC
from lbg_core.group.topology import EMBEDDED
from lbg_sidecar.core.member_core import MemberCore
from lbg_sidecar.core.rebalance import Balancer
from testing import ROOT
from testing.needs import repeated
from testing.simulation.context import Setting
from testing.simulation.faults import PLANNED, Fault
from testing.simulation.history import History
from testing.simulation.parking_faults import PARKING
from testing.simulation.planted import BUGS
from testing.simulation.runs import INSTALLATIONS
from testing.simulation.shrinking import shrunk

SEEDS = (1, 2)
REPOSITORY = ROOT
COVERED = (Setting(), Setting(assignment=STATIC), Setting(engine=RABBITMQ), Setting(assignment=BY_LOAD))
"""Installations of which others have each part: parking, and the assignments on RabbitMQ."""
EACH = [pytest.param(one, marks=[pytest.mark.slow] * (one in COVERED)) for one in INSTALLATIONS]
LONG = {
    "a_batch_that_found_no_room_is_forgotten",
    "a_close_does_not_wait_for_acks",
    "a_commit_is_not_synced",
    "a_hash_keeps_its_former_queue_too",
    "a_key_goes_on_behind_a_failed_message",
    "a_key_goes_on_until_its_entry_is_read",
    "a_key_stops_behind_its_dead_letter",
    "a_member_cancels_before_it_closes",
    "a_member_keeps_the_former_number_of_queues",
    "a_parked_message_is_acknowledged_before_its_entry",
    "a_publish_is_confirmed_before_its_commit",
    "a_publisher_sends_again_in_another_order",
    "a_queue_has_two_active_consumers",
    "a_queue_is_activated_without_a_barrier",
    "a_queue_is_released_before_its_acks",
    "a_requeued_message_goes_behind_the_next",
    "keys_move_to_another_partition_at_once",
    "members_have_windows_of_different_sizes",
    "queues_change_before_they_are_drained",
}
"""Planted bugs that take a second and more; one has members attach again and again until the history ends."""


@pytest.mark.parametrize("installation", EACH, ids=lambda one: one.title)
@pytest.mark.parametrize("seed", repeated(SEEDS))
def test_a_history_has_no_violation(installation: Setting, seed: int) -> None:
    history = History(seed, replace(installation, seconds=30.0, faults_per_hour=4000.0))
    assert history.run() == [], history.timeline()
    assert len(history.judge.processed) > 250
    assert len(history.faults) == 33


@pytest.mark.parametrize("installation", EACH, ids=lambda one: one.title)
def test_planned_operations_repeat_nothing(installation: Setting) -> None:
    kinds = (*PLANNED, *PARKING) if installation.has_parking else PLANNED
    setting = replace(installation, seconds=12.0, faults_per_hour=5000.0, rate_hz=100.0, kinds=kinds)
    history = History(1, setting)
    assert history.run() == [], history.timeline()
    assert history.judge.repeats == 0
    assert len(history.judge.processed) > 700


@pytest.mark.parametrize("engine", repeated([EMBEDDED, RABBITMQ]))
def test_queues_move_by_load_and_nothing_is_repeated(engine: str) -> None:
    setting = Setting(engine=engine, assignment=BY_LOAD, seconds=60.0, faults_per_hour=900.0)
    history = History(1, replace(setting, kinds=("slow_member", "propose", "repartition")))
    assert history.run() == [], history.timeline()
    assert history.judge.moves_by_load >= 5
    assert history.judge.repeats == 0


@pytest.mark.slow
def test_a_message_of_a_store_that_was_replaced_need_not_come_again() -> None:
    """A member that has not noticed yet begins a message that the old copy of the store does not have."""
    assert History(20016, Setting(mode=PARTITIONED, seconds=600.0)).run() == []


@pytest.mark.slow
def test_a_message_of_a_store_that_was_replaced_may_come_behind_later_ones() -> None:
    """A member that stood still begins it when the others have gone on with the old copy of the store."""
    history = History(211838655, Setting(mode=MESSAGE_GROUPS, seconds=600.0))
    assert history.run() == [], history.timeline()


def test_a_message_that_its_publisher_forgot_need_not_come_again() -> None:
    """It was on its way when the publisher lost its state, and begins before the broker, which loses it, has it on its
    disk."""
    faults = [
        Fault(34.0, "freeze_broker", 0.5, 0.75),
        Fault(39.0, "fill_disk", 0.5, 0.6),
        Fault(39.5, "put_back_state", 0.5, 0.1),
        Fault(40.3, "kill_broker", 0.2, 0.1),
    ]
    setting = Setting(seconds=60.0, members=4, queues=8, keys=4, rate_hz=30.0)
    history = History(4, setting, faults=faults)
    assert history.run() == [], history.timeline()


@pytest.mark.slow
def test_a_message_that_was_discarded_in_a_store_that_was_replaced_need_not_come_again() -> None:
    """Members remember that it is done, though the old copy of the store does not."""
    setting = Setting(seconds=120.0, faults_per_hour=3000.0, has_parking=True)
    assert History(916, setting).run() == []


def test_a_release_ends_when_nothing_is_parked_behind_what_it_released() -> None:
    """Messages were on the way to the parking queue when the last one before them was processed: their key was free for
    a moment, and then parked although nothing had failed."""
    setting = Setting(members=4, queues=8, keys=10, seconds=60.0, faults_per_hour=3000.0, rate_hz=60.0)
    history = History(5, replace(setting, kinds=PARKING, has_parking=True))
    assert history.is_undisturbed
    assert history.run() == [], history.timeline()


@pytest.mark.parametrize("engine", repeated([EMBEDDED, RABBITMQ]))
def test_other_keys_flow_while_keys_are_parked(engine: str) -> None:
    setting = Setting(engine=engine, keys=5, kinds=("poison",), faults_per_hour=0.0, has_parking=True)
    history = History(2, setting)
    history.application.chances.retry = 0.0  # two calls that fail by chance park their key
    history.parkings.poison("p0-k1", is_one=False, seconds=1000.0)
    history.parkings.poison("p1-k2", is_one=True, seconds=1000.0)
    history.clock.run(60.0)
    assert {one.key for one in history.parkings.keys.parked()} == {"p0-k1", "p1-k2"}
    assert history.parkings.keys.messages > 100
    assert len(history.judge.unfinished() - history.parkings.parked_bodies()) < 10
    assert history.judge.violations == []
    history.end()


@pytest.mark.parametrize("engine", [EMBEDDED, RABBITMQ])
def test_the_end_of_a_member_at_rest_shows_in_its_last_will(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wills: list[int] = []
    willed = MemberCore.willed

    def received(self: MemberCore, index: int, now: float) -> None:
        wills.append(index)
        willed(self, index, now)

    monkeypatch.setattr(MemberCore, "willed", received)
    history = History(1, Setting(engine=engine, faults_per_hour=0.0))
    history.clock.run(30.0)
    wills.clear()
    roster = history.members[3].machine.roster
    assert roster.me is not None
    history.members[3].kill()
    history.clock.run(30.2)
    assert set(wills) == {roster.me.index}
    history.end()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in BUGS]
)
def test_a_planted_bug_is_found(name: str) -> None:
    bug = BUGS[name]
    with bug.planted():
        assert any(History(seed, bug.setting).run() for seed in bug.seeds)


@pytest.mark.process
@pytest.mark.parametrize("engine", repeated([EMBEDDED, RABBITMQ]))
def test_one_seed_gives_one_history_whatever_the_seed_of_hashes_is(engine: str) -> None:
    command = [sys.executable, "-m", "testing.simulation", "--engine", engine, "--parking", "--seed", "3"]
    first, second = (
        subprocess.run(
            [*command, "--mode", "Exclusive", "--seconds", "12", "--faults-per-hour", "6000"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert b"digest of all calls" in first
    assert first == second


@pytest.mark.parametrize("engine", repeated([RABBITMQ, EMBEDDED]))
def test_members_at_rest_attach_to_no_further_queue(engine: str) -> None:
    """As they did while passive declares of the simulated RabbitMQ counted no consumers."""
    history = History(1, Setting(engine=engine, faults_per_hour=0.0))
    history.clock.run(30.0)
    machines = [one.machine for one in history.members]
    epochs = [[binding.epoch for binding in one.bindings.all] for one in machines]
    history.clock.run(60.0)
    assert epochs == [[binding.epoch for binding in one.bindings.all] for one in machines]
    history.end()


@pytest.mark.slow
def test_a_history_with_a_violation_shrinks_to_few_faults() -> None:
    kinds = ("put_back_state", "cut", "delay", "kill_member")
    setting = Setting(members=3, queues=8, seconds=40.0, faults_per_hour=1500.0, kinds=kinds)
    with BUGS["a_publisher_goes_on_in_the_epoch_of_its_state"].planted():
        history = next(one for seed in range(1, 9) if (one := History(seed, setting)).run())
        short = shrunk(history.seed, setting, history.faults)
    assert short.judge.violations
    assert len(short.faults) <= 3
    assert "goes on from an old copy of its state" in short.timeline()
    assert "VIOLATION" in short.timeline()


def test_an_exception_of_a_machine_is_a_violation_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Balancer, now: float) -> None:
        raise ValueError("a queue without a number")

    monkeypatch.setattr(Balancer, "balance", fail)
    history = History(1, Setting(members=2, queues=4, seconds=20.0))
    (violation,) = history.run()
    assert violation.startswith("ValueError at test_histories.py:")
    assert violation.endswith("a queue without a number")
    assert violation in history.timeline()
