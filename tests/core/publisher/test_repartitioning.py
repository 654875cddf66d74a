"""A publisher's machine over a change of the number of queues: no broker, no clock."""

from __future__ import annotations

from pathlib import Path

from lbg_core.group import GroupSpec, queue_of, recounted
from lbg_core.publisher.resume import Identity
from lbg_core.publisher.send_window import PublishingSettings, SendWindow
from lbg_core.publisher.state_file import StateFile

FOUR = GroupSpec("g", "g", hash_count=12, queue_count=4, queue_size_mb=1, client_username="g")
SIX = recounted(FOUR, 6)


def test_what_waits_is_sent_to_its_new_queues_in_the_order_and_with_the_sequences_it_had() -> None:
    machine = SendWindow(FOUR, PublishingSettings(first_window_messages=4))
    machine.connected(fenced=False)
    accepted = [machine.accept(f"key-{number % 20}", "", b"%d" % number) for number in range(200)]
    stamps = [(message.hash, message.seq) for message in accepted]
    first = machine.step(0.0).sends
    machine.answered(2, multiple=True, ok=True, now=0.0)
    machine.disconnected(0.1)
    machine.repartition(SIX)
    machine.connected(fenced=False)
    sent = []
    tag = 0
    while sends := machine.step(0.2).sends:
        sent += sends
        tag += len(sends)
        machine.answered(tag, multiple=True, ok=True, now=0.2)
    assert machine.is_settled
    assert [(message.hash, message.seq) for message in accepted] == stamps
    assert len(sent) == 198
    assert {id(message) for message in accepted} == {id(message) for message in (*first[:2], *sent)}
    for hash_ in range(12):
        of_hash = [message for message in sent if message.hash == hash_]
        assert [message.seq for message in of_hash] == sorted(message.seq for message in of_hash)
        assert {message.queue for message in of_hash} <= {queue_of(hash_, 6)}
    assert machine.counts.maybe_twice == len(first) - 2


def test_a_queue_that_refused_before_is_not_full_after() -> None:
    machine = SendWindow(FOUR)
    machine.connected(fenced=True)
    machine.accept("key", "", b"1")
    machine.step(0.0)
    machine.answered(1, multiple=False, ok=False, now=0.0)
    assert machine.full_queues
    machine.disconnected(0.1)
    machine.repartition(SIX)
    assert not machine.full_queues
    machine.connected(fenced=True)
    assert [message.seq for message in machine.step(0.1).sends] == [0]


def test_accepted_after_the_change_goes_by_the_new_number() -> None:
    machine = SendWindow(FOUR)
    machine.repartition(SIX)
    for number in range(40):
        message = machine.accept(f"key-{number}", "", b"")
        assert message.queue == queue_of(message.hash, 6)


def test_a_state_file_goes_on_with_another_number_of_queues(tmp_path: Path) -> None:
    identity = Identity("flights")
    with StateFile.open(tmp_path / "state", identity, FOUR):
        pass
    with StateFile.open(tmp_path / "state", Identity("flights"), SIX) as state:
        assert state.identity == identity
