"""Faults that only a cluster of RabbitMQ nodes has."""

from __future__ import annotations

from lbg_core.group import RABBITMQ
from testing.simulation.cluster import Node
from testing.simulation.faults import Fault, Installation, fault


def _node(history: Installation, choice: float) -> Node | None:
    seen = [one for one in history.cluster.nodes if one.is_seen]
    return seen[int(choice * len(seen))] if seen else None


def _election_s(it: Fault) -> float:
    """0.4 s in the median (`python -m bench.leader_kill`), and now and then seconds."""
    return 0.1 * 40**it.size


@fault(1.5, engine=RABBITMQ)
def change_leaders(history: Installation, it: Fault) -> None:
    cluster = history.cluster
    leader = int(it.choice * len(cluster.nodes))
    seconds = _election_s(it)
    history.note(f"the queues of node {leader} have no leader for {seconds:.2f} s")
    for log in cluster.logs.values():
        if log.leader == leader:
            log.elect(seconds)


@fault(1, engine=RABBITMQ)
def kill_node(history: Installation, it: Fault) -> None:
    node = _node(history, it.choice)
    if node is not None:
        seconds = it.size * 15
        history.note(f"kill -9 node {node.number} for {seconds:.1f} s")
        history.cluster.kill(node, election_s=_election_s(it))
        history.clock.after(seconds, history.process, history.cluster.start, node)


@fault(0.5, engine=RABBITMQ)
def restart_node(history: Installation, it: Fault) -> None:
    node = _node(history, it.choice)
    if node is not None:
        history.note(f"node {node.number} restarts in order")
        history.cluster.kill(node, election_s=0.05 + 0.2 * it.size)
        history.clock.after(1 + it.size * 4, history.process, history.cluster.start, node)


@fault(0.7, engine=RABBITMQ)
def cut_node(history: Installation, it: Fault) -> None:
    node = _node(history, it.choice)
    if node is not None:
        seconds = 0.2 * 150**it.size
        history.note(f"node {node.number} is cut off from the others for {seconds:.1f} s")
        history.cluster.cut(node, election_s=_election_s(it))
        history.clock.after(seconds, history.process, history.cluster.heal, node)


@fault(0.5, engine=RABBITMQ)
def freeze_node(history: Installation, it: Fault) -> None:
    node = _node(history, it.choice)
    if node is not None:
        seconds = 0.05 * 600**it.size
        history.note(f"node {node.number} stands still for {seconds:.1f} s")
        history.cluster.freeze(node, seconds)


@fault(0.2, engine=RABBITMQ)
def kill_cluster(history: Installation, it: Fault) -> None:
    history.note("kill -9 of all nodes")
    history.cluster.kill_all()
    history.clock.after(it.size * 3, history.process, history.cluster.start)


@fault(0.5, engine=RABBITMQ)
def slow_majority(history: Installation, it: Fault) -> None:
    history.note(f"a command takes {0.3 * it.size:.2f} s for 5 s")
    history.cluster.commit_s = 0.3 * it.size
    history.clock.after(5.0, history.process, setattr, history.cluster, "commit_s", 0.003)


@fault(0.4, engine=RABBITMQ)
def alarm(history: Installation, it: Fault) -> None:
    seconds = it.size * 12
    history.note(f"the cluster takes no messages for {seconds:.1f} s")
    history.cluster.alarm(True)
    history.clock.after(seconds, history.process, history.cluster.alarm, False)


@fault(0.5, engine=RABBITMQ)
def fill_queues(history: Installation, it: Fault) -> None:
    """By a policy with a lower limit (tests/rabbitmq/test_policies.py:
    test_a_lower_length_limit_refuses_and_drops_nothing)."""
    cluster = history.cluster
    leader = int(it.choice * len(cluster.nodes))
    seconds = 0.01 * 500**it.size
    history.note(f"the queues of node {leader} are full for {seconds:.2f} s")
    for name, log in cluster.logs.items():
        if log.leader == leader and history.names.is_served(name):
            log.fill(True)
            history.clock.after(seconds, history.process, log.fill, False)
