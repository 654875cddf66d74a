"""Order of the checks of logins, and delays of refusals, without a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lbg_broker.logins import Attempt, LoginLimits, LoginQueue

ATTACKER, OTHER = "192.0.2.1", "192.0.2.2"


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def attempt(loop: asyncio.AbstractEventLoop, address: str, name: str = "guest") -> Attempt:
    return Attempt("peer", address, name, "secret", False, loop.create_future())


def refuse_and_answer(queue: LoginQueue, address: str, now: float, times: int = 1) -> list[float]:
    delays = []
    for _ in range(times):
        delays.append(queue.refused(address, now))
        queue.answered(address)
    return delays


def test_the_delay_of_an_address_doubles_up_to_its_bound_and_others_have_their_own() -> None:
    queue = LoginQueue()
    assert refuse_and_answer(queue, ATTACKER, 0.0, 8) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0]
    assert refuse_and_answer(queue, OTHER, 0.0) == [0.1]


def test_refusals_are_forgotten() -> None:
    queue = LoginQueue()
    refuse_and_answer(queue, ATTACKER, 0.0, 3)
    assert refuse_and_answer(queue, ATTACKER, 10.0) == [pytest.approx(0.2)]
    assert refuse_and_answer(queue, ATTACKER, 10_000.0) == [0.1]


def test_answers_that_wait_leave_an_address_seven_attempts_a_second_whatever_its_connections() -> None:
    queue = LoginQueue()
    delays = [queue.refused(ATTACKER, 0.0) for _ in range(1000)]
    assert delays[-1] == pytest.approx(999 * 0.15)
    assert [queue.refused(ATTACKER, 0.0) for _ in range(2000)][-1] == 180.0
    for _ in range(3000):
        queue.answered(ATTACKER)
    assert queue.refused(ATTACKER, 10_000.0) == 0.1


def test_answers_that_wait_leave_all_addresses_two_hundred_attempts_a_second() -> None:
    queue = LoginQueue()
    for number in range(1000):
        queue.refused(f"10.0.{number // 250}.{number % 250}", 0.0)
    assert queue.refused(OTHER, 0.0) == pytest.approx(1000 * 0.005)


def test_the_addresses_of_one_ipv6_network_are_one() -> None:
    queue = LoginQueue()
    assert refuse_and_answer(queue, "2001:db8::1", 0.0) == [0.1]
    assert refuse_and_answer(queue, "2001:db8::ffff:2", 0.0) == [0.2]
    assert refuse_and_answer(queue, "2001:db8:0:1::1", 0.0) == [0.1]


def test_an_address_without_refusals_is_next_before_fifteen_hundred_of_another(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = LoginQueue()
    refuse_and_answer(queue, ATTACKER, 0.0)
    for _ in range(1500):
        queue.add(attempt(loop, ATTACKER))
    honest = attempt(loop, OTHER)
    queue.add(honest)
    assert queue.next(1.0) is honest


def test_addresses_alike_take_turns_and_the_newest_login_of_each_is_first(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = LoginQueue()
    first, second, third = (attempt(loop, ATTACKER) for _ in range(3))
    other = attempt(loop, OTHER)
    for one in (first, second, third, other):
        queue.add(one)
    assert [queue.next(0.0) for _ in range(5)] == [third, other, second, first, None]


def test_the_thread_rests_after_a_wrong_password_and_not_after_a_right_one(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = LoginQueue(LoginLimits(rest_s=0.02))
    for _ in range(2):
        queue.add(attempt(loop, ATTACKER))
    queue.checked(is_right=True, now=1.0)
    assert queue.next(1.0) is not None
    queue.checked(is_right=False, now=2.0)
    assert queue.next(2.019) is None
    assert queue.next(2.021) is not None


def test_beyond_the_bound_the_oldest_login_of_the_address_with_most_is_given_up(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = LoginQueue(LoginLimits(waiting_max=3))
    one, two, three = attempt(loop, ATTACKER), attempt(loop, ATTACKER), attempt(loop, OTHER)
    for each in (one, two, three):
        queue.add(each)
    assert queue.excess() is None
    queue.add(attempt(loop, "192.0.2.3"))
    assert queue.excess() is one
    assert len(queue) == 3


def test_the_memory_of_addresses_is_bounded() -> None:
    queue = LoginQueue(LoginLimits(addresses_max=2, spacing_in_all_s=0.0))
    refuse_and_answer(queue, ATTACKER, 0.0)
    refuse_and_answer(queue, "192.0.2.3", 0.0)
    refuse_and_answer(queue, "192.0.2.4", 0.0)
    assert refuse_and_answer(queue, ATTACKER, 0.0) == [0.1], "it was the longest ago"
    assert refuse_and_answer(queue, "192.0.2.4", 0.0) == [0.2]
