"""Messages whose call ran when a member's process died: they are called alone, and what they cost."""

from __future__ import annotations

import json
from dataclasses import replace

from lbg_core.admin.describe import describe
from lbg_core.admin.snapshot import Snapshot
from lbg_core.client.backoff import Backoff
from lbg_core.group import Engine
from lbg_core.group.member_state import Identity, Suspected
from lbg_core.group.members_protocol import SuspectReport
from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome
from lbg_sidecar.core.dispatcher import Rules, WhenExhausted
from lbg_sidecar.core.effects import CallFailed, DeadLetter, Failure, Post
from lbg_sidecar.core.suspects import WAIT_MIN_S
from lbg_sidecar.message import ACK, retry
from testing.admin.problem_lines import problem_lines
from testing.exploration import over_seeds
from testing.member.bare_member import bare_member
from testing.member.world import SimMember, World

RULES = Rules(concurrency=4, max_attempts=3, backoff=Backoff(first_s=0.1, max_s=50.0, jitter=0.0))
DEAD_LETTER = Rules(concurrency=4, max_attempts=3, when_exhausted=WhenExhausted.DEAD_LETTER)


def identity(number: int) -> tuple[str, int, int]:
    return "p", 0, number


def suspected(number: int, *, attempts: int = 0, calls: int = 2, parked: int = 0) -> Suspected:
    return Suspected(identity(number), attempts, calls, parked, "m9")


class Queue:
    """A dispatcher with messages 0 to 5, each of a key of its own, of which these are suspects."""

    def __init__(self, *suspects: Suspected, rules: Rules = RULES, count: int = 6) -> None:
        self.now = 0.0
        machine = bare_member(rules)
        self.dispatcher = machine.dispatcher
        machine.suspects.merge(suspects, self.now)
        assert machine.suspects.known is not None
        self.suspects = machine.suspects.known
        self.attachment = Attachment(0, 1, prefetch=100)
        self.messages = [
            InFlight(self.attachment, number + 1, key=f"k{number}", identity=identity(number))
            for number in range(count)
        ]
        self.dispatcher.deliver(self.attachment, self.messages, self.now)

    @property
    def reported(self) -> list[Suspected]:
        """To the other members."""
        posts = [one.message for one in self.dispatcher.effects if isinstance(one, Post)]
        return [one for post in posts if isinstance(post, SuspectReport) for one in post.suspects]

    def start(self) -> list[int]:
        """Numbers of the messages whose calls start now."""
        started = []
        while (in_flight := self.dispatcher.take(self.now)) is not None:
            started.append(self.messages.index(in_flight))
        return started

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self.dispatcher.end(self.messages[number], ACK, self.now)

    def wait(self, seconds: float = WAIT_MIN_S) -> None:
        self.now += seconds
        self.dispatcher.lanes.wake(self.now)


def test_a_report_that_it_was_parked_since_comes_during_its_call_and_others_start_behind_it() -> None:
    queue = Queue(suspected(1))
    assert queue.start() == [0, 2, 3, 4, 5][:4]
    queue.end(0, 2, 3, 4)
    assert queue.start() == [5]
    queue.end(5)
    queue.wait()
    assert queue.start() == [1]
    queue.suspects.merge([suspected(1, calls=0, parked=1)], queue.now)
    queue.end(1)
    assert queue.dispatcher.take(queue.now) is None
    more = InFlight(queue.attachment, 9, key="k9", identity=identity(9))
    queue.dispatcher.deliver(queue.attachment, [more], queue.now)
    assert queue.dispatcher.take(queue.now) is more


def test_a_suspect_is_called_when_no_call_runs_and_no_other_starts_before_it_or_beside_it() -> None:
    queue = Queue(suspected(1), suspected(4))
    assert queue.start() == [0, 2, 3, 5], "others go on until its time has come"
    queue.end(0)
    queue.wait()
    assert queue.start() == []
    queue.end(2, 3)
    assert queue.start() == []
    queue.end(5)
    assert queue.start() == [1]
    queue.end(1)
    assert queue.start() == [4]
    queue.end(4)
    assert queue.dispatcher.counts.acked == 6


