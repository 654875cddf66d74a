from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group import (
    MODES,
    RECORD_VERSION,
    UNCOUNTED_MODES,
    GroupSpec,
    NewerRecordError,
    SpecError,
    conflicts,
    differences,
)

GIVEN: dict[str, Any] = {
    "name": "orders",
    "hash_prefix": "orders",
    "hash_count": 100,
    "queue_count": 8,
    "queue_size_mb": 50,
    "client_username": "orders-client",
}
SPEC = GroupSpec(**GIVEN)


def test_a_spec_has_the_defaults_that_the_document_implies() -> None:
    assert (SPEC.hash_function, SPEC.mode) == ("crc32", "Exclusive")
    assert SPEC.max_clients == SPEC.queue_count == 8
    assert SPEC.queue_size_bytes == 50_000_000


def test_attributes_that_are_not_given_are_those_of_the_command_line() -> None:
    assert GroupSpec("orders") == GroupSpec(
        "orders", "orders", hash_count=100, queue_count=4, queue_size_mb=1000, client_username="orders"
    )
    assert GroupSpec("orders", mode="Sessions").queue_count == 1
    with pytest.raises(SpecError, match="queue_count 4: must be at most hash_count"):
        GroupSpec("orders", hash_count=2)


# field, value, words of the rule
BROKEN = [
    ("name", "orders.eu", "DNS label"),
    ("name", 7, "DNS label"),
    ("hash_prefix", "", "at least one character"),
    ("hash_prefix", 7, "at least one character"),
    ("hash_prefix", "a.b", "must not contain . # or *"),
    ("hash_prefix", "a#", "must not contain . # or *"),
    ("hash_prefix", "*", "must not contain . # or *"),
    ("hash_prefix", "a b", "spaces or unprintable"),
    ("hash_prefix", "a\n", "spaces or unprintable"),
    ("hash_prefix", "\ud800", "spaces or unprintable"),
    ("hash_prefix", "é" * 65, "at most 128 bytes"),
    ("hash_count", 0, "whole number from 1 to 65536"),
    ("hash_count", -4, "whole number from 1 to 65536"),
    ("hash_count", 65_537, "whole number from 1 to 65536"),
    ("hash_count", 4.0, "whole number from 1 to 65536"),
    ("hash_count", True, "whole number from 1 to 65536"),
    ("hash_count", "many", "whole number from 1 to 65536"),
    ("hash_count", "-1", "whole number from 1 to 65536"),
    ("queue_count", 0, "whole number from 1 to 4096"),
    ("queue_count", 4_097, "whole number from 1 to 4096"),
    ("queue_count", 101, "at most hash_count (100): HC >= QC >= CC"),
    ("queue_size_mb", 0, "whole number from 1 to 6000000"),
    ("queue_size_mb", 6_000_001, "whole number from 1 to 6000000"),
    ("client_username", "", "at least one character"),
    ("client_username", "a:b", "colon"),
    ("client_username", "a b", "spaces or unprintable"),
    ("client_username", "u" * 256, "at most 255 bytes"),
    ("hash_function", "md5", "one of crc32, java, murmur2, modulo"),
    ("hash_function", ["crc32"], "one of crc32, java, murmur2, modulo"),
    ("mode", "exclusive", "one of Exclusive, Partitioned, MessageGroups, Sessions"),
    ("max_clients", 0, "whole number from 1"),
    ("max_clients", 9, "at most queue_count (8): HC >= QC >= CC"),
    ("rebalance_delay_s", 2.5, "goes with mode Partitioned only, and this is Exclusive"),
    ("max_handoff_s", 1, "goes with mode Partitioned only, and this is Exclusive"),
    ("rebalance_delay_s", -1, "number from 0 to 3600"),
    ("rebalance_delay_s", "soon", "number from 0 to 3600"),
    ("rebalance_delay_s", True, "number from 0 to 3600"),
    ("max_handoff_s", 3600.5, "number from 0 to 3600"),
    ("max_handoff_s", float("nan"), "number from 0 to 3600"),
]


@pytest.mark.parametrize(("field", "value", "rule"), BROKEN)
def test_a_broken_rule_is_reported_with_field_value_and_rule(field: str, value: object, rule: str) -> None:
    with pytest.raises(SpecError) as caught:
        GroupSpec(**{**GIVEN, field: value})

    error = caught.value
    assert error.field == field
    assert error.value is value or error.value == value
    assert rule in error.rule
    assert str(error).startswith(f"{field} ")
    assert rule in str(error)
    assert value is None or repr(value)[:10] in str(error)


