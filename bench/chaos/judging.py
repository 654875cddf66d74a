"""Whether the whole history keeps what LBG promises: a pure function of all records, in order of time.

| promise | what breaks it |
|---|---|
| nothing is lost | a message that no application finished, or whose refusal is not among the dead letters |
| order | a call of a message while an earlier one of its publisher and key is not finished |
| lanes | two calls of a key at once in one member |
| fencing | two calls of a key at once in two members, unless the first had lost its connection; or for too long |
| repeats | a message finished or cut off before, with no loss to explain it, or more of them than one can explain |
| identity | a message that came with another key or sequence than before |

Nothing the members say about themselves is believed here, but for what one says it cut off when it left.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.chaos.ledger import Kind, Record
from bench.chaos.losses import Loss

Name = tuple[int, int]  # publisher, position


@dataclass(frozen=True, slots=True)
class Rules:
    """`window`: unacknowledged messages of one queue that a member may hold. `overlap_s`: how long a call may go
    on after its message was given to another member. `told_twice`: for each publisher, how many messages it says
    may be in a queue twice, because their first confirm never came.
    """

    window: int
    overlap_s: float
    told_twice: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Violation:
    what: str
    name: Name
    text: str


@dataclass
class Verdict:
    """`repeats` counts by what explains them; `most_repeated` is the largest part of a window one loss repeated."""

    messages: int = 0
    calls: int = 0
    dropped: int = 0
    repeats: Counter[str] = field(default_factory=Counter)
    most_repeated: int = 0
    overlaps: int = 0
    longest_overlap_s: float = 0.0
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, what: str, name: Name, text: str) -> None:
        self.counts[what] += 1
        if self.counts[what] <= SHOWN:
            self.violations.append(Violation(what, name, text))


SHOWN = 10
"""Violations of a kind that are kept; all are counted."""

_NEVER, _OPEN, _DONE, _RETRIED, _ABORTED = range(5)


class _Stream:
    """What is known of one publisher's messages, by position."""

    def __init__(self, keys: Sequence[int]) -> None:
        self.keys = keys
        self.rank = array("I", bytes(4 * len(keys)))
        """How many earlier messages have the same key."""
        self.state = bytearray(len(keys))
        self.finished = bytearray(len(keys))
        self.accepted = bytearray(len(keys))
        """Finished with an ack, not only refused."""
        self.life = array("H", bytes(2 * len(keys)))
        self.entered_ns = array("Q", bytes(8 * len(keys)))
        self.seq = array("q", [-1]) * len(keys)
        self.done_of_key: dict[int, int] = defaultdict(int)
        """How many of a key are finished without a gap."""
        self.of_key: dict[int, array[int]] = defaultdict(lambda: array("I"))
        for position, key in enumerate(keys):
            of_key = self.of_key[key]
            self.rank[position] = len(of_key)
            of_key.append(position)

    def finish(self, position: int) -> None:
        if self.finished[position]:
            return
        self.finished[position] = 1
        key = self.keys[position]
        done, of_key = self.done_of_key[key], self.of_key[key]
        while done < len(of_key) and self.finished[of_key[done]]:
            done += 1
        self.done_of_key[key] = done


