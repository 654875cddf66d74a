"""`lbg dead`: list, replay and discard the dead letters of a group."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import click

from lbg_core.command_output import echo_json, output_option
from lbgroup.commands import CliError
from lbgroup.options import body_bytes_option, body_text, broker_options, require_consent

if TYPE_CHECKING:
    from lbg_core.admin.dead_letters import DeadLetter, DeadQueue, ReplayResult, Selection
    from lbg_core.client import BrokerAddress


T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])

REASON_MAX_CHARS = 100

AS_JSON = output_option("one object, that states what was done.", has_flag=True)


save_option = click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="New file (JSON Lines) for each of them, which is on disk before one is deleted.",
)
yes_option = click.option("--yes", is_flag=True, help="Discard without confirmation.")
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="At most N."
)
bodies_option = click.option("--bodies", is_flag=True, help="With the body of each.")


def selecting(command: C) -> C:
    """Options that select dead letters, handed to the command as one `selection`."""

    @functools.wraps(command)
    def with_selection(
        *args: Any, ids: tuple[str, ...], key: str | None, reason: str | None, all_: bool, **kwargs: Any
    ) -> Any:
        from lbg_core.admin.dead_letters import Selection

        if all_ == bool(ids or key is not None or reason is not None):
            raise click.UsageError("say which: --id, --key, --reason (what is given must all hold), or --all")
        return command(*args, selection=Selection(frozenset(ids), key, reason), **kwargs)

    made: Any = with_selection
    for option in (
        click.option("--all", "all_", is_flag=True, help="Select all that are there now."),
        click.option("--reason", metavar="TEXT", help="Select those whose reason contains this text."),
        click.option("--key", metavar="KEY", help="Select those of this key."),
        click.option("--id", "ids", multiple=True, metavar="ID", help="Select this one. Repeatable."),
    ):
        made = option(made)
    return cast(C, made)


@click.group(no_args_is_help=True)
def dead() -> None:
    """List, replay and discard the dead letters of a group.

    Needs a user who may read lbg.GROUP.dead: the group's own may not.
    """


@dead.command(name="list", epilog="Example: lbg dead list orders --reason 'no such account'")
@click.argument("group")
@click.option("--key", metavar="KEY", help="Only those of this key.")
@click.option("--reason", metavar="TEXT", help="Only those whose reason contains this text.")
@limit_option
@bodies_option
@body_bytes_option
@output_option("one object: group, total and letters.", has_flag=True)
@broker_options(login=True)
def list_(
    group: str,
    address: BrokerAddress,
    key: str | None,
    reason: str | None,
    limit: int,
    bodies: bool,
    body_bytes: int,
    as_json: bool,
) -> None:
    """List the dead letters of GROUP, oldest first, and leave them there. Age counts from publishing.

    A body that is not UTF-8 is shown in base64. In JSON it is `body` or `body_base64`, and `body_bytes` is the size of
    all of it.
    """
    from lbg_core.admin.dead_letters import Selection

    print_listing(
        DEAD_LETTERS,
        address,
        group,
        Selection(key=key, reason=reason),
        limit=limit,
        body_bytes=body_bytes if bodies else None,
        as_json=as_json,
    )


@dead.command(epilog="Example: lbg dead replay orders --key N14228")
@click.argument("group")
@selecting
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Replay at most N, the oldest; by default all that are selected.",
)
@AS_JSON
@broker_options(login=True)
def replay(
    group: str, address: BrokerAddress, selection: Selection, limit: int | None, as_json: bool
) -> None:
    """Publish dead letters of GROUP to it again, oldest first, in order per key, behind what waits there now.

    Each is acknowledged once its queue has confirmed it; those that are not confirmed when the command is killed may
    be replayed a second time by the next. The first that is refused ends it; that one and the rest stay dead letters.
    A missing binding of the group is restored first. To members a replayed message is a new one: its headers
    lbg-original-publisher and lbg-original-seq have the former stamp.
    """
    from lbg_core.admin.dead_letters import ReplayResult
    from lbg_core.admin.dead_letters import replay as replay_letters

    done = ReplayResult()
    with reported(DEAD_LETTERS, done, group, "replayed", as_json=as_json):
        with_queue(
            DEAD_LETTERS, address, group, lambda queue: replay_letters(queue, selection, done, limit=limit)
        )


@dead.command(epilog="Example: lbg dead discard orders --reason 'no such account' --save refused.jsonl")
@click.argument("group")
@selecting
@save_option
@yes_option
@AS_JSON
@broker_options(login=True)
def discard(
    group: str, address: BrokerAddress, selection: Selection, save: Path | None, yes: bool, as_json: bool
) -> None:
    """Delete dead letters of GROUP."""
    discard_selected(DEAD_LETTERS, address, group, selection, save=save, yes=yes, as_json=as_json)


@dataclass(frozen=True, slots=True)
class Kind:
    """Messages of a queue of their own. `command`: that works on them."""

    plural: str
    command: str
    is_unrouted: bool = False


DEAD_LETTERS = Kind("dead letters", "dead")
UNROUTED = Kind("unrouted messages", "unrouted", is_unrouted=True)


def print_listing(
    kind: Kind,
    address: BrokerAddress,
    group: str,
    selection: Selection,
    *,
    limit: int,
    body_bytes: int | None,
    as_json: bool,
) -> None:
    """Prints the oldest of those selected, with so much of their bodies (None: without)."""
    from lbg_core.admin.dead_letters import list_letters

    listing = with_queue(
        kind, address, group, lambda queue: list_letters(queue, selection, limit=limit, body_bytes=body_bytes)
    )
    now_us = time.time_ns() // 1000
    excerpts = [body.to_json() for body in listing.bodies] or [{} for _ in listing.letters]
    letters = [
        {**letter.to_json(now_us), **excerpt}
        for letter, excerpt in zip(listing.letters, excerpts, strict=True)
    ]
    if as_json:
        echo_json({"group": group, "total": listing.total, "letters": letters})
    else:
        for letter, excerpt in zip(listing.letters, excerpts, strict=True):
            click.echo(letter_line(letter, now_us))
            if excerpt:
                click.echo(f"  {body_text(excerpt)}")
        shown = f"{len(letters):,} shown of {listing.total:,} {kind.plural} in group {group}"
        click.echo(shown, err=True)
    if listing.not_looked_at:
        raise CliError(_unread_letters(kind, listing.not_looked_at, group))


def discard_selected(
    kind: Kind,
    address: BrokerAddress,
    group: str,
    selection: Selection,
    *,
    save: Path | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Deletes those selected after consent, with `save` once they are on disk there."""
    from lbg_core.admin.dead_letters import ReplayResult, count
    from lbg_core.admin.dead_letters import discard as discard_letters

    def question() -> str:
        selected = with_queue(kind, address, group, lambda queue: count(queue, selection))
        return f"discard {selected:,} {kind.plural} of group {group} for good?"

    if not yes:
        require_consent(question, refused="nothing was discarded")
    done = ReplayResult()
    with reported(kind, done, group, "discarded", as_json=as_json), new_file(save) as file:
        with_queue(kind, address, group, lambda queue: discard_letters(queue, selection, done, save=file))


