"""The validator's report as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """What `lbg validate` says at its end."""
    verdict = (
        "nothing lost, nothing out of order, no key at two members at once" if report["ok"] else "FAILED"
    )
    yield f"group {report['group']}: {verdict} (judged against {report['judged_against']})"
    yield f"  delivered {report['delivered']:>10}   {report['distinct']} different messages"
    yield f"  lost {report['lost']:>15}"
    yield f"  order errors {report['order_errors']:>7}"
    yield f"  overlaps {report['overlaps']:>11}   deliveries that began while another member had their key"
    if report["uncertain_overlaps"]:
        yield f"  uncertain {report['uncertain_overlaps']:>10}   overlaps that the skew of their clocks may explain"
    if report["untimed"]:
        yield f"  untimed {report['untimed']:>12}   of members that do not say when: of these no overlap is known"
    yield f"  duplicated {report['duplicated']:>9}   {report['redelivered']} were marked redelivered by the broker"
    if (sessions := report.get("sessions")) is not None:
        yield f"  sessions {len(sessions['last_numbers']):>11}   {_counts(sessions['last_numbers'])}"
        yield f"  given out twice {sessions['in_two_places']:>4}   in two sessions, or under two numbers"
        if sessions["renumbered"] or sessions["unnumbered"]:
            renumbered, unnumbered = sessions["renumbered"], sessions["unnumbered"]
            yield f"  {renumbered} numbers had two messages, {unnumbered} messages had no number"
    if report["dead_lettered"]:
        yield f"  dead letters {report['dead_lettered']:>7}   refused by the application, not lost"
    yield f"  moves {report['queue_moves']:>14}   of queues; {report['shard_moves']} of shards"
    if report["pauses"]["count"]:
        yield f"  pauses         {_percentiles(report['pauses'])}"
        yield f"  messages held  {_percentiles(report['waits'])}"
    yield f"  per member     {_counts(report['per_member'])}"
    yield f"  per queue      {_counts(report['per_queue'])}"
    if report["unexpected_streams"]:
        yield f"  {report['unexpected_streams']} streams have more messages than any report says"
    if report["unreadable"]:
        yield f"  {report['unreadable']} messages were not republished by a member"
    for lost in report["lost_ranges"][:20]:
        yield f"  lost: publisher {lost['publisher']}, hash {lost['hash_']}, {lost['first']} to {lost['last']}"


def _percentiles(pauses: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {pauses[f'{name}_us'] / 1000:.1f} ms" for name in ("p50", "p90", "p99", "max"))


def _counts(counts: Mapping[Any, int]) -> str:
    return "  ".join(f"{name}: {count}" for name, count in counts.items()) or "none"
