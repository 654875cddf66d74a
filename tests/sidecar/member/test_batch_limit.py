"""Size of the batches of a server, against servers with known times."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.limits import SAMPLES, BatchLimit

HANDOFF_S = 3.0
MOST = 400
SIZE = 200
REQUESTS = 2


@dataclass
class Server:
    """Gets requests of up to 200 messages, two under way, and works on one request after the other; a request of `n`
    takes `takes_s(n)`."""

    limit: BatchLimit
    takes_s: Callable[[int], float]
    now: float = 0.0
    free_at: float = 0.0
    under_way: deque[tuple[float, float, list[InFlight]]] = field(default_factory=deque)

    def answer(self, count: int) -> Iterator[tuple[int, float]]:
        """So many requests are answered; yields of each how many messages it had, and how long they waited for it."""
        for _ in range(count):
            while len(self.under_way) < REQUESTS and (request := self.gather()):
                self.free_at = max(self.now, self.free_at) + self.takes_s(len(request))
                self.under_way.append((self.free_at, self.now, request))
            self.now, given_at, request = self.under_way.popleft()
            for held in request:
                self.limit.ended(held, self.now - given_at, self.now)
            yield len(request), self.now - given_at

    def gather(self) -> list[InFlight]:
        out = sum(len(request) for _, _, request in self.under_way)
        request: list[InFlight] = []
        while len(request) < SIZE and out + len(request) < self.limit.size:
            held = InFlight(Attachment(0, 1), 1)
            self.limit.began(held)
            request.append(held)
        return request

    def settle(self, count: int) -> None:
        for _ in self.answer(count):
            pass


def server(
    *, once_s: float = 0.0, each_s: float = 0.0, most: int = MOST, expects_move: bool = False
) -> Server:
    """`once_s` for a request, `each_s` for each of its messages."""
    limit = BatchLimit(most, HANDOFF_S)
    limit.expects_move = expects_move
    return Server(limit, lambda count: once_s + count * each_s)


def test_it_begins_with_one_message() -> None:
    assert BatchLimit(MOST, HANDOFF_S).size == 1


@pytest.mark.parametrize("each_s", [0.01, 0.05, 0.2, 0.5, 1.0])
def test_all_that_a_serial_server_has_is_answered_within_a_handoff(each_s: float) -> None:
    assert max(waited_s for _, waited_s in server(each_s=each_s).answer(100)) <= HANDOFF_S


@pytest.mark.parametrize("each_s", [2.0, 3.5])
def test_a_serial_server_of_slow_messages_has_hardly_ever_more_than_one(each_s: float) -> None:
    counts = [count for count, _ in server(each_s=each_s).answer(200)]
    assert max(counts) <= 2
    assert sum(count - 1 for count in counts) <= 30


@pytest.mark.parametrize(
    ("once_s", "each_s", "least"),
    [(0.001, 0.0001, MOST), (0.05, 0, MOST), (0.5, 0, MOST), (1.5, 0, SIZE), (3.5, 0, SIZE // 2)],
)
def test_a_server_that_works_on_a_batch_at_once_has_large_ones_within_a_few_requests(
    once_s: float, each_s: float, least: int
) -> None:
    """Of two slow requests the second waits for the first, so that less may be out."""
    parallel = server(once_s=once_s, each_s=each_s)
    parallel.settle(14)
    assert parallel.limit.size >= least


@pytest.mark.long
def test_a_server_that_becomes_slow_gets_batches_that_fit_again() -> None:
    serial = server(each_s=0.001)
    serial.settle(50)
    assert serial.limit.size == MOST
    serial.takes_s = lambda count: count * 0.1
    serial.settle(4)
    assert max(waited_s for _, waited_s in serial.answer(50)) <= HANDOFF_S


def test_a_slow_first_request_does_not_count_for_long() -> None:
    serial = server(each_s=0.02)
    serial.takes_s = lambda _: 10.0
    serial.settle(1)
    serial.takes_s = lambda count: count * 0.02
    serial.settle(20)
    assert max(waited_s for _, waited_s in serial.answer(50)) <= HANDOFF_S


@pytest.mark.long
def test_a_server_that_has_become_quick_gets_full_batches_again() -> None:
    serial = server(each_s=3.5)
    serial.settle(10)
    assert serial.limit.size == 1
    serial.takes_s = lambda count: count * 0.001
    serial.settle(100)
    assert serial.limit.size == MOST


@pytest.mark.long
def test_before_a_move_no_second_message_is_tried_whose_end_might_not_be_awaited() -> None:
    slow = server(once_s=2.0, expects_move=True)
    slow.settle(20)
    assert slow.limit.size == 1
    slow.limit.expects_move = False
    slow.settle(20)
    assert slow.limit.size >= SIZE // 2


def test_what_was_learned_from_a_few_batches_stands_when_a_move_is_expected() -> None:
    slow = server(once_s=2.0)
    slow.settle(2 + SAMPLES)
    slow.limit.expects_move = True
    assert slow.limit.size > 1


def test_a_batch_that_was_cut_off_makes_room_and_teaches_nothing() -> None:
    limit = BatchLimit(MOST, HANDOFF_S)
    for tag in range(100):
        held = InFlight(Attachment(0, 1), tag)
        limit.began(held)
        limit.dropped(held)
    assert limit.size == 1


@given(
    times=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=20),
    most=st.integers(1, 500),
)
def test_it_is_never_less_than_one_nor_more_than_may_be(times: list[float], most: int) -> None:
    any_kind = server(most=most)
    for number in range(60):
        once_s = times[number % len(times)]
        any_kind.takes_s = lambda count, once_s=once_s: once_s * (1 + count % 3)
        any_kind.settle(1)
        assert 1 <= any_kind.limit.size <= most