def test_what_ran_with_others_at_one_death_is_called_as_before_and_no_suspect_once_a_call_has_ended() -> None:
    queue = Queue(suspected(1, calls=1), suspected(2, calls=1))
    assert queue.start() == [0, 1, 2, 3]
    assert [one.suspect.last.calls_at_death for one in queue.messages if one.suspect is not None] == [2, 2]
    queue.dispatcher.end(queue.messages[1], retry("busy"), queue.now)
    assert [one.identity for one in queue.suspects.report()] == [identity(2)]
    assert queue.reported == []


def test_calls_that_are_aborted_and_cannot_be_stopped_hold_no_suspect_up() -> None:
    queue = Queue(suspected(1), count=2)
    assert queue.start() == [0]
    queue.wait()
    assert queue.start() == []
    queue.messages[0].abort_reason = "no verdict within 30 s"
    assert queue.start() == [1]


def test_a_suspect_that_is_aborted_and_cannot_be_stopped_holds_no_other_up() -> None:
    queue = Queue(suspected(0), count=1)
    assert queue.start() == []
    queue.wait()
    assert queue.start() == [0]
    late = InFlight(queue.attachment, 2, key="k1", identity=identity(1))
    queue.messages.append(late)
    queue.dispatcher.deliver(queue.attachment, [late], queue.now)
    assert queue.start() == []
    queue.messages[0].abort_reason = "no verdict within 30 s"
    assert queue.start() == [1]


def test_a_suspect_waits_longer_the_more_attempts_failed_and_its_attempts_go_on_from_there() -> None:
    queue = Queue(suspected(0, attempts=7, calls=7), rules=replace(RULES, max_attempts=9), count=1)
    assert queue.start() == []
    queue.wait(6.3)
    assert queue.start() == []
    queue.wait(0.2)
    assert queue.start() == [0]
    assert queue.messages[0].attempts == 8
    assert queue.reported == [suspected(0, attempts=8, calls=8)]


def test_a_suspect_whose_attempts_are_used_up_becomes_a_dead_letter_without_a_call() -> None:
    queue = Queue(suspected(1, attempts=3, calls=3), rules=DEAD_LETTER)
    assert queue.start() == [0, 2, 3, 4]
    assert DeadLetter(queue.messages[1]) in queue.dispatcher.effects
    assert queue.messages[1].reason == "gave up after 3 attempts: member m9 died when it was called"
    queue.dispatcher.confirmed(queue.messages[1])
    assert queue.messages[1].outcome is Outcome.DEAD
    assert queue.suspects.report() == ()


def test_a_suspect_that_blocks_is_poisoned_and_called_at_the_longest_interval() -> None:
    queue = Queue(suspected(0, attempts=3, calls=3), count=1)
    assert queue.start() == []
    assert queue.dispatcher.counts.poisoned == len(queue.attachment.poisoned) == 1
    queue.wait(49.9)
    assert queue.start() == []
    queue.wait(0.2)
    assert queue.start() == [0]
    (poisoned,) = queue.dispatcher.effects[:-1]
    assert isinstance(poisoned, CallFailed)
    assert poisoned.kind is Failure.POISONED


def test_a_suspect_that_fails_without_a_death_is_retried_alone() -> None:
    queue = Queue(suspected(0), count=2)
    assert queue.start() == [1]
    queue.end(1)
    queue.wait()
    assert queue.start() == [0]
    queue.dispatcher.end(queue.messages[0], retry("busy", after_s=1.0), queue.now)
    assert queue.start() == []
    queue.wait()
    assert queue.start() == [0]
    assert queue.messages[0].attempts == 2


def test_of_two_reports_the_later_one_counts_whichever_comes_first() -> None:
    early, late = suspected(0, attempts=1, calls=2), suspected(0, attempts=2, calls=4)
    queue = Queue(late)
    assert queue.suspects.merge([early], 0.0) == (late,)
    assert queue.suspects.report() == (late,)
    queue = Queue(early)
    assert queue.suspects.merge([late], 0.0) == ()
    assert queue.suspects.report() == (late,)


