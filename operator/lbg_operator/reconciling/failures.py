"""Failures of the API server in the rounds of each object, and their beginnings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..cluster.kinds import Kind
from ..cluster.seam import ClusterError, Forbidden, Invalid, Terminating
from ..status.judging import Unapplied
from .store import Key

log = logging.getLogger("lbg.operator")

PATIENCE_S = 1.0
"""A fault that has passed by then (a conflict, a connection that is made anew) is nobody's concern."""


@dataclass(frozen=True, slots=True)
class _Failure:
    error: ClusterError
    since: float


@dataclass(slots=True)
class _Rounds:
    now: dict[str, _Failure] = field(default_factory=dict)
    before: dict[str, _Failure] = field(default_factory=dict)


class Failures:
    """By the object whose round it is. `now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rounds: dict[Key, _Rounds] = {}

    def begin(self, owner: Key) -> None:
        """A round begins: what does not fail in it fails no longer."""
        former = self._rounds.get(owner)
        self._rounds[owner] = _Rounds() if former is None else _Rounds(before=former.now)

    @contextmanager
    def caught(self, owner: Key, kind: Kind, name: str) -> Iterator[None]:
        """Catch a ClusterError about this object, so that the round goes on to the others."""
        began = self._now()
        try:
            yield
        except Terminating as error:  # the namespace goes, with all that is in it
            log.debug("%s: %s", owner, error)
        except ClusterError as error:
            rounds, what = self._rounds.setdefault(owner, _Rounds()), f"{kind.kind} {name}"
            last = rounds.before.get(what)
            if last is None or str(last.error) != str(error):
                log.warning("%s: %s; it is tried again", owner, error)
            rounds.now.setdefault(what, _Failure(error, began if last is None else last.since))

    def of(self, owner: Key) -> Unapplied:
        """The failures of the round that are to be shown by now."""
        shown = [one for one in self._all(owner) if not self._is_young(one)]

        def words(error: type[ClusterError]) -> tuple[str, ...]:
            return tuple(str(one.error) for one in shown if _class_of(one) is error)

        return Unapplied(mistakes=words(Invalid), refusals=words(Forbidden), faults=words(ClusterError))

    def words(self, owner: Key, kind: Kind, name: str) -> str:
        """The API server's about one object, empty where it did what it was asked."""
        rounds = self._rounds.get(owner, _Rounds())
        failure = rounds.now.get(f"{kind.kind} {name}")
        return "" if failure is None else str(failure.error)

    def are_any(self, owner: Key) -> bool:
        return bool(self._all(owner))

    def may_pass(self, owner: Key) -> bool:
        """True if trying again soon may help with one of them."""
        return any(_class_of(one) is ClusterError for one in self._all(owner))

    def forget(self, owner: Key) -> None:
        self._rounds.pop(owner, None)

    def _all(self, owner: Key) -> list[_Failure]:
        rounds = self._rounds.get(owner)
        return [] if rounds is None else list(rounds.now.values())

    def _is_young(self, failure: _Failure) -> bool:
        return _class_of(failure) is ClusterError and self._now() - failure.since < PATIENCE_S


def _class_of(failure: _Failure) -> type[ClusterError]:
    """The class of an error for whoever waits: ClusterError itself is what may pass."""
    return next((one for one in (Invalid, Forbidden) if isinstance(failure.error, one)), ClusterError)
