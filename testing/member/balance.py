"""Queues that a member serves, and those that it should serve."""

from __future__ import annotations

from lbg_sidecar import Member


def active(member: Member) -> set[int]:
    return {queue["queue"] for queue in member.state()["queues"] if queue["active"]}


def primary(member: Member) -> set[int]:
    return {queue["queue"] for queue in member.state()["queues"] if queue["role"] == "primary"}


def in_balance(*members: Member) -> bool:
    return all(
        active(member) == primary(member) and member.state()["rebalance"] == "Ready" for member in members
    )
