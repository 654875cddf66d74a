"""Random histories of a publisher with a state file: kills at any point, earlier copies of state and input taken back.

What must hold is judged from what consumers got: a number never has two bodies, and a member that drops what it has
seen processes every row of an input whose run ended well, in the order of each key.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_core.group import GroupSpec
from lbg_core.publisher import resume as layout
from lbg_core.publisher.errors import InputChanged
from lbg_core.publisher.input.rows import Row
from lbg_core.publisher.resume import Identity, InputVerifier
from lbg_core.publisher.send_window import PublishingSettings, SendWindow
from lbg_core.publisher.state_file import StateFile
from testing.broker.model import Choices, ModelBroker
from testing.exploration import example_count

SPEC = GroupSpec("g", "g", hash_count=3, queue_count=2, queue_size_mb=1, client_username="u")
KEYS = ["a", "b", "c", None]
SETTINGS = PublishingSettings(window_messages=4, first_window_messages=2, backoff_first_s=1, backoff_max_s=4)
HISTORIES = st.binary(min_size=30, max_size=500)


class Killed(Exception):
    pass


@dataclass(frozen=True)
class Copy:
    state: bytes | None
    rows: tuple[Row, ...]


class Run:
    """Model of `lbg publish --state`, one effect at a time. Before each it may be killed."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.state = StateFile.open(history.path, Identity("p", seed=7), SPEC)
        self.machine = SendWindow(SPEC, SETTINGS, seed=7, start=self.state.start)
        self.check = InputVerifier(
            position=self.state.start.position,
            digest=self.state.start.digest,
            sent_position=self.state.start.sent_position,
            sent_digest=self.state.sent_digest,
        )
        self.ready: list[Row] = []
        self.rows_read = 0
        self.now = 0.0
        self.next_tag = 1

    def to_the_end(self) -> None:
        rows = self.history.rows
        turns = 0
        while not (self.rows_read == len(rows) and not self.ready and self.machine.is_settled):
            turns += 1
            assert turns < 5_000, "it does not come to an end"
            self.history.may_be_killed()
            if self.rows_read < len(rows):
                self.ready += self.check.accept(rows[self.rows_read])
                self.rows_read += 1
            if self.ready and self.machine.has_room:
                row = self.ready.pop(0)
                self.machine.accept(row.key, row.topic, row.body)
            self.turn()
        self.check.end()
        self.state.save(self.machine, at_once=True)

    def turn(self) -> None:
        history, machine = self.history, self.machine
        self.now += 1.0
        broker = history.broker
        if broker.channel is None:
            broker.connect()
            self.next_tag = 1
            machine.connected(fenced=True)
        self.send()
        for queue in range(SPEC.queue_count):
            if not history.choices.below(2):
                broker.consume(queue)
        for _ in range(2):
            assert broker.channel is not None
            broker.process(broker.channel)
        answer = broker.answer(history.choices)
        if answer is not None:
            tag, multiple, ok = answer
            machine.answered(tag, multiple=multiple, ok=ok, now=self.now)
            history.may_be_killed()
            self.state.save(machine)
        if history.choices.below(16) == 15:
            broker.lose()
            machine.disconnected(self.now)

    def send(self) -> None:
        """As `Sender` does it: the epoch is saved, then the mark is written, then it is sent."""
        machine, state = self.machine, self.state
        step = machine.step(self.now)
        if step.sends:
            if machine.ended_epoch is not None and not state.has_next_epoch:
                self.history.may_be_killed()
                state.save(machine, at_once=True)
            last = max(step.sends, key=lambda message: message.position)
            if last.position >= state.sent_position:
                self.history.may_be_killed()
                state.note_sent(last.position + 1, last.digest)
        self.history.may_be_killed()
        publisher = state.identity.publisher
        for message in step.sends:
            number = (publisher, message.hash, message.seq)
            assert self.history.bodies.setdefault(number, message.body) == message.body, "two bodies"
        assert self.history.broker.channel is not None
        self.history.broker.write(self.next_tag, step.sends, barrier=step.barrier, publisher=publisher)
        self.next_tag += len(step.sends)

    def end(self) -> None:
        """State after kill -9: all that was written."""
        self.state.close()
        if self.history.broker.channel is not None:
            self.history.broker.lose()


