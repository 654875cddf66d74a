"""The judge of a cell: a pure function of what was published and of when the applications' calls began and ended.

Each process of an application appends lines to a file of its own, `KIND TIME CALL NUMBER KEY`: the kind is S (a call
begins), F (it is finished) or A (it was aborted), the time is CLOCK_BOOTTIME in nanoseconds, which all processes of a
machine share, and number and key are what the generator put into the body.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

STARTED, FINISHED, ABORTED = "S", "F", "A"

LIMIT_S = 2.5
"""The default handoff time is 3 s, and a call that is cut off when it ends began before it, but for the time that it
takes to tell a member."""


class NotRecorded(ValueError):
    """A line that no application of this harness writes."""


@dataclass(slots=True)
class Call:
    """One call of an application. `end_ns` None: it neither finished nor was aborted; its process was killed, and ran
    at least until `alive_ns`, the last line of the same process."""

    process: str
    number: int
    key: str
    start_ns: int
    end_ns: int | None = None
    finished: bool = False
    alive_ns: int = 0

    @property
    def ran_until_ns(self) -> int:
        return self.alive_ns if self.end_ns is None else self.end_ns

    def __str__(self) -> str:
        how = "finished" if self.finished else "cut off"
        ran_ms = (self.ran_until_ns - self.start_ns) / 1e6
        return f"{self.process} at {self.start_ns / 1e9:.3f} s for {ran_ms:.1f} ms ({how})"


def calls_of(process: str, lines: Iterable[str]) -> list[Call]:
    """The calls in the file of one process, in the order of their starts. A command that was started again appends to
    the file of the one before: the calls' names say which process made them. Raises NotRecorded."""
    calls: list[Call] = []
    running: dict[str, Call] = {}
    alive_ns: dict[str, int] = {}
    owners: list[str] = []
    for line in lines:
        try:
            kind, time, name, number, key = line.split()
            at_ns, at = int(time), int(number)
        except ValueError:
            raise NotRecorded(f"{process}: {line!r}") from None
        owner = name.partition("-")[0]
        alive_ns[owner] = at_ns
        if kind == STARTED and name not in running:
            running[name] = call = Call(process, at, key, at_ns)
            calls.append(call)
            owners.append(owner)
        elif kind in (FINISHED, ABORTED) and name in running:
            call = running.pop(name)
            call.end_ns, call.finished = at_ns, kind == FINISHED
        else:
            raise NotRecorded(f"{process}: {line!r} follows nothing that it could follow")
    for call, owner in zip(calls, owners, strict=True):
        call.alive_ns = alive_ns[owner]
    return calls


@dataclass(slots=True)
class Findings:
    """The offences of a cell, each with a line of text.

    - `lost`: published, and no call with it finished.
    - `repeated`: called with again, though the calls before had finished, or had begun less than the limit before.
    - `cut_off`: called with again after calls that had not finished by then (aborted, killed or still running), and had
      had the time that a handoff may take.
    - `inverted`: the first call with it came after the first call with a later one of its lane.
    - `overlapped`: two calls of a lane at the same time, with different messages.
    - `doubled`: two calls with the same message at the same time; it is also in `cut_off` or `repeated`.
    - `strange`: a call with a message that nobody published, or with another key.
    """

    messages: int = 0
    calls: int = 0
    by_process: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    cut_off: list[str] = field(default_factory=list)
    inverted: list[str] = field(default_factory=list)
    overlapped: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(getattr(self, name)) for name in OFFENCES}


OFFENCES = ("lost", "repeated", "cut_off", "inverted", "overlapped", "doubled", "strange")

Lane = Callable[[Call], str]


def by_key(call: Call) -> str:
    """In most modes calls of one key come one after another, whoever makes them."""
    return call.key


def by_process(call: Call) -> str:
    """In mode Sessions a session's messages come one after another; a key's may be in several sessions."""
    return call.process.partition(".")[0]


def judge(
    sent: Mapping[int, str], calls: Iterable[Call], *, lane: Lane = by_key, limit_s: float = LIMIT_S
) -> Findings:
    """`sent`: what the input of the publisher held, number -> key. Numbers ascend in the order of publishing."""
    ordered = sorted(calls, key=lambda call: (call.start_ns, call.number))
    found = Findings(messages=len(sent), calls=len(ordered))
    by_number: dict[int, list[Call]] = defaultdict(list)
    lanes: dict[str, list[Call]] = defaultdict(list)
    for call in ordered:
        found.by_process[call.process] = found.by_process.get(call.process, 0) + 1
        if sent.get(call.number) != call.key:
            found.strange.append(f"{call.number} of {call.key}: {call}")
            continue
        by_number[call.number].append(call)
        lanes[lane(call)].append(call)
    for number, key in sent.items():
        if not any(call.finished for call in by_number.get(number, ())):
            found.lost.append(f"{number} of {key}: {_history(by_number.get(number, ()))}")
    for number, made in by_number.items():
        for text, was_cut_off in _repeats(made, round(limit_s * 1e9)):
            (found.cut_off if was_cut_off else found.repeated).append(f"{number} of {made[0].key}: {text}")
    for name, line in lanes.items():
        found.inverted.extend(f"{name}: {text}" for text in _inversions(line))
        for first, second in _overlaps(line):
            pair = found.doubled if first.number == second.number else found.overlapped
            pair.append(f"{name}: {first.number} in {first}, {second.number} in {second}")
    return found


def begun_between(calls: Iterable[Call], since_ns: int, until_ns: int) -> int:
    """The number of calls that began in a stretch of time. A move without any proves nothing."""
    return sum(since_ns <= call.start_ns <= until_ns for call in calls)


def _history(made: Iterable[Call]) -> str:
    return "; ".join(map(str, made)) or "never called"


def _repeats(made: list[Call], limit_ns: int) -> Iterator[tuple[str, bool]]:
    """Each call but the first, and whether the one before was cut off at the limit."""
    for position, call in enumerate(made[1:], 1):
        before = made[:position]
        was_finished = any(
            one.finished and one.end_ns is not None and one.end_ns <= call.start_ns for one in before
        )
        had_time = all(call.start_ns - one.start_ns >= limit_ns for one in before)
        yield _history([*before, call]), had_time and not was_finished


def _inversions(line: list[Call]) -> Iterator[str]:
    """First calls that come after the first call of a later message. `line` is in the order of starts."""
    seen: set[int] = set()
    highest: Call | None = None
    for call in line:
        if call.number in seen:
            continue
        seen.add(call.number)
        if highest is not None and call.number < highest.number:
            yield f"{call.number} in {call} after {highest.number} in {highest}"
        else:
            highest = call


def _overlaps(line: list[Call]) -> Iterator[tuple[Call, Call]]:
    """Every pair of calls that ran at the same time. `line` is in the order of starts."""
    running: list[Call] = []
    for call in line:
        running = [other for other in running if other.ran_until_ns > call.start_ns]
        for other in running:
            yield other, call
        running.append(call)
