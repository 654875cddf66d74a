"""A schedule is a pure function of seed, engine and sizes."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict

import pytest

from testing import ROOT
from testing.chaos.schedule import LASTS_S, WEIGHTS, Fault, Sizes, Target, schedule_of
from testing.chaos.stream import keys_of

SIZES = Sizes()
ENGINES = sorted(WEIGHTS)


@pytest.mark.process
def test_the_same_seed_gives_the_same_faults_and_messages_in_another_process() -> None:
    code = (
        "from testing.chaos.schedule import *; from testing.chaos.stream import *;"
        "print(schedule_of(7, 'rabbitmq', Sizes()), keys_of(7, 1, 1000, 500))"
    )
    root = ROOT
    told = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    assert told.stdout.strip() == f"{schedule_of(7, 'rabbitmq', SIZES)} {keys_of(7, 1, 1000, 500)}"


def test_another_seed_gives_others() -> None:
    assert schedule_of(7, "embedded", SIZES) != schedule_of(8, "embedded", SIZES)
    assert keys_of(7, 0, 100, 500) != keys_of(8, 0, 100, 500)
    assert keys_of(7, 0, 100, 500) != keys_of(7, 1, 100, 500)


@pytest.mark.parametrize("engine", ENGINES)
def test_it_has_as_many_faults_as_asked_for_and_they_are_spread_over_the_time(engine: str) -> None:
    planned = schedule_of(3, engine, SIZES)
    assert [each.number for each in planned] == list(range(200))
    assert sorted(planned, key=lambda each: each.at_s) == planned
    assert 540 < planned[-1].at_s < 720


@pytest.mark.parametrize("engine", ENGINES)
def test_a_victim_has_one_fault_at_a_time_and_the_broker_one_node(engine: str) -> None:
    sizes = Sizes(nodes=3)
    over_at: dict[tuple[Target, int], float] = defaultdict(float)
    for each in schedule_of(5, engine, sizes):
        target = each.fault.target
        victim = (target, 0 if target is Target.BROKER else each.victim)
        assert each.at_s >= over_at[victim]
        over_at[victim] = each.at_s + each.lasts_s


def test_every_fault_of_an_engine_comes_up_and_none_that_it_does_not_have() -> None:
    for engine, weights in WEIGHTS.items():
        drawn = {each.fault for seed in range(5) for each in schedule_of(seed, engine, SIZES)}
        assert drawn == set(weights)
    assert set(LASTS_S) == set(Fault) == {fault for weights in WEIGHTS.values() for fault in weights}


def test_faults_last_as_many_heartbeats_however_long_these_are() -> None:
    quick = schedule_of(1, "embedded", Sizes(heartbeat_s=1))
    for each in quick:
        assert each.lasts_s <= LASTS_S[each.fault][1] / 3