class History:
    def __init__(self, script: bytes, directory: Path) -> None:
        self.choices = Choices(script)
        self.path = directory / "state"
        self.rows: list[Row] = []
        self.next_row = 0
        self.broker = ModelBroker(SPEC.queue_count, limit=4, fenced=True)
        self.bodies: dict[tuple[str, int, int], bytes] = {}
        self.copies: list[Copy] = []
        self.is_killable = True
        self.runs = self.refused = self.restores = 0
        while self.choices and self.runs < 40:
            self.append()
            self.copy()
            self.restore()
            self.run()
        self.is_killable = False
        self.append()
        is_refused = not self.run()
        if is_refused:  # the input is not the state's any more; a state of its own publishes it
            self.path.unlink()
            assert self.run()
        self.late_bytes()

    def may_be_killed(self) -> None:
        if self.is_killable and self.choices.below(40) == 39:
            raise Killed
        if self.choices.below(24) == 23:
            self.copy()

    def append(self) -> None:
        for _ in range(self.choices.below(9)):
            self.next_row += 1
            at = len(self.rows) + 1
            key = KEYS[self.choices.below(len(KEYS))]
            self.rows.append(Row(at, at, key, "t", b"%d" % self.next_row))

    def copy(self) -> None:
        self.copies.append(Copy(self.path.read_bytes() if self.path.exists() else None, tuple(self.rows)))

    def restore(self) -> None:
        """Any earlier copy: of the state, of the input, of both, or of a state whose parts are not of one moment."""
        what = self.choices.below(6)
        if what > 3:
            return
        self.restores += 1
        copy = self.copies[self.choices.below(len(self.copies))]
        state = copy.state
        if what == 3 and state is not None:
            other = self.copies[self.choices.below(len(self.copies))].state
            if other is not None and layout.identity_json(other) == layout.identity_json(state):
                state = state[: layout.SLOTS_AT] + other[layout.SLOTS_AT :]
        if what in (0, 1, 3):
            if state is None:
                self.path.unlink(missing_ok=True)
            else:
                self.path.write_bytes(state)
        if what in (1, 2, 3):
            self.rows = list(copy.rows)

    def run(self) -> bool:
        """True if the input was accepted, as far as the run came."""
        run = Run(self)
        self.runs += 1
        try:
            run.to_the_end()
        except Killed:
            return True
        except InputChanged:
            self.refused += 1
            return False
        finally:
            run.end()
            if self.choices.below(3):
                self.late_bytes()
        return True

    def late_bytes(self) -> None:
        """Delayed writes of killed runs arrive.
        The network does not delay them for longer than this."""
        for channel in self.broker.lost:
            while channel.inbound:
                self.broker.process(channel)
            self.broker.consumed = [len(log) for log in self.broker.logs]
        self.broker.lost.clear()

    def processed(self) -> list[bytes]:
        """Messages of a member's calls: each number once. A key is in one queue."""
        seen: set[tuple[str, int, int]] = set()
        bodies = []
        for log, publishers in zip(self.broker.logs, self.broker.publishers, strict=True):
            for (hash_, seq, body, _), publisher in zip(log, publishers, strict=True):
                if (publisher, hash_, seq) not in seen:
                    seen.add((publisher, hash_, seq))
                    bodies.append(body)
        return bodies


def judge(history: History) -> None:
    first: dict[bytes, int] = {}
    for at, body in enumerate(history.processed()):
        first.setdefault(body, at)
    missing = [row.body for row in history.rows if row.body not in first]
    assert missing == [], "confirmed, and not processed by anybody"
    latest: dict[str, int] = {}
    for row in history.rows:
        if row.key is not None:
            assert first[row.body] > latest.get(row.key, -1), "a key is out of order"
            latest[row.key] = first[row.body]


@given(HISTORIES)
@settings(max_examples=example_count(300), deadline=None)
def test_an_earlier_copy_taken_back_never_swallows_a_row_nor_gives_a_number_another_body(
    script: bytes,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        judge(History(script, Path(directory)))


@pytest.mark.long
def test_the_histories_kill_restore_and_refuse() -> None:
    """Else the test above would prove nothing."""
    source = random.Random(20261122)
    runs = refused = restores = epochs = 0
    for _ in range(30):
        with tempfile.TemporaryDirectory() as directory:
            history = History(source.randbytes(400), Path(directory))
            judge(history)
        runs += history.runs
        refused += history.refused
        restores += history.restores
        epochs += len({publisher for publisher, _, _ in history.bodies})
    assert runs > 100
    assert refused > 10
    assert restores > 50
    assert epochs > 100