def test_a_report_that_is_known_already_makes_no_suspect_wait_longer() -> None:
    queue = Queue(suspected(0), count=1)
    assert queue.start() == []
    queue.suspects.merge([suspected(0)], queue.now)
    queue.wait()
    assert queue.start() == [0]


def test_a_later_death_that_may_have_had_another_cause_takes_no_attempt_back() -> None:
    queue = Queue(suspected(0, attempts=1, calls=1))
    queue.suspects.merge([suspected(0, attempts=0, calls=2)], 0.0)
    assert queue.suspects.report() == (suspected(0, attempts=1, calls=2),)


def test_a_parked_suspect_starts_anew_and_a_late_report_of_a_death_from_before_does_not_count() -> None:
    queue = Queue(suspected(0, attempts=3, calls=3), count=1)
    message = queue.messages[0]
    message.outcome = Outcome.PARKED
    queue.suspects.settled(message)
    anew = suspected(0, attempts=0, calls=0, parked=1)
    assert queue.reported == [anew]
    assert queue.suspects.merge([suspected(0, attempts=3, calls=3)], 1.0) == (anew,)


def known(member: SimMember) -> tuple[Suspected, ...]:
    suspects = member.machine.suspects.known
    return () if suspects is None else suspects.report()


def two_members(world: World) -> tuple[SimMember, SimMember]:
    first = world.join()
    world.run(10)
    second = world.join()
    second.machine.suspects.merge([suspected(0, attempts=3, calls=3)], world.now)
    world.drop_connection(second)
    world.run(10)
    return first, second


def test_a_member_that_joins_reports_its_suspects_and_one_that_joins_later_receives_them() -> None:
    world = World(1, queue_count=2, hash_count=2, rules=RULES)
    first, _ = two_members(world)
    assert len(known(first)) == 1
    third = world.join()
    world.run(10)
    assert len(known(third)) == 1


def test_a_report_of_a_stranger_leaves_a_message_at_least_one_call() -> None:
    world = World(1, queue_count=2, hash_count=2, rules=RULES)
    member = world.join()
    world.run(10)
    stranger = Identity(77, "stranger", "77-abc")
    report = SuspectReport(stranger, (suspected(0, attempts=99, calls=1),))
    member.machine.message(report, world.now)
    assert known(member) == (suspected(0, attempts=2, calls=1),)


def test_a_problem_names_the_suspect_and_the_member_that_died() -> None:
    world = World(1, queue_count=2, hash_count=2, rules=RULES)
    member = world.join()
    world.run(10)
    item = world.publish("bad", hash_=0)
    member.machine.suspects.merge([Suspected(item.identity, 2, 2, 0, "m9")], world.now)
    world.run(1)
    described = describe("g", Snapshot(Engine.parse("RabbitMQ", "4.0.5")), beats=[member.machine.content()])
    assert any(
        f"has message {'-'.join(map(str, item.identity))} at m0, which was called when m9 died" in one
        and "key: 'bad'; failed attempts: 2" in one
        for one in problem_lines(described)
    )
    (queue,) = json.loads(json.dumps(described.to_json()))["members"][0]["queues"][:1]
    assert queue["suspects"] == [
        {"id": "-".join(map(str, item.identity)), "key": "bad", "attempts": 2, "died": "m9"}
    ]
    world.calm = True
    world.run(30)
    assert not world.violations
    assert not world.unfinished()


@over_seeds(5)
def test_suspects_lose_and_reorder_nothing(seed: int) -> None:
    world = World(seed, queue_count=2, hash_count=4, rules=RULES)
    member = world.join()
    world.run(5)
    items = [world.publish(f"k{number % 8}", hash_=number % 4) for number in range(60)]
    member.machine.suspects.merge(
        [Suspected(one.identity, 0, 1 + n % 2, 0, "m9") for n, one in enumerate(items[::3])], world.now
    )
    world.join()
    world.run(30)
    world.calm = True
    world.run(60)
    assert not world.violations
    assert not world.unfinished()
