"""A member whose group is given another number of queues: what it tells, what it keeps, what it becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lbg_core.admin.queue_changes import repartition_announced, repartition_done
from lbg_core.group import Names
from lbg_core.group.member_state import Identity, Positions, QueueState, Role, Status
from lbg_core.group.members_protocol import Knowledge, KnowledgeRequest, Message, QueueReport, Repartition
from lbg_core.group.message_codec import decode, encode
from lbg_sidecar.core.broker_assigned import BrokerAssignedMember
from lbg_sidecar.core.delivery import Attachment
from lbg_sidecar.core.effects import Post, Reread
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.queue_bindings import BalancingRules
from testing.member.bare_member import setup_of

NAMES = Names("orders")
FOUR = BalancingRules(queue_count=4, client_count=4)
OTHER = Identity(1, "b", "other")


FORGED = Positions((("p", 5, ((0, 99),)),), (("p", 5, 100, 4),))
"""Of hash 5, which is in queue 1 of four."""


def serving(*queues: int) -> QueueReport:
    """A report of the other member, the active consumer of these queues."""
    states = (QueueState(queue, role=Role.PRIMARY, active=True, status=Status.READY) for queue in queues)
    return QueueReport(OTHER, tuple(states))


def machine(rules: BalancingRules = FOUR, *, former: ExclusiveMember | None = None) -> ExclusiveMember:
    return ExclusiveMember(setup_of(rules, former=former))


def joined(rules: BalancingRules = FOUR) -> ExclusiveMember:
    member = machine(rules)
    member.connected(0, 0.0)
    member.effects.clear()
    return member


def told(body: bytes) -> Message:
    message = decode(body)
    assert message is not None
    return message


def test_what_the_command_says_is_what_members_read() -> None:
    announced, done = repartition_announced("orders", 6), repartition_done("orders", 6)
    for sent, is_done in ((announced, False), (done, True)):
        message = told(encode(sent.message))
        assert isinstance(message, Repartition)
        assert (message.queues, message.done) == (6, is_done)
        assert message.sender.name == "lbg group repartition"


def test_who_tells_of_it_is_taken_for_no_member() -> None:
    member = joined()
    member.message(repartition_announced("orders", 6).message, 1.0)
    member.effects.clear()
    member.message(repartition_done("orders", 4).message, 1.0)
    assert member.roster.live == {0}
    assert not member.effects


def announced(member: ExclusiveMember, now: float) -> KnowledgeRequest:
    """Announces a change to a member; returns its request to the others."""
    member.effects.clear()
    member.message(repartition_announced("orders", 6).message, now)
    (post,) = (effect for effect in member.effects if isinstance(effect, Post))
    assert isinstance(post.message, KnowledgeRequest)
    assert post.to is None
    return post.message


def test_when_a_change_is_announced_members_report_what_they_processed_of_the_queues_that_they_serve() -> (
    None
):
    member, other = joined(), joined()
    for seq in range(3):
        member.dispatcher.processed.add(("p", 5, seq))
    for hash_ in (6, 7):
        member.dispatcher.processed.add(("p", hash_, 0))
    for queue in (1, 2):
        member.bindings.activate(member.bindings.all[queue], 0.5)
    other.message(serving(), 0.5)
    request = announced(other, 1.0)
    member.effects.clear()
    member.message(replace(request, sender=OTHER), 1.0)
    posts = [effect for effect in member.effects if isinstance(effect, Post)]
    assert {post.to for post in posts} == {OTHER.index}
    for post in posts:
        assert isinstance(post.message, QueueReport | Knowledge)
        other.message(replace(post.message, sender=OTHER), 1.0)
    for identity in (("p", 5, 0), ("p", 5, 2), ("p", 6, 0)):
        assert identity in other.dispatcher.processed
    assert ("p", 5, 3) not in other.dispatcher.processed
    assert ("p", 7, 0) not in other.dispatcher.processed


def test_positions_that_no_request_of_this_member_asked_for_are_not_believed() -> None:
    member = joined()
    member.message(serving(1), 0.5)
    member.message(Knowledge(OTHER, FORGED), 0.9)
    request = announced(member, 1.0)
    member.message(Knowledge(OTHER, FORGED), 1.1)
    member.message(Knowledge(OTHER, FORGED, "guessed"), 1.1)
    assert ("p", 5, 0) not in member.dispatcher.processed
    member.message(Knowledge(OTHER, FORGED, request.proof), 1.1)
    assert ("p", 5, 0) in member.dispatcher.processed


def test_nobody_reports_positions_of_a_queue_that_this_member_serves() -> None:
    member = joined()
    member.bindings.activate(member.bindings.all[1], 0.4)
    member.message(serving(1), 0.5)
    request = announced(member, 1.0)
    member.message(Knowledge(OTHER, FORGED, request.proof), 1.1)
    assert ("p", 5, 0) not in member.dispatcher.processed


def test_while_the_number_of_queues_stays_no_position_of_all_queues_is_believed() -> None:
    member = joined()
    member.message(serving(1), 0.5)
    request = announced(member, 1.1)
    member.message(repartition_done("orders", 4).message, 1.2)  # taken back
    for proof in (request.proof, ""):
        member.message(Knowledge(OTHER, Positions((("p", 9, ((0, 99),)),)), proof), 1.3)
    assert ("p", 9, 0) not in member.dispatcher.processed


@pytest.mark.parametrize("served", [(), (0, 2, 3)])
def test_a_member_is_believed_about_the_queues_that_it_served_only(served: tuple[int, ...]) -> None:
    member = joined()
    member.message(serving(*served), 0.5)
    member.message(Knowledge(OTHER, FORGED, announced(member, 1.0).proof), 1.1)
    assert ("p", 5, 0) not in member.dispatcher.processed
    assert member.dispatcher.processed.attempts(("p", 5, 100)) == 0


@pytest.mark.parametrize(
    "sender", [Identity(OTHER.index, OTHER.name, "another"), Identity(3, "c", "unknown")]
)
def test_a_sender_that_is_no_live_member_is_believed_about_nothing(sender: Identity) -> None:
    member = joined()
    member.message(serving(1), 0.5)
    member.message(Knowledge(sender, FORGED, announced(member, 1.0).proof), 1.1)
    assert ("p", 5, 0) not in member.dispatcher.processed


def test_once_it_is_done_a_member_of_the_old_number_reads_the_record_and_one_of_the_new_does_nothing() -> (
    None
):
    member = joined()
    member.message(repartition_done("orders", 6).message, 1.0)
    (effect,) = member.effects
    assert effect == Reread("the group has 6 queues, and had 4")
    settled = joined(replace(FOUR, queue_count=6))
    settled.message(repartition_done("orders", 6).message, 1.0)
    assert not settled.effects


def test_the_machine_after_it_has_the_new_queues_and_the_memory_of_the_one_before() -> None:
    former = joined()
    former.dispatcher.processed.add(("p", 5, 0))
    former.dispatcher.counts.delivered = 7
    former.bindings.consumer_timeout_s = 60.0
    former.disconnected(1.0)
    member = machine(replace(FOUR, queue_count=6), former=former)
    assert [binding.queue for binding in member.bindings.all] == list(range(6))
    assert ("p", 5, 0) in member.dispatcher.processed
    assert member.dispatcher.counts.delivered == 7
    assert member.bindings.consumer_timeout_s == 60.0
    assert member.dispatcher.processed.of_queue(5) == Positions((("p", 5, ((0, 0),)),))
    assert member.dispatcher.processed.of_queue(1) == Positions()
    member.connected(0, 2.0)
    assert member.roster.live == {0}


def test_who_had_stood_down_takes_part_again_when_it_joins_with_the_new_queues() -> None:
    former = joined()
    former.stand_down("the application is not ready", 1.0)
    former.disconnected(1.1)
    member = machine(replace(FOUR, queue_count=6), former=former)
    assert member.leaving == "the application is not ready"
    member.connected(0, 2.0)
    assert member.leaving is None
    assert member.roster.live == {0}


def test_where_the_broker_has_the_partitions_a_member_calls_them_by_their_new_number() -> None:
    member = BrokerAssignedMember(setup_of(BalancingRules(queue_count=1)), partitions=4)
    member.connected(0, 0.0)
    attachment = member.bindings.all[0].attachment
    assert isinstance(attachment, Attachment)
    member.message(repartition_announced("orders", 6).message, 0.5)
    assert attachment.partitions == 4
    member.effects.clear()
    member.message(repartition_done("orders", 6).message, 1.0)
    assert attachment.partitions == 6
    assert not member.effects
