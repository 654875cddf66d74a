"""`lbg group assign`: another rule of assignment, of a group that is there."""

from __future__ import annotations

import json

import pytest

from testing.command_line import Lbg, Where


def test_a_group_is_assigned_by_another_rule_and_shows_it(lbg: Lbg, broker: Where, unique: str) -> None:
    where = broker.options
    assert lbg("group", "create", unique, "--no-user", *where).status == 0
    done = lbg("group", "assign", unique, "Static", *where)
    assert (done.status, done.out) == (0, f"queues of group {unique} are assigned by Static\n")
    again = json.loads(lbg("group", "assign", unique, "Static", "--output", "json", *where).out)
    assert again == {"group": unique, "action": "unchanged", "assignment": "Static"}
    assert "assignment Static" in lbg("group", "show", unique, *where).out
    refused = lbg("group", "create", unique, "--no-user", *where)
    assert refused.status == 1
    assert f"`lbg group assign {unique} ByLoad`" in refused.last_line


@pytest.mark.parametrize("broker", ["embedded"], indirect=True)
def test_partitions_of_the_embedded_broker_have_no_other_rule(lbg: Lbg, broker: Where, unique: str) -> None:
    create = ("group", "create", unique, "--no-user", "--mode", "Partitioned", *broker.options)
    refused = lbg(*create, "--assignment", "ByLoad")
    assert (refused.status, "leave out assignment ByLoad" in refused.last_line) == (1, True)
    assert lbg(*create).status == 0
    refused = lbg("group", "assign", unique, "ByLoad", *broker.options)
    assert (refused.status, "leave out assignment ByLoad" in refused.last_line) == (1, True)


def test_a_rule_or_a_group_that_is_not_there_is_one_line(lbg: Lbg, broker: Where, unique: str) -> None:
    fair = lbg("group", "assign", unique, "Fair", *broker.options)
    assert (fair.status, "'Fair' is not one of 'Balanced', 'Static'" in fair.last_line) == (2, True)
    missing = lbg("group", "assign", unique, "Static", *broker.options)
    assert (missing.status, f"there is no group '{unique}'" in missing.last_line) == (1, True)
