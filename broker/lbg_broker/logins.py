"""Logins: the costly hash off the event loop, fair between addresses; refusals answered late.

A password's hash is costly on purpose. It is computed on one thread, one at a time, and after a wrong password the
thread rests for fifteen times what a hash takes: wrong passwords cost at most 7 % of a core. A login that was
right or wrong before is answered from memory (`core/permissions.py`), so members that reconnect wait for nobody.

Who is next: the address with the fewest wrong passwords, and of its logins the newest, because older ones are more
likely to have been given up. A refusal is answered after a delay, which doubles with each refusal of its address and
grows with the number of answers that wait, so that the rate of attempts is bounded whatever the number of connections.
A right password is never delayed: an honest client may share its address with another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from concurrent.futures import Future as ThreadFuture
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from lbg_broker.core.permissions import LoginRefused, User, Users
from lbg_core.passwords import is_password_of_user
from lbg_core.peers import PeerLog, network_of, printable


@dataclass(frozen=True, slots=True)
class LoginUnchecked:
    """The password was not checked within the time limit; the reason is for the log."""

    reason: str


Outcome: TypeAlias = User | LoginRefused | LoginUnchecked


@dataclass(slots=True, eq=False)
class Attempt:
    """One login; `peer` is its name in the log."""

    peer: str
    address: str
    name: str
    password: str = field(repr=False)
    loopback: bool
    answer: asyncio.Future[Outcome] = field(repr=False)
    expiry: asyncio.TimerHandle | None = field(repr=False, default=None)


@dataclass(frozen=True, slots=True)
class LoginLimits:
    """- `first_delay_s`, `max_delay_s`: delay of an address's first refusal, and the bound of its doubling. Clients
      wait ten seconds for an answer (`connect_timeout_s` of LBG's), which has to arrive in that time.
    - `forget_s`: seconds after which one refusal of an address is forgotten.
    - `spacing_s`, `spacing_in_all_s`: seconds that each waiting refusal adds to the next one's delay, of its address
      and of any: an address has 6.7 attempts a second, all together have 200. The thread checks 15 a second, and more
      than the attempts of an address also on a busy machine, so a newcomer is not behind them.
    - `longest_delay_s`: bound of all that.
    - `longest_wait_s`: time for a login to be checked. Clients give up earlier; it bounds what those hold who do not.
    - `rest_s`: rest of the thread after a wrong password, whose hash takes 4 ms.
    - `waiting_max`: logins that wait for the thread; beyond it the oldest of the address with the most is given up.
    - `addresses_max`: addresses whose refusals are remembered.
    """

    first_delay_s: float = 0.1
    max_delay_s: float = 4.0
    forget_s: float = 5.0
    spacing_s: float = 0.15
    spacing_in_all_s: float = 0.005
    longest_delay_s: float = 180.0
    longest_wait_s: float = 60.0
    rest_s: float = 0.06
    waiting_max: int = 4096
    addresses_max: int = 4096


@dataclass(slots=True)
class _Refusals:
    """Of one address: how many, less what was forgotten up to `at`, and how many answers wait."""

    count: float
    at: float
    held: int = 0


class LoginQueue:
    """Order of checks and delays of refusals: no clock, no thread, no loop."""

    def __init__(self, limits: LoginLimits | None = None) -> None:
        self._limits = limits or LoginLimits()
        self._refusals: OrderedDict[str, _Refusals] = OrderedDict()
        self._waiting: dict[str, dict[Attempt, None]] = {}  # in the order in which they came
        self._waiting_count = 0
        self._held = 0
        self.free_at = 0.0

    def __len__(self) -> int:
        return self._waiting_count

    def add(self, attempt: Attempt) -> None:
        """Let a login wait for the thread."""
        self._waiting.setdefault(network_of(attempt.address), {})[attempt] = None
        self._waiting_count += 1

    def excess(self) -> Attempt | None:
        """The login that waits no more if too many do: the oldest of the address with the most."""
        if self._waiting_count <= self._limits.waiting_max:
            return None
        most = max(self._waiting.values(), key=lambda waiting: len(waiting))
        oldest = next(iter(most))
        self.discard(oldest)
        return oldest

    def discard(self, attempt: Attempt) -> None:
        """The login waits no more; nothing happens to one that does not."""
        network = network_of(attempt.address)
        waiting = self._waiting.get(network, {})
        if attempt in waiting:
            del waiting[attempt]
            self._waiting_count -= 1
            if not waiting:
                del self._waiting[network]

    def next(self, now: float) -> Attempt | None:
        """The login to check now; None before `free_at`, and if none waits."""
        if now < self.free_at or not self._waiting:
            return None
        network = min(self._waiting, key=lambda one: self._count_of(one, now))
        attempt = next(reversed(self._waiting[network]))
        self.discard(attempt)
        if network in self._waiting:  # the next turn is that of another address with as few refusals
            self._waiting[network] = self._waiting.pop(network)
        return attempt

    def alike(self, attempt: Attempt) -> list[Attempt]:
        """The logins that wait with the same name and password."""
        login = (attempt.name, attempt.password)
        return [
            one for waiting in self._waiting.values() for one in waiting if (one.name, one.password) == login
        ]

    def checked(self, *, is_right: bool, now: float) -> None:
        """The thread has checked a password."""
        self.free_at = now if is_right else now + self._limits.rest_s

    def refused(self, address: str, now: float) -> float:
        """Count a refusal, whose answer is held from now on; returns the seconds until it is given."""
        limits, network = self._limits, network_of(address)
        refusals = self._refusals.get(network)
        if refusals is None:
            if len(self._refusals) >= limits.addresses_max:
                self._forget_one()
            refusals = self._refusals[network] = _Refusals(0.0, now)
        doublings = self._count_of(network, now)
        refusals.count, refusals.at = min(doublings + 1, _DOUBLINGS_MAX), now
        refusals.held += 1
        self._held += 1
        self._refusals.move_to_end(network)
        delay_s = min(limits.first_delay_s * 2**doublings, limits.max_delay_s)
        crowd_s = max(
            (refusals.held - 1) * limits.spacing_s,
            (self._held - 1) * limits.spacing_in_all_s,
        )
        return min(max(delay_s, crowd_s), limits.longest_delay_s)

    def answered(self, address: str) -> None:
        """A refusal's answer is held no more."""
        self._held -= 1
        refusals = self._refusals.get(network_of(address))
        if refusals is not None and refusals.held:
            refusals.held -= 1

    def _count_of(self, network: str, now: float) -> float:
        refusals = self._refusals.get(network)
        if refusals is None:
            return 0.0
        return max(0.0, refusals.count - (now - refusals.at) / self._limits.forget_s)

    def _forget_one(self) -> None:
        """The address whose last refusal is longest ago."""
        self._refusals.popitem(last=False)


_DOUBLINGS_MAX: Final = 10.0
_UNCHECKED: Final = LoginUnchecked("not checked, because too many logins wait")

log = logging.getLogger("lbg.broker")


class Logins:
    """Checks of one broker, of its AMQP listener and its management API."""

    def __init__(
        self,
        users: Users,
        *,
        peer_log: PeerLog | None = None,
        limits: LoginLimits | None = None,
    ) -> None:
        self._users = users
        self._longest_wait_s = (limits or LoginLimits()).longest_wait_s
        self._peer_log = peer_log or PeerLog(log)
        self._queue = LoginQueue(limits)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="lbg-login")
        self._is_busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._open: set[asyncio.Future[Outcome]] = set()

    def check(
        self, name: str, password: str, *, peer: str, address: str, loopback: bool
    ) -> asyncio.Future[Outcome]:
        """The outcome of a login, a refusal after its delay. Who does not await it any more cancels it."""
        loop = asyncio.get_running_loop()
        attempt = Attempt(peer, address, name, password, loopback, self._new_answer(loop))
        known = self._users.recall(name, password, loopback=loopback)
        if known is not None:
            self._settle(attempt, known)
            return attempt.answer
        self._queue.add(attempt)
        expiry = attempt.expiry = loop.call_later(self._longest_wait_s, self._give_up, attempt)

        def end(_: asyncio.Future[Outcome]) -> None:
            expiry.cancel()
            self._queue.discard(attempt)

        attempt.answer.add_done_callback(end)
        excess = self._queue.excess()
        if excess is not None:
            self._give_up(excess)
        self._check_next()
        return attempt.answer

    def refuse(self, reason: str, *, peer: str, address: str) -> asyncio.Future[Outcome]:
        """The refusal, after its delay, of a login that has no name and password."""
        answer = self._new_answer(asyncio.get_running_loop())
        self._refuse(peer, address, LoginRefused(reason), answer)
        return answer

    def close(self) -> None:
        """Check nothing more; who awaits an outcome gets CancelledError."""
        if self._timer is not None:
            self._timer.cancel()
        for answer in list(self._open):
            answer.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _new_answer(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Outcome]:
        answer: asyncio.Future[Outcome] = loop.create_future()
        self._open.add(answer)
        answer.add_done_callback(self._open.discard)
        return answer

    def _settle(self, attempt: Attempt, outcome: User | LoginRefused) -> None:
        if isinstance(outcome, User):
            _answer(attempt.answer, outcome)
        elif attempt.answer.done():  # the client has gone, which spares its address nothing
            self._queue.refused(attempt.address, asyncio.get_running_loop().time())
            self._queue.answered(attempt.address)
        else:
            if attempt.expiry is not None:
                attempt.expiry.cancel()
            self._refuse(attempt.peer, attempt.address, outcome, attempt.answer)

    def _refuse(
        self, peer: str, address: str, refusal: LoginRefused, answer: asyncio.Future[Outcome]
    ) -> None:
        """Give the answer after its delay."""
        self._peer_log.warn(network_of(address), f"{peer}: refused: {printable(refusal.reason)}")
        loop = asyncio.get_running_loop()
        delay_s = self._queue.refused(address, loop.time())
        timer = loop.call_later(delay_s, _answer, answer, refusal)

        def end(_: asyncio.Future[Outcome]) -> None:
            timer.cancel()
            self._queue.answered(address)

        answer.add_done_callback(end)

    def _give_up(self, attempt: Attempt) -> None:
        """The time limit is over, or too many wait."""
        line = f"{attempt.peer}: refused: {_UNCHECKED.reason}"
        self._peer_log.warn(network_of(attempt.address), line)
        _answer(attempt.answer, _UNCHECKED)

    def _check_next(self) -> None:
        if self._is_busy:
            return
        loop = asyncio.get_running_loop()
        while (attempt := self._queue.next(loop.time())) is not None:
            # The same password may have been checked for another connection meanwhile.
            known = self._users.recall(attempt.name, attempt.password, loopback=attempt.loopback)
            if known is None:
                self._submit(loop, attempt)
                return
            self._settle(attempt, known)
        if len(self._queue) and self._timer is None:
            self._timer = loop.call_at(self._queue.free_at, self._rested)

    def _rested(self) -> None:
        self._timer = None
        self._check_next()

    def _submit(self, loop: asyncio.AbstractEventLoop, attempt: Attempt) -> None:
        self._is_busy = True
        password_hash = self._users.password_hash_of(attempt.name)
        checking = self._executor.submit(is_password_of_user, attempt.password, password_hash)
        checking.add_done_callback(partial(self._on_thread, loop, attempt, password_hash))

    def _on_thread(
        self,
        loop: asyncio.AbstractEventLoop,
        attempt: Attempt,
        password_hash: str,
        checking: ThreadFuture[bool],
    ) -> None:
        if not checking.cancelled() and not loop.is_closed():
            loop.call_soon_threadsafe(self._checked, attempt, password_hash, checking)

    def _checked(self, attempt: Attempt, password_hash: str, checking: ThreadFuture[bool]) -> None:
        self._is_busy = False
        try:
            self._settle_checked(attempt, password_hash, is_right=checking.result())
        except Exception:
            log.exception("%s: its login cannot be checked", attempt.peer)
            _answer(attempt.answer, _UNCHECKED)
        self._check_next()

    def _settle_checked(self, attempt: Attempt, password_hash: str, *, is_right: bool) -> None:
        self._queue.checked(is_right=is_right, now=asyncio.get_running_loop().time())
        self._users.remember(attempt.name, attempt.password, password_hash, is_right=is_right)
        outcome = self._users.recall(attempt.name, attempt.password, loopback=attempt.loopback)
        if isinstance(outcome, User):
            for one in (attempt, *self._queue.alike(attempt)):
                known = self._users.recall(one.name, one.password, loopback=one.loopback)
                self._settle(one, outcome if known is None else known)
        elif outcome is not None:
            self._settle(attempt, outcome)
        elif not attempt.answer.done():  # the user's password was changed while the old one was checked
            self._queue.add(attempt)


def _answer(answer: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not answer.done():
        answer.set_result(outcome)
