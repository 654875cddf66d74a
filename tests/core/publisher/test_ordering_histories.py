"""Random histories of ordered publishing against a model broker: full queues, lost connections, late bytes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lbg_core.group import GroupSpec
from lbg_core.publisher.send_window import PublishingSettings, SendWindow
from lbg_core.publisher.stamper import StampedMessage, StartingPoint
from testing.broker.model import Choices, ModelBroker
from testing.exploration import example_count, over_seeds

SPEC = GroupSpec("g", "g", hash_count=5, queue_count=2, queue_size_mb=1, client_username="u")
KEYS = ["a", "b", "c", "d", "e", "f", "g", None]
HISTORIES = st.binary(min_size=20, max_size=600)


class History:
    """Plays a script of choices, then lets everything finish."""

    def __init__(self, script: bytes, *, fenced: bool, one_per_key: bool = False) -> None:
        self.choices = Choices(script)
        self.limit = 1 + self.choices.below(6)
        self.broker = ModelBroker(SPEC.queue_count, limit=self.limit, fenced=fenced)
        self.settings = PublishingSettings(
            window_messages=1 + self.choices.below(8),
            first_window_messages=4,
            backoff_first_s=1,
            backoff_max_s=4,
            one_per_key=one_per_key,
        )
        self.machine = SendWindow(SPEC, self.settings, seed=7)
        self.saved = StartingPoint()
        self.saved_epoch = self.epoch = self.epochs = 0
        """Of what was saved, of what is accepted, and how many there were before it."""
        self.sent_position = 0
        self.inputs: list[tuple[str | None, bytes]] = []
        self.deaths = 0
        self.told: set[int] = set()
        self.fenced = fenced
        self.now = 0.0
        self.next_tag = 1
        self.accepted: list[StampedMessage] = []
        self.epoch_of: dict[int, int] = {}
        """By the message's position."""
        self._play()
        self._finish()

    def _play(self) -> None:
        moves = [
            self._accept,
            self._accept,
            self._step,
            self._process,
            self._process,
            self._answer,
            self._answer,
            self._consume,
            self._wait,
            self._lose,
            self._late_bytes,
            self._block,
            self._save,
            self._die,
        ]
        while self.choices:
            moves[self.choices.below(len(moves))]()

    def _finish(self) -> None:
        self.machine.blocked(False, self.now)
        for _ in range(10_000):
            if self.machine.stamper.position < len(self.inputs):
                self._accept()
            elif self.machine.is_settled:
                return
            for queue in range(SPEC.queue_count):
                self.broker.consume(queue)
            self._wait()
            self._step()
            self._process()
            while self._answer():
                pass
        raise AssertionError("it does not come to an end")

    def _accept(self) -> None:
        """The next row, one that was read before it died first."""
        position = self.machine.stamper.position
        if position == len(self.inputs):
            self.inputs.append((KEYS[self.choices.below(len(KEYS))], b"%d" % position))
        if not self.machine.has_room:
            return
        key, body = self.inputs[position]
        in_old_epoch = self.machine.ended_epoch is None
        self.accepted[position:] = [self.machine.accept(key, "t", body)]
        if in_old_epoch and self.machine.ended_epoch is not None:
            self.epochs += 1
            self.epoch = self.epochs
        self.epoch_of[position] = self.epoch

    def _step(self) -> None:
        if self.broker.channel is None:
            self.broker.connect()
            self.next_tag = 1
            self.machine.connected(fenced=self.fenced)
        step = self.machine.step(self.now)
        if step.sends and self.epoch != self.saved_epoch:
            self._save()
        self.sent_position = max([self.sent_position, *(message.position + 1 for message in step.sends)])
        self.broker.write(self.next_tag, step.sends, barrier=step.barrier, publisher=str(self.epoch))
        self.next_tag += len(step.sends)

    def _process(self) -> None:
        if self.broker.channel is not None:
            self.broker.process(self.broker.channel)

    def _answer(self) -> bool:
        answer = self.broker.answer(self.choices)
        if answer is None:
            return False
        tag, multiple, ok = answer
        self.machine.answered(tag, multiple=multiple, ok=ok, now=self.now)
        return True

    def _consume(self) -> None:
        self.broker.consume(self.choices.below(SPEC.queue_count))

    def _wait(self) -> None:
        self.now += 1.0

    def _lose(self) -> None:
        if self.broker.channel is not None:
            self.broker.lose()
            self.machine.disconnected(self.now)

    def _late_bytes(self) -> None:
        if self.broker.lost:
            self.broker.process(self.broker.lost[self.choices.below(len(self.broker.lost))])

    def _block(self) -> None:
        self.machine.blocked(bool(self.choices.below(2)), self.now)

    def _save(self) -> None:
        floor = self.machine.floor
        self.saved_epoch = self.epoch
        self.saved = StartingPoint(
            floor.position, floor.digest, list(floor.next_seq), list(self.machine.confirmed_seq)
        )

    def _die(self) -> None:
        """The publisher is killed and goes on from what it saved last; the input is read again."""
        self.deaths += 1
        if self.broker.channel is not None:
            self.broker.lose()
        self._note_told()
        end = max(self.sent_position, self.saved.position)
        start = replace(self.saved, sent_position=end, is_resumed=True)
        self.machine = SendWindow(SPEC, self.settings, seed=7, start=start)
        self.epoch = self.saved_epoch
        before = self.accepted[start.position : end]
        again = [self.machine.accept(key, "t", body) for key, body in self.inputs[start.position : end]]
        assert [(each.hash, each.seq) for each in again] == [(each.hash, each.seq) for each in before]
        self.accepted[start.position :] = again

    def _note_told(self) -> None:
        self.told |= {message.position for message in self.accepted if message.inverted or message.unknown}

    def inversions(self) -> list[StampedMessage]:
        """The messages whose first sight in their queue comes before that of an earlier one of their key."""
        place: dict[tuple[str, int, int], int] = {}
        for log, epochs in zip(self.broker.logs, self.broker.publishers, strict=True):
            for at, ((hash_, seq, _, _), epoch) in enumerate(zip(log, epochs, strict=True)):
                place.setdefault((epoch, hash_, seq), at)
        early = []
        latest: dict[str, int] = {}
        for message in self.accepted:
            if message.key is None:
                continue
            at = place[self.number_of(message)]
            if at < latest.get(message.key, -1):
                early.append(message)
            latest[message.key] = max(at, latest.get(message.key, -1))
        return early

    def check_completeness(self) -> None:
        seen: dict[tuple[str, int, int], bytes] = {}
        sights = Counter[tuple[str, int, int]]()
        for log, epochs in zip(self.broker.logs, self.broker.publishers, strict=True):
            for (hash_, seq, body, _), epoch in zip(log, epochs, strict=True):
                assert seen.setdefault((epoch, hash_, seq), body) == body, "a sequence number was used twice"
                sights[epoch, hash_, seq] += 1
        for epoch, hash_ in {(epoch, hash_) for epoch, hash_, _ in seen}:
            there = {seq for *stream, seq in seen if stream == [epoch, hash_]}
            assert there == set(range(len(there))), "a hole"
        assert {self.number_of(message) for message in self.accepted} == seen.keys()
        assert self.machine.floor.position == len(self.inputs)
        assert self.machine.floor.digest == self.machine.stamper.digest
        assert self.machine.floor.next_seq == self.machine.stamper.next_seq
        self._note_told()
        if not self.deaths:
            assert self.machine.counts.confirmed == len(self.inputs)
        place = {self.number_of(message): message.position for message in self.accepted}
        repeated = {place[number] for number, count in sights.items() if count > 1}
        assert repeated <= self.told, "an untold repetition"

    def number_of(self, message: StampedMessage) -> tuple[str, int, int]:
        return str(self.epoch_of[message.position]), message.hash, message.seq


