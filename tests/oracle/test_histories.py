"""Random histories: every answer, every delivery and every count is RabbitMQ's.

What a failure shows becomes a small named test elsewhere. `make fuzz FUZZ_ARGS=tests/oracle/test_histories.py` plays
other histories on RabbitMQ, and shortens one that fails.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from testing.broker.engines import Engine
from testing.exploration import SEED
from testing.oracle.histories import ROUTES, STEPS, CoreSide, history_of, play, routing_of
from testing.oracle.pika_side import PikaSide
from testing.oracle.recordings import compared, recorded

# Shortening a failure takes minutes, for each try waits until RabbitMQ has surely caught up.
few = settings(
    max_examples=10,
    phases=tuple(Phase) if SEED in os.environ else (Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


def test_the_core_answers_as_recorded() -> None:
    for history in recorded("histories", Engine.version).values():
        play(CoreSide(), history, within_s=0)


@pytest.mark.slow
def test_every_history_is_answered_as_recorded(engine: Engine) -> None:
    for history in recorded("histories", engine.version).values():
        with PikaSide.on(engine) as side, compared(engine):
            play(side, history)


@pytest.mark.slow
@few
@given(steps=STEPS)
def test_rabbitmq_answers_a_random_history_as_the_core_does(
    rabbit_engine: Engine, steps: list[tuple[Any, ...]]
) -> None:
    with PikaSide.on(rabbit_engine) as side:
        play(side, history_of(steps))


@pytest.mark.slow
@few
@given(routes=ROUTES)
def test_rabbitmq_routes_every_key_as_the_core_does(
    rabbit_engine: Engine, routes: tuple[list[str], list[str]]
) -> None:
    with PikaSide.on(rabbit_engine) as side:
        play(side, routing_of(*routes))
