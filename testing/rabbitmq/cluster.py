"""Private RabbitMQ nodes on loopback that form one cluster: kill one, part them, make them whole.

    with RabbitCluster() as cluster:
        connect(cluster.urls)
        cluster.leader_of("orders").kill()

A quorum queue has a member on three of the nodes, RabbitMQ's default. A node that cannot see most of the others pauses
until it can, as https://www.rabbitmq.com/docs/partitions advises; `config` may say otherwise. A node that is frozen is
missed by the others only after Erlang's `net_ticktime` (a key of `config`, 60 s), and must be started anew if it thaws
after that.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Self

from testing.rabbitmq.installation import Installation, NodeFailedError
from testing.rabbitmq.node import START_S, Epmd, RabbitNode, wait_until

_LOOK_UP = """
    {{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"{vhost}">>, queue, <<"{queue}">>)),
    {{Members, Leader}} = case amqqueue:get_pid(Q) of
        Pid when is_pid(Pid) -> {{[node(Pid)], node(Pid)}};
        Server -> {{ok, Servers, {{_, Node}}}} = ra:members(Server), {{[N || {{_, N}} <- Servers], Node}}
    end
"""
_WHOLE = """
    Nodes = [{nodes}],
    Sees = fun(Node) -> {sees} end,
    Serves = fun(Q) ->
        {{ok, Servers, _}} = ra:members(amqqueue:get_pid(Q)),
        lists:all(fun({{Name, Node}}) -> is_pid(rpc:call(Node, erlang, whereis, [Name], 5000)) end, Servers)
    end,
    lists:all(Sees, Nodes) andalso
        lists:all(Serves, [Q || Q <- rabbit_amqqueue:list(), amqqueue:get_type(Q) =:= rabbit_quorum_queue])
"""
_SEES = """
    lists:sort(rpc:call(Node, rabbit_mnesia, cluster_nodes, [running], 5000)) =:= lists:sort(Nodes)
        andalso rpc:call(Node, rabbit_node_monitor, partitions, [], 5000) =:= []
"""
_SEES_SINCE_4_3 = "lists:sort(rpc:call(Node, rabbit_nodes, list_running, [], 5000)) =:= lists:sort(Nodes)"
"""There are no partitions any more: what is parted agrees again by itself (Raft), and Mnesia is gone."""


class RabbitCluster:
    """`count` nodes that share an epmd and a cookie. `start` takes seven (4.0) to twenty (3.10) seconds on two cores.

    The kernel kills the nodes if the thread that started them ends, so start them from a thread that stays.
    """

    def __init__(
        self, *, count: int = 3, config: Mapping[str, str] | None = None, statistics_s: int = 1
    ) -> None:
        self._epmd = Epmd(Installation.of_environment())
        cookie = secrets.token_hex(10)
        self.nodes = [
            RabbitNode(config=config, statistics_s=statistics_s, epmd=self._epmd, cookie=cookie)
            for _ in range(count)
        ]
        together = {
            "cluster_partition_handling": "pause_minority",
            "cluster_formation.peer_discovery_backend": "classic_config",
            **{f"cluster_formation.classic_config.nodes.{i}": n.name for i, n in enumerate(self.nodes, 1)},
        }
        for node in self.nodes:
            node.config = together | node.config
        self._parted: list[RabbitNode] = []

    @property
    def urls(self) -> list[str]:
        """The AMQP URL of each node."""
        return [node.amqp_url for node in self.nodes]

    @property
    def management_urls(self) -> list[str]:
        return [node.management_url for node in self.nodes]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the nodes and return when they form a cluster. Raises `NodeFailedError`, leaving nothing behind."""
        try:
            for node in self.nodes:
                node.spawn()
            for node in self.nodes:
                node.wait_ready()
            self.wait_whole()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self._epmd.close()

    def leader_of(self, queue: str, vhost: str = "/") -> RabbitNode:
        """The node where the queue's leader is; a classic queue lives on one node alone.

        Raises `NodeFailedError`, also while the queue has no leader.
        """
        look_up = _LOOK_UP.format(vhost=vhost, queue=queue)
        return self._named(self._one_up().evaluate(f"{look_up}, Leader"))[0]

    def members_of(self, queue: str, vhost: str = "/") -> list[RabbitNode]:
        """The nodes that have a copy of the queue, whether they run or not."""
        look_up = _LOOK_UP.format(vhost=vhost, queue=queue)
        return self._named(self._one_up().evaluate(f"{look_up}, Members"))

    def rebalance(self) -> None:
        """Spread the leaders of quorum queues evenly: `rabbitmq-queues rebalance quorum`, after a node was away."""
        self._one_up().evaluate('rabbit_amqqueue:rebalance(quorum, <<".*">>, <<".*">>)')

    def cut(self, node: RabbitNode) -> None:
        """Part the node from the others until `heal`; clients still reach all of them, as far as these serve.

        Only the Erlang distribution is cut: the node takes a wrong cookie for the others, which refuse it.
        A node that is killed and started again is no longer parted.
        """
        others = ", ".join(f"'{other.name}'" for other in self.nodes if other is not node)
        wrong = secrets.token_hex(8)
        node.evaluate(
            f"[erlang:set_cookie(N, 'wrong-{wrong}') || N <- [{others}]],"
            f" [erlang:disconnect_node(N) || N <- [{others}]]"
        )
        self._parted.append(node)

    def heal(self) -> None:
        """End every `cut`; `wait_whole` waits until the nodes have found each other."""
        for node in self._parted:
            if node.runs:
                others = ", ".join(f"'{other.name}'" for other in self.nodes if other is not node)
                node.evaluate(
                    f"[erlang:set_cookie(N, erlang:get_cookie()) || N <- [{others}]],"
                    f" [net_adm:ping(N) || N <- [{others}]]"
                )
        self._parted = []

    def wait_whole(self, timeout_s: float = START_S) -> None:
        """Return when all nodes serve clients and see each other, and every quorum queue has all its members up.

        Raises `NodeFailedError` when that takes too long.
        """
        names = ", ".join(f"'{node.name}'" for node in self.nodes)
        sees = _SEES_SINCE_4_3 if self.nodes[0].version >= (4, 3, 0) else _SEES
        whole = _WHOLE.format(nodes=names, sees=sees)

        def is_whole() -> bool:
            if not all(node.answers() for node in self.nodes):
                return False
            return self.nodes[0].evaluate(whole).strip() == "true"

        wait_until(is_whole, timeout_s=timeout_s)

    def _one_up(self) -> RabbitNode:
        for node in self.nodes:
            if node.runs and not node.frozen and node not in self._parted:
                return node
        raise NodeFailedError("no node of the cluster runs")

    def _named(self, printed: str) -> list[RabbitNode]:
        found = re.findall(r"lbg-[0-9]+@localhost", printed)
        return [node for node in self.nodes if node.name in found]
