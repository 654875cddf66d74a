"""Looks at the groups of a broker: shared, soon when asked for, and never a lie when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from lbg_core.admin import GroupNotFound, ProvisioningError, Unreachable
from lbg_core.admin.describe import Description
from lbg_core.group import GroupSpec
from lbg_core.group.member_state import Identity, Rebalance
from lbg_core.group.members_protocol import Beat
from lbg_operator.reconcile.object_cache import Key
from lbg_operator.reconcile.survey_cache import INTERVAL_S, LIMIT_S, SOON_S, UNSETTLED_PER_S, SurveyCache
from testing.virtual_time import in_virtual_time

MAIN, OTHER = Key("shop", "main"), Key("shop", "other")
A, B = Key("shop", "a"), Key("shop", "b")
SOON_ENOUGH_S = SOON_S + 0.1


def spec(name: str) -> GroupSpec:
    return GroupSpec(name, name, hash_count=8, queue_count=2, queue_size_mb=1, client_username=name)


def description(name: str) -> Description:
    return Description(name, spec(name), (), 0, 0, (), ())


@dataclass
class Survey:
    """`asked`: the groups of each look. `answer` says what is found of a group, or raises."""

    asked: list[set[str]] = field(default_factory=list)
    answer: Callable[[str], Description | ProvisioningError] = description
    takes_s: float = 0.0

    async def __call__(self, specs: Mapping[str, GroupSpec]) -> dict[str, Description | ProvisioningError]:
        self.asked.append(set(specs))
        await asyncio.sleep(self.takes_s)
        return {name: self.answer(name) for name in specs}


@dataclass
class Place:
    told: list[Key] = field(default_factory=list)
    survey: Survey = field(default_factory=Survey)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.looks = SurveyCache(self.told.append, now=loop.time, timestamp=lambda: f"{loop.time():.0f}")

    async def __aenter__(self) -> Place:
        self.looks.begin(MAIN, self.survey)
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.looks.close()


@in_virtual_time
async def test_a_group_is_looked_at_soon_and_then_every_half_minute() -> None:
    async with Place() as place:
        place.looks.watch(A, MAIN, spec("a"))
        await asyncio.sleep(SOON_ENOUGH_S)
        assert place.survey.asked == [{"a"}]
        await asyncio.sleep(9 * INTERVAL_S)
        assert 9 <= len(place.survey.asked) <= 12


@in_virtual_time
async def test_what_a_look_shows_is_told_when_it_is_new_and_again_every_five_minutes() -> None:
    async with Place() as place:
        place.looks.watch(A, MAIN, spec("a"))
        await asyncio.sleep(9 * INTERVAL_S)
        assert place.told == [A]
        await asyncio.sleep(3 * INTERVAL_S)
        assert place.told == [A, A]
        place.told.clear()

        for answer in (
            lambda name: replace(description(name), unrouted=1),
            lambda name: Unreachable("gone"),
            lambda name: Unreachable("still gone"),
            lambda name: GroupNotFound(name),
            lambda name: description(name),
        ):
            place.survey.answer = answer
            await asyncio.sleep(2.5 * INTERVAL_S)
            assert place.told == [A]
            place.told.clear()


@in_virtual_time
async def test_looks_that_are_asked_for_at_the_same_time_are_one() -> None:
    async with Place() as place:
        for name in ("a", "b", "c"):
            place.looks.watch(Key("shop", name), MAIN, spec(name))
        await asyncio.sleep(SOON_ENOUGH_S)
        assert place.survey.asked == [{"a", "b", "c"}]
        for _ in range(50):
            place.looks.soon(A)
            place.looks.soon(B)
        await asyncio.sleep(SOON_ENOUGH_S)
        assert place.survey.asked[1:] == [{"a", "b"}]


@in_virtual_time
async def test_a_fresh_look_begins_after_it_was_asked_for() -> None:
    async with Place(survey=Survey(takes_s=3.0)) as place:
        place.looks.watch(A, MAIN, spec("a"))
        await asyncio.sleep(SOON_S + 1)
        asked_at = asyncio.get_running_loop().time()
        look = await place.looks.fresh(A)
        assert look is not None
        assert look.at - place.survey.takes_s >= asked_at, "the one that was going on does not count"
        assert look.number == 2


@in_virtual_time
async def test_those_who_want_a_fresh_look_share_it() -> None:
    async with Place() as place:
        place.looks.watch(A, MAIN, spec("a"))
        place.looks.watch(B, MAIN, spec("b"))
        await asyncio.sleep(SOON_ENOUGH_S)
        await asyncio.gather(*(place.looks.fresh(key) for key in (A, B, A, B)))
        assert len(place.survey.asked) == 2


@in_virtual_time
async def test_nobody_waits_for_a_look_at_what_is_not_looked_at() -> None:
    async with Place() as place:
        assert await place.looks.fresh(A) is None


def unreachable(name: str) -> Description:
    raise Unreachable("no broker answers")


def broken(name: str) -> Description:
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (unreachable, "no broker answers"),
        (broken, "ZeroDivisionError"),
        (lambda name: Unreachable("not this one"), "not this one"),
    ],
)
@in_virtual_time
async def test_a_look_that_fails_is_told_as_unknown_and_the_next_may_go_well(answer: Any, why: str) -> None:
    async with Place() as place:
        place.looks.watch(A, MAIN, spec("a"))
        await asyncio.sleep(SOON_ENOUGH_S)
        place.survey.answer = answer
        failed = await place.looks.fresh(A)
        assert failed is not None
        assert failed.description is None
        assert why in failed.why
        assert not failed.is_missing
        assert failed.before == description("a")
        assert place.told == [A, A]
        place.survey.answer = description
        mended = await place.looks.fresh(A)
        assert mended is not None
        assert (mended.description, mended.why, mended.before) == (description("a"), "", description("a"))


@in_virtual_time
async def test_a_look_without_an_answer_ends_at_its_limit() -> None:
    async with Place(survey=Survey(takes_s=3600)) as place:
        place.looks.watch(A, MAIN, spec("a"))
        await asyncio.sleep(SOON_ENOUGH_S + LIMIT_S)
        look = place.looks.latest(A)
        assert look is not None
        assert "did not answer within" in look.why


@pytest.mark.long
@in_virtual_time
async def test_a_group_that_is_not_there_is_said_to_be_missing() -> None:
    async with Place(survey=Survey(answer=GroupNotFound)) as place:
        place.looks.watch(A, MAIN, spec("a"))
        await asyncio.sleep(SOON_ENOUGH_S)
        look = place.looks.latest(A)
        assert look is not None
        assert look.is_missing


@in_virtual_time
async def test_a_group_that_is_forgotten_during_a_look_is_forgotten() -> None:
    async with Place(survey=Survey(takes_s=3.0)) as place:
        place.looks.watch(A, MAIN, spec("a"))
        waiting = asyncio.create_task(place.looks.fresh(A))
        await asyncio.sleep(SOON_S + 1)
        place.looks.forget(A)
        look = await waiting
        assert look is not None
        assert look.description is None
        assert place.looks.latest(A) is None
        assert place.told == []


@in_virtual_time
async def test_a_group_with_another_spec_is_looked_at_with_that() -> None:
    async with Place() as place:
        place.looks.watch(A, MAIN, spec("a"))
        await asyncio.sleep(SOON_ENOUGH_S)
        place.looks.watch(A, MAIN, spec("a"))
        await asyncio.sleep(SOON_ENOUGH_S)
        assert len(place.survey.asked) == 1, "the same again is nothing new"
        place.looks.watch(A, MAIN, spec("renamed"))
        await asyncio.sleep(SOON_ENOUGH_S)
        assert place.survey.asked == [{"a"}, {"renamed"}]


@pytest.mark.parametrize("after_s", [0.0, SOON_S + 1])
@in_virtual_time
async def test_who_waits_for_a_look_is_answered_when_the_broker_goes(after_s: float) -> None:
    """Both before and after the look began. Earlier values do not answer a request."""
    async with Place() as place:
        place.looks.watch(A, MAIN, spec("a"))
        await asyncio.sleep(SOON_ENOUGH_S)
        place.survey.takes_s = 5.0
        waiting = asyncio.create_task(place.looks.fresh(A))
        await asyncio.sleep(after_s)
        await place.looks.end(MAIN)
        look = await asyncio.wait_for(waiting, 1)
        assert look is not None
        assert (look.description, look.why) == (None, "it is not surveyed any more")
        assert place.looks.latest(A) is None, "what was seen of a broker that is gone counts no longer"


@in_virtual_time
async def test_a_broker_that_comes_back_is_looked_at_with_its_new_connection() -> None:
    async with Place() as place:
        place.looks.watch(A, MAIN, spec("a"))
        await asyncio.sleep(SOON_ENOUGH_S)
        other = Survey()
        place.looks.begin(MAIN, other)
        await place.looks.fresh(A)
        assert (len(place.survey.asked), len(other.asked)) == (1, 1)


@in_virtual_time
async def test_one_slow_broker_holds_up_no_look_at_another() -> None:
    async with Place(survey=Survey(takes_s=15)) as place:
        other = Survey()
        place.looks.begin(OTHER, other)
        place.looks.watch(A, MAIN, spec("a"))
        place.looks.watch(B, OTHER, spec("b"))
        await asyncio.sleep(SOON_ENOUGH_S)
        assert place.looks.latest(A) is None
        assert place.looks.latest(B) is not None


def rebalancing(name: str, word: str) -> Description:
    return replace(description(name), members=(Beat(Identity(0, "pod-0", "i"), rebalance=Rebalance(word)),))


@in_virtual_time
async def test_a_group_whose_members_rebalance_is_looked_at_until_they_are_done() -> None:
    async with Place() as place:
        place.looks.watch(A, MAIN, spec("a"))
        place.looks.watch(B, MAIN, spec("b"))
        await asyncio.sleep(SOON_ENOUGH_S)
        place.survey.takes_s = 1.5
        word = "HoldDown"
        place.survey.answer = lambda name: rebalancing(name, word if name == "a" else "Ready")
        place.looks.soon(A)
        for next_word in ("Rebalancing", "Ready"):
            await asyncio.sleep(8)
            place.told.clear()
            word = next_word
            await asyncio.sleep(4.5)
            assert A in place.told
            assert place.looks.latest(A).description == rebalancing("a", next_word)
        asked = place.survey.asked
        assert not [one for one in asked[1:] if one not in ({"a"}, {"a", "b"})]
        await asyncio.sleep(5)
        before = len(asked)
        await asyncio.sleep(2 * INTERVAL_S)
        assert len(asked) - before <= 3, "at rest there are no more looks than before"


@in_virtual_time
async def test_hundreds_of_groups_that_rebalance_at_once_are_looked_at_more_seldom() -> None:
    async with Place() as place:
        place.survey.answer = lambda name: rebalancing(name, "Rebalancing")
        for number in range(500):
            place.looks.watch(Key("shop", f"g{number}"), MAIN, spec(f"g{number}"))
        await asyncio.sleep(INTERVAL_S)
        assert len(place.survey.asked) <= INTERVAL_S * UNSETTLED_PER_S / 500 + 2
