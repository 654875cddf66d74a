"""The private cluster that faults are tried on."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest

from testing.rabbitmq.cluster import RabbitCluster
from testing.rabbitmq.node import NodeFailedError, RabbitNode

pytestmark = [pytest.mark.rabbitmq, pytest.mark.cluster]

QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RabbitCluster]:
    with RabbitCluster() as cluster:
        yield cluster


@pytest.fixture
def queue(cluster: RabbitCluster, unique: str) -> str:
    """A quorum queue with one message."""
    with connected(cluster.nodes[0]) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(unique, durable=True, arguments=QUORUM)
        channel.basic_publish("", unique, b"kept")
    return unique


def connected(node: RabbitNode) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(node.amqp_url))


def holds(node: RabbitNode, queue: str) -> int:
    with connected(node) as connection:
        count: int = connection.channel().queue_declare(queue, passive=True).method.message_count
        return count


def new_leader(cluster: RabbitCluster, queue: str) -> RabbitNode:
    """Asked again while the members elect one."""
    for _ in range(60):
        try:
            return cluster.leader_of(queue)
        except NodeFailedError as error:
            failure = error
    raise failure


def test_a_quorum_queue_has_a_member_on_every_node_and_a_classic_queue_one(
    cluster: RabbitCluster, queue: str, unique: str
) -> None:
    assert cluster.members_of(queue) == cluster.nodes
    assert cluster.leader_of(queue) in cluster.nodes
    with connected(cluster.nodes[1]) as connection:
        connection.channel().queue_declare(f"{unique}.classic", durable=True)
    assert cluster.members_of(f"{unique}.classic") == [cluster.leader_of(f"{unique}.classic")]


def test_another_node_leads_when_the_leader_is_killed_and_the_cluster_is_whole_when_it_is_back(
    cluster: RabbitCluster, queue: str
) -> None:
    killed = cluster.leader_of(queue)
    killed.kill()
    assert new_leader(cluster, queue) is not killed
    killed.start()
    cluster.wait_whole()
    assert [holds(node, queue) for node in cluster.nodes] == [1, 1, 1]


def test_a_node_that_is_cut_off_pauses_before_4_3_while_the_others_serve_and_comes_back_when_healed(
    cluster: RabbitCluster, queue: str
) -> None:
    cut = cluster.leader_of(queue)
    cluster.cut(cut)
    try:
        assert new_leader(cluster, queue) is not cut
        assert [holds(node, queue) for node in cluster.nodes if node is not cut] == [1, 1]
        assert cut.runs
        pauses = cut.version < (4, 3, 0)  # from there on cluster_partition_handling counts no more
        assert cut.evaluate("rabbit:is_running()").strip() == ("false" if pauses else "true")
        with pytest.raises(NodeFailedError):
            cluster.wait_whole(timeout_s=1)
    finally:
        cluster.heal()
    cluster.wait_whole()
    assert [holds(node, queue) for node in cluster.nodes] == [1, 1, 1]