def with_queue(
    kind: Kind, address: BrokerAddress, group: str, work: Callable[[DeadQueue], Awaitable[T]]
) -> T:
    from lbg_core.admin.dead_letters import open_dead_queue

    async def run() -> T:
        async with open_dead_queue(address.places(), group, is_unrouted=kind.is_unrouted) as queue:
            return await work(queue)

    return asyncio.run(run())


@contextmanager
def reported(kind: Kind, done: ReplayResult, group: str, verb: str, *, as_json: bool) -> Iterator[None]:
    """Print the result, also of an interrupted run; an ID without a dead letter is a failure."""
    try:
        yield
    finally:
        if as_json:
            echo_json({"group": group, **done.to_json(verb)})
        elif done.total or sys.exception() is None:
            unknown = f", {done.unknown:,} of unknown fate" if done.unknown else ""
            click.echo(f"{done.done:,} of {done.total:,} {kind.plural} of group {group} {verb}{unknown}")
    if done.not_looked_at:
        raise CliError(_unread_letters(kind, done.not_looked_at, group))
    if done.missing_ids:
        raise CliError(f"no dead letter of group {group} has id {', '.join(sorted(done.missing_ids))}")


def _unread_letters(kind: Kind, count: int, group: str) -> str:
    return (
        f"{count:,} {kind.plural} of group {group} were not read, as another client holds them: "
        f"repeat the command when no other lbg {kind.command} works on the group"
    )


@contextmanager
def new_file(path: Path | None) -> Iterator[IO[str] | None]:
    """Its name is on disk before anything in it has to be."""
    if path is None:
        yield None
        return
    with path.open("x", encoding="utf-8") as file:
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        yield file


def letter_line(letter: DeadLetter, now_us: int) -> str:
    from lbg_core.admin.observations import age_text

    age_s = letter.age_s(now_us)
    reason = " ".join(letter.reason.split())
    fields = {
        "key": letter.key,
        "attempts": letter.attempts,
        "queue": letter.queue,
        "member": letter.member_name or letter.member,
        "age": None if age_s is None else age_text(age_s),
    }
    columns = "  ".join(f"{name} {'-' if value is None else value}" for name, value in fields.items())
    return f"{letter.id or '-'}  {columns}  {reason[:REASON_MAX_CHARS]}"