class History:
    """Feed it every record with the life that wrote it, in order of time; then ask for the `verdict`."""

    def __init__(self, streams: Sequence[Sequence[int]], losses: Collection[Loss], rules: Rules) -> None:
        self._streams = [_Stream(keys) for keys in streams]
        self._losses = sorted(losses, key=lambda loss: loss.begin_ns)
        self._rules = rules
        self._open: dict[int, list[tuple[int, Name, int]]] = defaultdict(list)  # key -> life, name, since
        self._open_of_life: dict[int, dict[Name, int]] = defaultdict(dict)
        self._overlapping: list[tuple[int, int, Name, int]] = []  # until it ends: life, since, name, begin
        self._repeats: Counter[tuple[int, int, int, int]] = Counter()  # loss, life, queue, publisher
        self._examples: dict[tuple[int, int, int, int], Name] = {}
        self._unexplained: Counter[int] = Counter()  # publisher
        self._unexplained_names: dict[int, list[tuple[Name, str]]] = defaultdict(list)
        self.verdict = Verdict(messages=sum(map(len, streams)))

    def feed(self, life: int, record: Record) -> None:
        kind = record.kind
        if kind == Kind.STARTED:
            for name in list(self._open_of_life[life]):
                self._close(life, name, None)
            return
        name = (record.publisher, record.position)
        if kind == Kind.ENTERED:
            self._enter(life, name, record)
        else:
            self._leave(life, name, record)

    # Calls

    def _enter(self, life: int, name: Name, record: Record) -> None:
        self.verdict.calls += 1
        if name[0] >= len(self._streams) or name[1] >= len(self._streams[name[0]].keys):
            self.verdict.add("identity", name, "nobody published it")
            return
        stream, position = self._streams[name[0]], name[1]
        self._check_identity(stream, name, record)
        key = stream.keys[position]
        if stream.done_of_key[key] < stream.rank[position]:
            earlier = stream.of_key[key][stream.done_of_key[key]]
            self.verdict.add(
                "order", name, f"life {life} began it before {(name[0], earlier)} of its key was finished"
            )
        self._check_alone(life, name, key, record.at_ns)
        state = stream.state[position]
        if state not in (_NEVER, _RETRIED):
            self._repeated(life, name, stream, record)
        stream.state[position] = _OPEN
        stream.life[position] = life
        stream.entered_ns[position] = record.at_ns
        self._open[key].append((life, name, record.at_ns))
        self._open_of_life[life][name] = record.at_ns

    def _leave(self, life: int, name: Name, record: Record) -> None:
        self._close(life, name, record.at_ns)
        if name[0] >= len(self._streams) or name[1] >= len(self._streams[name[0]].keys):
            return
        stream, position = self._streams[name[0]], name[1]
        is_last = stream.life[position] == life
        if record.kind in (Kind.ACKED, Kind.DROPPED):
            stream.finish(position)
            stream.accepted[position] |= record.kind == Kind.ACKED
            self.verdict.dropped += record.kind == Kind.DROPPED
            state = _DONE
        else:
            state = _RETRIED if record.kind == Kind.RETRIED else _ABORTED
        if is_last:
            stream.state[position] = state

    def _close(self, life: int, name: Name, at_ns: int | None) -> None:
        """A call is over; `at_ns` None: it was killed, nobody knows when."""
        if self._open_of_life[life].pop(name, None) is None:
            return
        calls = self._open[self._streams[name[0]].keys[name[1]]]
        calls[:] = [call for call in calls if call[:2] != (life, name)]
        for overlap in [each for each in self._overlapping if each[0] == life and each[2] == name]:
            self._overlapping.remove(overlap)
            if at_ns is not None:
                self._overlapped(overlap, at_ns)

    def _check_identity(self, stream: _Stream, name: Name, record: Record) -> None:
        position = name[1]
        if record.key != stream.keys[position]:
            self.verdict.add("identity", name, f"came with key {record.key}, not {stream.keys[position]}")
        if stream.seq[position] not in (-1, record.seq):
            self.verdict.add(
                "identity", name, f"came with sequence {record.seq} after {stream.seq[position]}"
            )
        stream.seq[position] = record.seq

    # Two at once

    def _check_alone(self, life: int, name: Name, key: int, at_ns: int) -> None:
        for other, theirs, since_ns in self._open[key]:
            if other == life:
                self.verdict.add("lanes", name, f"life {life} began it inside its own call of {theirs}")
                continue
            loss = self._loss_of(other, since_ns, at_ns)
            if loss is None:
                self.verdict.add(
                    "fencing", name, f"life {life} began it while life {other} was at {theirs} unharmed"
                )
                continue
            if self._losses[loss].why == "SIGKILL":
                continue  # that call ended with its process
            self.verdict.overlaps += 1
            self._overlapping.append((other, since_ns, theirs, at_ns))

    def _overlapped(self, overlap: tuple[int, int, Name, int], until_ns: int) -> None:
        life, _, name, begin_ns = overlap
        took_ns = until_ns - begin_ns - self._frozen_ns(life, begin_ns, until_ns)
        self.verdict.longest_overlap_s = max(self.verdict.longest_overlap_s, took_ns / 1e9)
        if took_ns > self._rules.overlap_s * 1e9:
            self.verdict.add(
                "fencing",
                name,
                f"life {life} went on for {took_ns / 1e9:.2f} s after another had begun with the key",
            )

    def _frozen_ns(self, life: int, begin_ns: int, end_ns: int) -> int:
        """How long of this time the life's process did not run."""
        return sum(
            max(0, min(end_ns, loss.thaw_ns) - max(begin_ns, loss.begin_ns))
            for loss in self._losses
            if loss.thaw_ns is not None and loss.lives is not None and life in loss.lives
        )

    # Repeats

    def _repeated(self, life: int, name: Name, stream: _Stream, record: Record) -> None:
        position = name[1]
        holder, held_ns = stream.life[position], stream.entered_ns[position]
        loss = self._loss_of(holder, held_ns, record.at_ns)
        if loss is None:
            # Not the broker's doing: the publisher's, whose copy met a member that knew nothing of the first.
            self._unexplained[name[0]] += 1
            text = f"life {holder} had it, unharmed, and life {life} again"
            self._unexplained_names[name[0]].append((name, text))
            return
        group = (loss, holder, record.queue, name[0])
        self._repeats[group] += 1
        self._examples.setdefault(group, name)

    def _loss_of(self, life: int, since_ns: int, until_ns: int) -> int | None:
        """The first that explains it; one with a limit of its own only where no other does."""
        limited = None
        for number, loss in enumerate(self._losses):
            if loss.begin_ns > until_ns:
                break
            if loss.takes(life, since_ns, until_ns):
                if loss.limit is None:
                    return number
                limited = number if limited is None else limited
        return limited

    # The end

    def end(self, dead: Mapping[Name, int] | Collection[Name]) -> Verdict:
        """`dead`: what is among the group's dead letters."""
        verdict = self.verdict
        for publisher, stream in enumerate(self._streams):
            for position in range(len(stream.keys)):
                name = (publisher, position)
                if not stream.finished[position]:
                    verdict.add("lost", name, "no application finished it")
                elif not stream.accepted[position] and name not in dead:
                    verdict.add("lost", name, "it was refused, and is not among the dead letters")
        self._judge_repeats()
        return verdict

    def _judge_repeats(self) -> None:
        verdict, rules = self.verdict, self._rules
        budget = list(rules.told_twice) + [0] * (len(self._streams) - len(rules.told_twice))
        windows: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
        for (loss, life, queue, publisher), count in self._repeats.items():
            limited = self._losses[loss].limit is not None
            windows[loss, life, -1 if limited else queue].append((publisher, count))
        for (loss, life, queue), counts in windows.items():
            why, limit = self._losses[loss].why, self._losses[loss].limit
            total = sum(count for _, count in counts)
            limit = rules.window if limit is None else limit
            verdict.repeats[why] += min(total, limit)
            verdict.most_repeated = max(verdict.most_repeated, min(total, limit) if queue >= 0 else 0)
            over = max(0, total - limit)
            for publisher, count in counts:
                taken = min(over, count, budget[publisher])
                budget[publisher] -= taken
                self._published_twice(taken)
                over -= taken
            if over > 0:
                example = next(
                    name for (a, b, _, _), name in self._examples.items() if (a, b) == (loss, life)
                )
                where = f"of queue {queue} " if queue >= 0 else ""
                text = f"{why}: {total} messages {where}of life {life} came again, of at most {limit}"
                verdict.add("repeats", example, text)
        for publisher, count in self._unexplained.items():
            taken = min(count, budget[publisher])
            self._published_twice(taken)
            for name, text in self._unexplained_names[publisher][: count - taken]:
                verdict.add("repeats", name, text)

    def _published_twice(self, count: int) -> None:
        if count:
            self.verdict.repeats["published twice"] += count


def judge(
    streams: Sequence[Sequence[int]],
    records: Iterable[tuple[int, Record]],
    *,
    losses: Collection[Loss],
    dead: Collection[Name],
    rules: Rules,
) -> Verdict:
    """`streams`: the key of each message of each publisher. `records`: (life, record), in order of time."""
    history = History(streams, losses, rules)
    for life, record in records:
        history.feed(life, record)
    return history.end(dead)