def test_the_most_queues_and_clients_that_the_hash_count_allows_are_accepted() -> None:
    spec = replace(SPEC, queue_count=100, max_clients=100)

    assert spec.hash_count == spec.queue_count == spec.max_clients == 100


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_parses_because_refusing_one_is_for_provisioning(mode: str) -> None:
    assert GroupSpec(**{**GIVEN, "queue_count": 1, "mode": mode}).mode == mode


@pytest.mark.parametrize("mode", UNCOUNTED_MODES)
def test_where_all_members_consume_one_queue_none_is_counted_and_they_are_not_bounded_by_it(
    mode: str,
) -> None:
    given = {name: value for name, value in GIVEN.items() if name != "queue_count"}

    spec = GroupSpec(**{**given, "mode": mode})

    assert (spec.queue_count, spec.max_clients) == (1, spec.hash_count)
    assert GroupSpec(**{**given, "mode": mode, "max_clients": 250}).max_clients == 250
    assert GroupSpec(**{**given, "mode": mode, "queue_count": 1}) == spec


@pytest.mark.parametrize("mode", UNCOUNTED_MODES)
def test_more_than_one_queue_is_refused_where_all_members_consume_one(mode: str) -> None:
    with pytest.raises(SpecError) as caught:
        GroupSpec(**{**GIVEN, "mode": mode})
    assert str(caught.value) == f"queue_count 8: must be 1 in mode {mode}: all members consume the one queue"


def test_the_times_of_partitions_are_kept_to_the_millisecond() -> None:
    spec = GroupSpec(**{**GIVEN, "mode": "Partitioned", "rebalance_delay_s": 2.5, "max_handoff_s": 0.0004})

    assert (spec.rebalance_delay_s, spec.max_handoff_s) == (2.5, 0.0)


def test_without_times_partitions_have_those_of_the_document() -> None:
    spec = GroupSpec(**{**GIVEN, "mode": "Partitioned"})

    assert (spec.rebalance_delay_s, spec.max_handoff_s) == (5.0, 3.0)
    assert "RD" not in spec.to_record()
    assert "MH" not in spec.to_record()


@pytest.mark.parametrize("key", ["pasword_typo", "clientPasswd", "cp"])
def test_a_mistyped_password_does_not_reach_the_error(key: str) -> None:
    with pytest.raises(SpecError) as from_record:
        GroupSpec.from_record(json.dumps({"HP": "o", key: "hunter2"}), name="orders")

    error = from_record.value
    assert key in str(error)
    assert "hunter2" not in str(error) + repr(error.value)


def test_the_record_is_the_documents_compact_json_with_a_version() -> None:
    assert SPEC.to_record() == '{"V":1,"HP":"orders","HC":100,"QC":8,"QS":50,"CU":"orders-client"}'


def test_the_record_has_our_own_keys_only_where_they_are_not_the_default() -> None:
    spec = replace(
        SPEC,
        hash_function="java",
        mode="Partitioned",
        assignment="Static",
        max_clients=4,
        rebalance_delay_s=1.5,
        max_handoff_s=10,
    )

    assert json.loads(spec.to_record()) == {
        **json.loads(SPEC.to_record()),
        "HF": "java",
        "MD": "Partitioned",
        "CC": 4,
        "RD": 1.5,
        "MH": 10.0,
        "AS": "Static",
    }


def test_the_default_assignment_is_that_of_the_mode() -> None:
    assert {mode: GroupSpec("g", mode=mode).assignment for mode in MODES} == {
        "Exclusive": "ByLoad",
        "Partitioned": "Balanced",
        "MessageGroups": "Balanced",
        "Sessions": "Balanced",
    }


def test_a_record_with_the_documents_password_is_read_and_the_password_forgotten() -> None:
    record = '{"HP":"orders","HC":100,"QC":8,"QS":50,"CU":"orders-client","CP":"hunter2"}'

    assert GroupSpec.from_record(record, name="orders") == SPEC
    assert GroupSpec.from_record(record.replace(":100", ':"100"'), name="orders") == SPEC


