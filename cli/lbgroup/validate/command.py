"""`lbg validate`: order, loss and moves of a group's deliveries."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lbg_core.command_output import output_option
from lbg_core.counted_nouns import counted
from lbgroup.options import broker_options

if TYPE_CHECKING:
    from lbg_core.client import BrokerAddress, ConnectionSettings
    from lbgroup.validate.collector import CollectingSettings, Collector
    from lbgroup.validate.validator import Finding, Validator


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Lines of `lbg validate` at its end."""
    verdict = (
        "nothing lost, nothing out of order, no key at two members at once" if report["ok"] else "FAILED"
    )
    yield f"group {report['group']}: {verdict} (judged against {report['judged_against']})"
    yield f"  delivered {report['delivered']:>10}   {counted(report['distinct'], 'different message')}"
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
            yield f"  {counted(renumbered, 'number')} had two messages, {counted(unnumbered, 'message')} had no number"
    if report["dead_lettered"]:
        yield f"  dead letters {report['dead_lettered']:>7}   refused by the application, not lost"
    yield f"  moves {report['queue_moves']:>14}   of queues; {report['shard_moves']} of shards"
    if report["pauses"]["count"]:
        yield f"  pauses         {_percentiles(report['pauses'])}"
        yield f"  messages held  {_percentiles(report['waits'])}"
    yield f"  per member     {_counts(report['per_member'])}"
    yield f"  per queue      {_counts(report['per_queue'])}"
    if report["unexpected_streams"]:
        yield (
            f"  {counted(report['unexpected_streams'], 'stream has', 'streams have')} more messages than any report "
            "says"
        )
    if report["unreadable"]:
        yield f"  {counted(report['unreadable'], 'message was', 'messages were')} not republished by a member"
    for lost in report["lost_ranges"][:20]:
        yield f"  lost: publisher {lost['publisher']}, hash {lost['hash_']}, {lost['first']} to {lost['last']}"


def _percentiles(pauses: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {pauses[f'{name}_us'] / 1000:.1f} ms" for name in ("p50", "p90", "p99", "max"))


def _counts(counts: Mapping[Any, int]) -> str:
    return "  ".join(f"{name}: {count}" for name, count in counts.items()) or "none"


PROGRESS_EVERY_TICKS = 20
"""As text a line of progress every 5 s; as JSON one at every tick."""


@click.command(epilog="Example: lbg validate --group orders --expect published.json")
@click.option("--group", required=True, metavar="NAME", help="The group to validate.")
@click.option(
    "--expect",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A report of `lbg publish --report`, which may not exist yet. The command ends when all that it counts has "
    "arrived; what has not is lost. Repeatable.",
)
@click.option(
    "--idle-timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End after this time without a message; by default never.",
)
@output_option("one object a line; the last is the report.", has_flag=True)
@click.option(
    "--clock-skew",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="Largest difference of two members' clocks. An overlap that it explains is uncertain, and no failure.",
)
@click.option("--shards/--no-shards", default=True, show_default=True, help="Report every shard that moved.")
@click.option(
    "--keep-queue", is_flag=True, help="Leave the queue lbg.NAME.validation for the next validator."
)
@broker_options(login=True)
def validate(
    group: str,
    expect: tuple[Path, ...],
    idle_timeout: float | None,
    as_json: bool,
    clock_skew: float,
    shards: bool,
    keep_queue: bool,
    address: BrokerAddress,
) -> int:
    """Check what the members of a group deliver: order, repeats, losses and moves.

    Members must run with --republish, and start after this command, so that nothing is missed. It reports each
    message out of sequence, with the sequence number expected and the one received: a rewind is a redelivery, as
    after a crash; an inversion comes after a later message of its key. It reports each overlap, where two members
    worked on one key at the same time, and each move of a shard to another member, with its pause. In mode Sessions
    order is that of each session's own numbers, and a message that is in two sessions, or twice in one, is an error.

    Ctrl-C ends it with its report. The exit status is 1 if anything was lost or inverted, or a key was at two
    members at once.
    """
    from lbgroup.validate.collector import CollectingSettings

    settings = CollectingSettings(group, expect, idle_timeout, keep_queue, clock_skew)
    report = asyncio.run(_run(address.places(), settings, as_json=as_json, shards=shards))
    if as_json:
        click.echo(json.dumps({"event": "report", **report}))
    else:
        click.echo("\n".join(report_lines(report)))
    return 0 if report["ok"] else 1


async def _run(
    where: Sequence[ConnectionSettings], settings: CollectingSettings, *, as_json: bool, shards: bool
) -> dict[str, Any]:
    from lbgroup.validate.collector import Collector

    collecting = Collector(
        settings,
        on_findings=_findings_as_json(shards) if as_json else _findings_as_text(shards),
        on_tick=_progress_as_json if as_json else _progress_as_text(),
        on_listening=lambda: click.echo(json.dumps({"event": "listening"})) if as_json else None,
        on_notice=lambda line: click.echo(f"lbg validate: {line}", err=True),
    )
    _stop_on_signals(collecting)
    await collecting.run(where)
    return collecting.validation.report(settings.group, collecting.expected)


def _stop_on_signals(collecting: Collector) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, collecting.stop)


def _findings_as_text(shards: bool) -> Callable[[Sequence[Finding]], None]:
    from lbgroup.validate.validator import ShardMoved

    def show(findings: Sequence[Finding]) -> None:
        for finding in findings:
            if shards or not isinstance(finding, ShardMoved):
                click.echo(str(finding))

    return show


def _findings_as_json(shards: bool) -> Callable[[Sequence[Finding]], None]:
    from lbgroup.validate.validator import EVENTS, ShardMoved

    def show(findings: Sequence[Finding]) -> None:
        for finding in findings:
            if shards or not isinstance(finding, ShardMoved):
                click.echo(json.dumps({"event": EVENTS[type(finding)], **asdict(finding)}))

    return show


def _progress_as_json(validation: Validator) -> None:
    click.echo(json.dumps({"event": "progress", **validation.progress()}))


def _progress_as_text() -> Callable[[Validator], None]:
    ticks = 0

    def show(validation: Validator) -> None:
        nonlocal ticks
        ticks += 1
        if ticks % PROGRESS_EVERY_TICKS == 0:
            click.echo(
                f"{validation.delivered} delivered, {validation.rewinds} again, {validation.inversions} inverted, "
                f"{validation.overlaps.count} overlapping, "
                f"{counted(len(validation.holders.moves), 'queue move')}",
                err=True,
            )

    return show