@given(HISTORIES)
@settings(max_examples=example_count(400), deadline=None)
def test_with_ordered_refusal_no_key_is_ever_out_of_order_and_nothing_is_lost(script: bytes) -> None:
    history = History(script, fenced=True)
    history.check_completeness()
    assert history.inversions() == []
    assert history.machine.counts.accepted_after_gap == 0
    assert history.machine.counts.inverted == 0


@given(HISTORIES)
@settings(max_examples=example_count(400), deadline=None)
def test_without_ordered_refusal_what_is_out_of_order_was_reported(script: bytes) -> None:
    history = History(script, fenced=False)
    history.check_completeness()
    assert {message.position for message in history.inversions()} <= history.told
    assert history.machine.counts.inverted <= history.machine.counts.accepted_after_gap


@given(HISTORIES)
@settings(max_examples=example_count(400), deadline=None)
def test_one_per_key_keeps_order_on_a_broker_without_ordered_refusal(script: bytes) -> None:
    history = History(script, fenced=False, one_per_key=True)
    history.check_completeness()
    assert history.inversions() == []
    assert history.machine.counts.inverted == 0


@over_seeds(3)
def test_the_model_without_ordered_refusal_does_reorder(seed: int) -> None:
    """The model can show an inversion at all; else the tests above would prove nothing."""
    source = random.Random(seed)
    assert any(History(source.randbytes(400), fenced=False).inversions() for _ in range(1000))