@pytest.mark.parametrize(
    ("record", "rule"),
    [
        ("", "must be JSON"),
        ("{", "must be JSON"),
        (b"\xff", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
        ("[]", "must be a JSON object"),
        ('{"V":"1","HP":"orders"}', "must be 1, the version of a record"),
        ('{"HP":"orders","XX":1}', "is none of a record's: HP, HC, QC, QS, CU"),
        ('{"HP":"orders"}', "is required"),
        ('{"HP":"orders","HC":4,"QC":8,"QS":50,"CU":"u"}', "HC >= QC >= CC"),
        ('{"HP":"orders","HC":4,"QC":4,"QS":50,"CU":"u","CC":5}', "HC >= QC >= CC"),
    ],
)
def test_a_broken_record_is_refused_with_the_reason(record: str | bytes, rule: str) -> None:
    with pytest.raises(SpecError) as caught:
        GroupSpec.from_record(record, name="orders")
    assert rule in str(caught.value)


def test_a_record_of_a_newer_version_is_refused() -> None:
    newer = SPEC.to_record().replace(f'"V":{RECORD_VERSION}', f'"V":{RECORD_VERSION + 1}')
    with pytest.raises(NewerRecordError) as refused:
        GroupSpec.from_record(newer, name="orders")
    assert refused.value.value == RECORD_VERSION + 1


WORDS = st.text(
    st.characters(exclude_categories=("C", "Z"), exclude_characters=".#*:"), min_size=1, max_size=20
)


@st.composite
def specs(draw: st.DrawFn) -> GroupSpec:
    hash_count = draw(st.integers(1, 65_536))
    mode = draw(st.sampled_from(MODES))
    queue_count = 1 if mode in UNCOUNTED_MODES else draw(st.integers(1, min(hash_count, 4_096)))
    times = st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("rebalance_delay_s", "max_handoff_s"), st.floats(0, 3_600))
    )
    return GroupSpec(
        draw(st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)),
        draw(WORDS),
        hash_count=hash_count,
        queue_count=queue_count,
        queue_size_mb=draw(st.integers(1, 6_000_000)),
        client_username=draw(WORDS),
        hash_function=draw(st.sampled_from(["crc32", "java", "murmur2", "modulo"])),
        mode=mode,
        max_clients=draw(st.none() | st.integers(1, 65_536 if mode in UNCOUNTED_MODES else queue_count)),
        **(draw(times) if mode == "Partitioned" else {}),
        **({"assignment": draw(st.sampled_from(["Balanced", "Static"]))} if mode == "Exclusive" else {}),
    )


@given(specs())
def test_a_spec_survives_its_record(spec: GroupSpec) -> None:
    assert GroupSpec.from_record(spec.to_record(), name=spec.name) == spec
    assert GroupSpec.from_record(spec.to_record().encode(), name=spec.name) == spec
    assert GroupSpec.from_record(spec.to_record(), name=spec.name).limits_clients == spec.limits_clients


@given(specs())
def test_an_altered_spec_keeps_all_else_and_whether_clients_are_limited(spec: GroupSpec) -> None:
    assert spec.altered() == spec
    assert spec.altered().limits_clients == spec.limits_clients
    assert spec.altered(client_username="u").attributes() == {**spec.attributes(), "client_username": "u"}


@given(specs())
def test_a_spec_has_no_difference_from_itself(spec: GroupSpec) -> None:
    assert differences(spec, replace(spec)) == ()


def test_differences_tell_field_existing_and_wanted() -> None:
    wanted = replace(SPEC, hash_count=120, client_username="other")

    assert [str(one) for one in differences(SPEC, wanted)] == [
        "hash_count: 100 -> 120",
        "client_username: orders-client -> other",
    ]
    assert conflicts(SPEC, wanted) == differences(SPEC, wanted)
    assert conflicts(SPEC, replace(SPEC, assignment="Static", max_clients=2)) == ()


def test_a_huge_value_is_shortened_in_the_error() -> None:
    with pytest.raises(SpecError) as caught:
        GroupSpec(**{**GIVEN, "hash_prefix": "x" * 100_000})
    assert len(str(caught.value)) < 200


def test_an_error_can_be_sent_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(SpecError("hash_count", 0, "must be more")))

    assert (error.field, error.value, str(error)) == ("hash_count", 0, "hash_count 0: must be more")
