"""Custom resources become dataclasses, or say which field is wrong."""

from __future__ import annotations

import pytest

from lbg_operator.crds import BrokerManifest, BrokerRef, Embedded, GroupManifest, RabbitMQ, bytes_in
from lbg_operator.errors import ManifestError
from testing.kubernetes.manifests import broker_manifest, consumer, group_manifest


def test_the_least_of_a_group_has_the_defaults_of_the_schema() -> None:
    group = GroupManifest.parse(group_manifest())
    assert group.broker == BrokerRef("shop", "main")
    assert (group.spec.name, group.spec.hash_prefix, group.spec.client_username) == (
        "shop-orders-644f7b8c",
    ) * 3
    assert (group.spec.hash_count, group.spec.queue_count, group.spec.queue_size_mb) == (128, 8, 1000)
    assert (group.spec.mode, group.spec.hash_function, group.spec.max_clients) == ("Exclusive", "crc32", 8)
    assert (group.spec.assignment, group.rebalance_delay_s, group.max_handoff_s) == ("ByLoad", 5, 3)
    assert (group.replicas, group.replicas_max) == (1, 8)
    assert group.consumer is None
    assert group.scaling is None
    assert (group.deletion_policy, group.drain_timeout_s) == ("Delete", 300)


def test_a_group_can_be_told_everything() -> None:
    manifest = group_manifest(
        {
            "brokerRef": {"name": "rabbit", "namespace": "messaging"},
            "groupName": "orders-of-all",
            "hash": {"count": 64, "function": "murmur2", "prefix": "o"},
            "queues": {"count": 16, "size": "2Gi"},
            "consumer": consumer("HTTPBatch", batch={"size": 500}, healthPath="/ready"),
            "scaling": {"maxReplicas": 12, "targetLag": 1000},
        }
    )
    group = GroupManifest.parse(manifest)
    assert group.broker == BrokerRef("messaging", "rabbit")
    assert (group.spec.name, group.spec.hash_prefix) == ("orders-of-all", "o")
    assert (group.spec.queue_size_mb, group.spec.max_clients, group.replicas_max) == (2147, 16, 12)
    assert group.consumer is not None
    assert group.consumer.app.batch is not None
    assert (group.consumer.app.batch.size, group.consumer.app.batch.linger_ms) == (500, 5)
    assert (group.consumer.app.path, group.consumer.app.health_path) == ("/", "/ready")
    assert group.scaling is not None
    assert (group.scaling.min_replicas, group.scaling.target_lag) == (1, 1000)


def test_the_times_of_partitions_are_the_group_s_and_else_its_members() -> None:
    times = {"rebalanceDelaySeconds": 7, "maxHandoffSeconds": 2}

    partitioned = GroupManifest.parse(group_manifest({"mode": "Partitioned", **times}))
    exclusive = GroupManifest.parse(group_manifest(times))

    assert (partitioned.spec.rebalance_delay_s, partitioned.spec.max_handoff_s) == (7.0, 2.0)
    assert (exclusive.spec.rebalance_delay_s, exclusive.spec.max_handoff_s) == (5.0, 3.0)
    assert (exclusive.rebalance_delay_s, exclusive.max_handoff_s) == (7, 2)


@pytest.mark.parametrize("mode", ["MessageGroups", "Sessions"])
def test_where_all_members_consume_one_queue_it_does_not_bound_them(mode: str) -> None:
    told = {"mode": mode, "queues": {"count": 1}}

    group = GroupManifest.parse(group_manifest(told))
    scaled = GroupManifest.parse(group_manifest({**told, "scaling": {"maxReplicas": 30, "targetLag": 9}}))

    assert (group.spec.mode, group.spec.queue_count, group.replicas_max) == (mode, 1, 4096)
    assert scaled.replicas_max == 30


def test_what_an_api_server_without_our_rules_let_through_is_said_with_the_manifest_s_field() -> None:
    with pytest.raises(ManifestError) as raised:
        GroupManifest.parse(group_manifest({"mode": "Sessions", "queues": {"count": 4}}))
    assert (
        str(raised.value)
        == "spec.queues.count: 4 must be 1 in mode Sessions: all members consume the one queue"
    )


def test_a_delay_is_a_duration() -> None:
    group = GroupManifest.parse(group_manifest({"scaling": {"maxReplicas": 4, "targetDelay": "1m30s"}}))
    assert group.scaling is not None
    assert group.scaling.target_delay_s == 90
    assert group.scaling.has_target


