"""Checks of the whole history against LBG's promises: a pure function of all records.

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
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from testing.chaos.ledger import Kind, Record
from testing.chaos.losses import Loss, Losses
from testing.chaos.repeats import Repeats
from testing.chaos.verdict import Name, Rules, Verdict

_NEVER, _OPEN, _DONE, _RETRIED, _ABORTED = range(5)


class _Stream:
    """Records of one publisher's messages, by position."""

    def __init__(self, keys: Sequence[int]) -> None:
        self.keys = keys
        self.rank = array("I", bytes(4 * len(keys)))
        """Number of earlier messages with the same key."""
        self.state = bytearray(len(keys))
        self.finished = bytearray(len(keys))
        self.accepted = bytearray(len(keys))
        """Finished with an ack, not only refused."""
        self.life = array("H", bytes(2 * len(keys)))
        self.entered_ns = array("Q", bytes(8 * len(keys)))
        self.seq = array("q", [-1]) * len(keys)
        self.done_of_key: dict[int, int] = defaultdict(int)
        """Number of a key's messages that are finished without a gap."""
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
        self._losses = Losses(losses)
        self._rules = rules
        self._open: dict[int, list[tuple[int, Name, int]]] = defaultdict(list)  # key -> life, name, since
        self._open_of_life: dict[int, set[Name]] = defaultdict(set)
        self._stale: dict[tuple[int, Name], int] = {}  # calls whose key is another's already, and since when
        self.verdict = Verdict(messages=sum(map(len, streams)))
        self._repeats = Repeats(self._losses, rules, self.verdict, publishers=len(streams))

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
            had = (stream.life[position], stream.entered_ns[position])
            self._repeats.note(name, queue=record.queue, had=had, has=(life, record.at_ns))
        stream.state[position] = _OPEN
        stream.life[position] = life
        stream.entered_ns[position] = record.at_ns
        self._open[key].append((life, name, record.at_ns))
        self._open_of_life[life].add(name)

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
        if name not in self._open_of_life[life]:
            return
        self._open_of_life[life].remove(name)
        calls = self._open[self._streams[name[0]].keys[name[1]]]
        calls[:] = [call for call in calls if call[:2] != (life, name)]
        begin_ns = self._stale.pop((life, name), None)
        if begin_ns is not None and at_ns is not None:
            self._overlapped(life, name, begin_ns, at_ns)

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
            elif (loss := self._losses.of(other, since_ns, at_ns)) is not None:
                if loss.why != "SIGKILL":  # that call ended with its process
                    self._stale.setdefault((other, theirs), at_ns)
            elif self._losses.of(life, at_ns, at_ns) is not None:
                # It is this one whose connection is lost, and it has not noticed yet.
                self._stale.setdefault((life, name), since_ns)
            else:
                self.verdict.add(
                    "fencing", name, f"life {life} began it while life {other} was at {theirs}, both unharmed"
                )

    def _overlapped(self, life: int, name: Name, begin_ns: int, until_ns: int) -> None:
        """A call went on until then, although the key had been somebody else's since `begin_ns`."""
        took_s = (until_ns - begin_ns - self._losses.frozen_ns(life, begin_ns, until_ns)) / 1e9
        self.verdict.overlaps += 1
        self.verdict.longest_overlap_s = max(self.verdict.longest_overlap_s, took_s)
        if took_s > self._rules.overlap_s:
            text = f"life {life} went on for {took_s:.2f} s after another had begun with its key"
            self.verdict.add("fencing", name, text)

    # The end

    def end(self, dead: Collection[Name]) -> Verdict:
        """`dead`: what is among the group's dead letters."""
        verdict = self.verdict
        for publisher, stream in enumerate(self._streams):
            for position in range(len(stream.keys)):
                name = (publisher, position)
                if not stream.finished[position]:
                    verdict.add("lost", name, "no application finished it")
                elif not stream.accepted[position] and name not in dead:
                    verdict.add("lost", name, "it was refused, and is not among the dead letters")
        self._repeats.judge()
        return verdict


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
