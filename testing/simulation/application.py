"""The application of a member: how long its calls take, how they end, and when it hangs or crashes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from lbg_sidecar.app.channel import AppChannel, Calls
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.message import ACK, INTERRUPTED, Message, Verdict, drop, retry
from testing.simulation.context import Member
from testing.simulation.judge import Call, Judged

CRASHED = "the application has crashed"


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
    history: Judged
    chances: Chances = field(default_factory=Chances)
    calls: dict[InFlight, Call] = field(default_factory=dict)
    slowness: dict[str, float] = field(default_factory=dict)
    """By member, the factor of how long its calls take; 1 where there is none."""

    def call(self, member: Member, message: Message) -> None:
        in_flight = message.in_flight
        body: bytes = in_flight.delivery.body
        key, place = place_of(in_flight)
        history, random, chances = self.history, self.history.random, self.chances
        call = Call(member, message, member.consuming, body, key, place)
        self.calls[in_flight] = call
        history.judge.started(call)
        if history.parkings.fails(key, place):
            seconds, verdict = 0.001 + random.random() * chances.call_s, retry("poison")
        elif history.is_calm:
            seconds, verdict = 0.001, ACK
        else:
            is_slow = random.random() < chances.slow
            call_s = chances.call_s * self.slowness.get(member.name, 1.0)
            seconds = random.random() * 2 * (chances.slow_s if is_slow else call_s)
            luck = random.random()
            verdict = ACK
            if luck < chances.retry:
                verdict = retry("not now")
            elif luck < chances.retry + chances.drop:
                verdict = drop("refused")
        history.clock.after(seconds, member.process, self._end, call, verdict)

    def abort(self, member: Member, messages: Iterable[Message]) -> None:
        for message in messages:
            call = self.calls.get(message.in_flight)
            if call is not None:
                self.history.clock.after(self.history.delay_s(), member.process, self._end, call, INTERRUPTED)

    def crash(self, member: Member, seconds: float) -> None:
        """Its process ends with all calls, and is back after so long."""
        member.app_ready(False)
        for call in [one for one in self.calls.values() if one.member is member]:
            self._end(call, INTERRUPTED)
        self.history.clock.after(seconds, member.process, member.app_ready, True)

    def killed(self, member: Member) -> None:
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
        call.member.answered(call.message, verdict)


class SimChannel(AppChannel):
    """Channel of a member to its application. `is_ready`: the application runs."""

    def __init__(self, application: Application, member: Member) -> None:
        self.is_ready = True
        self.calls: Calls | None = None
        self._application = application
        self._member = member
        self._is_taking = self._is_stopped = False

    async def start(self, calls: Calls) -> None:
        self.calls = calls
        if not self.is_ready:
            calls.ready(False, CRASHED)

    def wake(self) -> None:
        calls = self.calls
        if calls is None or self._is_taking or self._is_stopped:
            return
        self._is_taking = True
        while self.is_ready and (message := calls.take()) is not None:
            self._application.call(self._member, message)
        self._is_taking = False

    def abort(self, messages: Collection[Message]) -> None:
        self._application.abort(self._member, messages)

    async def stop(self, grace_s: float) -> None:
        self._is_stopped = True

    def ready(self, is_ready: bool) -> None:
        if self.is_ready is not is_ready:
            self.is_ready = is_ready
            if self.calls is not None:
                self.calls.ready(is_ready, "" if is_ready else CRASHED)

    def ended(self, message: Message, verdict: Verdict) -> None:
        """The application has answered a call."""
        assert self.calls is not None
        self.calls.end(message, verdict)
        self.wake()
