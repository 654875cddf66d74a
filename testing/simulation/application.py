"""The application of a member: how long its calls take, how they end, and when it hangs or crashes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.message import ACK, INTERRUPTED, Verdict, drop, retry

if TYPE_CHECKING:
    from testing.simulation.history import History
    from testing.simulation.member import SimMember


@dataclass(eq=False)
class Call:
    """`row`: place in the order of `key`, or of a session. `cut_off`: another member may have its message."""

    member: SimMember
    in_flight: InFlight
    body: bytes
    key: str
    row: int
    cut_off: bool = False
    is_over: bool = False


def place_of(in_flight: InFlight) -> tuple[str, int]:
    """Returns the scope of the order of a message, and its place there.

    The order of a session is that of its numbers: a key's messages go to any session.
    """
    if (session := in_flight.attachment.session) is not None:
        return f"{session} {in_flight.epoch}", in_flight.sequence or 0
    _, key, row = in_flight.delivery.body.decode().split(" ")
    return key, int(row)


@dataclass
class Chances:
    """Of calls that fail, that are refused, and that take long."""

    retry: float = 0.01
    drop: float = 0.002
    slow: float = 0.01
    call_s: float = 0.01
    slow_s: float = 2.0


@dataclass
class Application:
    history: History
    chances: Chances = field(default_factory=Chances)
    calls: dict[InFlight, Call] = field(default_factory=dict)

    def call(self, member: SimMember, in_flight: InFlight) -> None:
        body: bytes = in_flight.delivery.body
        key, place = place_of(in_flight)
        history, random, chances = self.history, self.history.random, self.chances
        call = Call(member, in_flight, body, key, place)
        self.calls[in_flight] = call
        history.judge.started(call)
        if history.parkings.fails(key, place):
            seconds, verdict = 0.001 + random.random() * chances.call_s, retry("poison")
        elif history.is_calm:
            seconds, verdict = 0.001, ACK
        else:
            is_slow = random.random() < chances.slow
            seconds = random.random() * 2 * (chances.slow_s if is_slow else chances.call_s)
            luck = random.random()
            verdict = ACK
            if luck < chances.retry:
                verdict = retry("not now")
            elif luck < chances.retry + chances.drop:
                verdict = drop("refused")
        history.clock.after(seconds, member.process, self._end, call, verdict)

    def abort(self, member: SimMember, calls: Iterable[InFlight]) -> None:
        for in_flight in calls:
            call = self.calls.get(in_flight)
            if call is not None:
                self.history.clock.after(self.history.delay_s(), member.process, self._end, call, INTERRUPTED)

    def crash(self, member: SimMember, seconds: float) -> None:
        """Its process ends with all calls, and is back after so long."""
        for call in [one for one in self.calls.values() if one.member is member]:
            self._end(call, INTERRUPTED)
        member.app_ready(False)
        self.history.clock.after(seconds, member.process, member.app_ready, True)

    def killed(self, member: SimMember) -> None:
        """The member's process and the application's end together."""
        for in_flight, call in list(self.calls.items()):
            if call.member is member:
                call.is_over = True
                del self.calls[in_flight]
                self.history.judge.died(call)

    def _end(self, call: Call, verdict: Verdict) -> None:
        if call.is_over:
            return
        call.is_over = True
        del self.calls[call.in_flight]
        self.history.judge.finished(call, is_processed=verdict is ACK)
        call.member.ended(call.in_flight, verdict)