def test_a_default_name_is_shortened_to_fit_and_stays_unique() -> None:
    manifests = [group_manifest(name="o" * 40 + end, namespace="s" * 40) for end in "ab"]
    names = [GroupManifest.parse(one).spec.name for one in manifests]
    assert [len(name) for name in names] == [63, 63]
    assert len(set(names)) == 2


def test_names_that_are_alike_when_joined_are_different_groups() -> None:
    one, other = group_manifest(name="a-orders", namespace="team"), group_manifest(namespace="team-a")
    assert GroupManifest.parse(one).spec.name == "team-a-orders-bdf12633"
    assert GroupManifest.parse(other).spec.name == "team-a-orders-75c1a60b"


def test_a_groups_name_is_the_manifests_or_the_chosen_one_or_the_default() -> None:
    manifest = group_manifest({"groupName": "given"})
    manifest["metadata"]["annotations"] = {"lbg.dev/group-name": "chosen"}
    assert GroupManifest.parse(manifest).spec.name == "given"
    del manifest["spec"]["groupName"]
    assert GroupManifest.parse(manifest).spec.name == "chosen"
    del manifest["metadata"]["annotations"]
    assert GroupManifest.parse(manifest).spec.name == "shop-orders-644f7b8c"


@pytest.mark.parametrize("where", ["name", "annotation"])
def test_a_name_that_cannot_be_a_groups_asks_for_another(where: str) -> None:
    manifest = group_manifest(name="or.ders" if where == "name" else "orders")
    if where == "annotation":
        manifest["metadata"]["annotations"] = {"lbg.dev/group-name": "a.b"}
    with pytest.raises(ManifestError, match="set it to another name") as raised:
        GroupManifest.parse(manifest)
    assert raised.value.field == "spec.groupName"


def test_what_only_the_broker_knows_is_said_with_the_manifest_s_field() -> None:
    with pytest.raises(ManifestError, match=r"^spec\.hash\.prefix: .*one word of a topic"):
        GroupManifest.parse(group_manifest({"hash": {"prefix": "a.b"}}))


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [("500M", 500_000_000), ("2Gi", 2 * 2**30), ("1.5k", 1500), (7, 7), ("0.5Ki", 512), ("3T", 3 * 10**12)],
)
def test_quantities_are_bytes(quantity: str | int, expected: int) -> None:
    assert bytes_in("spec.queues.size", quantity) == expected


@pytest.mark.parametrize("quantity", ["", "1GB", "-1M", "1 G", "one", "1e3", "1m"])
def test_what_is_no_amount_of_bytes_is_refused(quantity: str) -> None:
    with pytest.raises(ManifestError, match="set it as 500M or 2Gi"):
        bytes_in("spec.queues.size", quantity)


def test_an_embedded_broker_has_the_defaults_of_the_schema() -> None:
    broker = BrokerManifest.parse(broker_manifest())
    assert broker.engine == Embedded(None, None, 10 * 2**30, None, None, None)


def test_a_rabbitmq_is_where_it_says() -> None:
    told = {"uris": ["amqps://a", "amqps://b/shop"], "adminSecretName": "admin", "caSecretName": "ca"}
    broker = BrokerManifest.parse(broker_manifest({"rabbitmq": told}))
    assert broker.engine == RabbitMQ(("amqps://a", "amqps://b/shop"), (), "admin", "ca")


@pytest.mark.parametrize(
    ("allowed", "namespace", "expected"),
    [
        ([], "shop", True),
        ([], "bank", False),
        (["bank"], "bank", True),
        (["bank"], "shop", True),
        (["*"], "x", True),
    ],
)
def test_a_broker_is_for_its_namespace_and_those_it_allows(
    allowed: list[str], namespace: str, expected: bool
) -> None:
    broker = BrokerManifest.parse(broker_manifest({"embedded": {}, "allowedNamespaces": allowed}))
    assert broker.allows(namespace) is expected


def test_a_manifest_that_an_older_crd_filled_in_is_told_from_one_that_is_wrong() -> None:
    manifest = group_manifest({"consumer": consumer()})
    del manifest["spec"]["consumer"]["sidecar"]["republish"]
    parsed = GroupManifest.parse(manifest).consumer
    assert parsed is not None
    assert not parsed.sidecar.republish
    del manifest["spec"]["rebalanceThresholdPercentage"]
    with pytest.raises(
        ManifestError, match="'rebalanceThresholdPercentage' is missing: the cluster's CRDs are older"
    ):
        GroupManifest.parse(manifest)
