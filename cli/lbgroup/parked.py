"""`lbg park`: the parking queue of a group, its parked keys and their messages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lbg_core.command_output import echo_json, output_option, text_table
from lbg_core.counted_nouns import counted
from lbg_core.peers import printable
from lbgroup.commands import CliError
from lbgroup.dead_letters import letter_line, new_file
from lbgroup.group.create import with_admin
from lbgroup.options import broker_options, require_consent, show_progress

if TYPE_CHECKING:
    from lbg_core.client import BrokerAddress
    from lbg_core.group.parked_keys import ParkedKey
    from lbgroup import letter_documents

DONE = output_option("one object, that states what was done.")
TIMEOUT_S = 300.0
LISTED = ("KEY", "STATE", "MESSAGES", "BYTES", "AGE", "FIRST", "REASON")


@click.group(no_args_is_help=True)
def park() -> None:
    """List, release and discard the parked keys of a group, and their messages.

    A member with --when-exhausted park moves a message that uses up its attempts to the parking queue, and every later
    one of its key after it. Needs an administrator's login.
    """


@park.command(epilog="Example: lbg park enable orders")
@click.argument("group")
@DONE
@broker_options(login=True, management=True)
def enable(group: str, address: BrokerAddress, as_json: bool) -> None:
    """Give GROUP a parking queue, while none of its members runs.

    All members of the group follow the parked keys from then on.
    """
    from lbg_core.admin.groups import enable_parking

    actions = with_admin(address, lambda admin: enable_parking(admin, group))
    done: letter_documents.ParkingEnabled = {
        "group": group,
        "action": "enabled" if actions else "unchanged",
        "changes": list(map(str, actions)),
    }
    if as_json:
        echo_json(done)
    else:
        click.echo("\n".join(done["changes"]) or f"group {group} has a parking queue")


@park.command(name="list", epilog="Example: lbg park list orders")
@click.argument("group")
@output_option("one object: group, keys, messages and bytes.")
@broker_options(login=True)
def list_(group: str, address: BrokerAddress, as_json: bool) -> None:
    """List the parked keys of GROUP, in the order in which they were parked."""
    from lbg_core.admin.observations import age_text
    from lbg_core.admin.parked_messages import administration

    listing = with_admin(
        address, lambda admin: administration.list_parked(admin, group), with_management=False
    )
    now_us = time.time_ns() // 1000
    found: letter_documents.ParkedKeys = {
        "group": group,
        "keys": [_key_document(one, listing.reasons.get(one.key), now_us) for one in listing.keys],
        "messages": listing.messages,
        "bytes": listing.size_bytes,
        "leftovers": listing.leftovers,
    }
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            printable(one["key"]),
            one["state"],
            f"{one['messages']:,}",
            f"{one['bytes']:,}",
            "-" if one["age_s"] is None else age_text(one["age_s"]),
            ", ".join(one["first"]),
            "-" if one["reason"] is None else printable(" ".join(one["reason"].split()), max_chars=100),
        )
        for one in found["keys"]
    ]
    if rows:
        click.echo("\n".join(text_table(LISTED, rows)))
    keys, messages = counted(len(rows), "parked key"), counted(found["messages"], "message")
    click.echo(f"{keys} with {messages} in group {group}", err=True)
    if found["leftovers"]:
        more = counted(found["leftovers"], "more copy is", "more copies are")
        more += " in the parking queue, of a crash or being parked now"
        click.echo(f"{more}: a release or a discard deletes those of crashes", err=True)


@park.command(epilog="Example: lbg park show orders acme")
@click.argument("group")
@click.argument("key")
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="At most N."
)
@output_option("one object: group, key and letters.")
@broker_options(login=True)
def show(group: str, key: str, address: BrokerAddress, limit: int, as_json: bool) -> None:
    """List the parked messages of KEY, oldest first, with the reason of those that failed, and leave them there."""
    from lbg_core.admin.parked_messages import administration

    letters = with_admin(
        address,
        lambda admin: administration.show_parked(admin, group, key, limit=limit),
        with_management=False,
    ).letters
    now_us = time.time_ns() // 1000
    if as_json:
        echo_json({"group": group, "key": key, "letters": [letter.to_json(now_us) for letter in letters]})
        return
    for letter in letters:
        click.echo(letter_line(letter, now_us))
    if not letters:
        raise CliError(f"group {group} has no parked message of key {key!r}")


@park.command(epilog="Example: lbg park release orders --key acme")
@click.argument("group")
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Release this key. Repeatable.")
@click.option("--all", "all_", is_flag=True, help="Release all keys that are parked now.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=TIMEOUT_S,
    show_default=True,
    metavar="S",
    help="Longest wait for members to process the messages.",
)
@DONE
@broker_options(login=True)
def release(
    group: str, address: BrokerAddress, keys: tuple[str, ...], all_: bool, timeout: float, as_json: bool
) -> None:
    """Give the messages of parked keys back to GROUP, in order and before what is published meanwhile.

    The command waits until members have processed them. A key of which a message fails again is parked again, and
    reported. When the command ends early, by a signal or a full queue, nothing is lost or out of order: the same
    command completes the release.
    """
    from lbg_core.admin.parked_messages import administration

    if all_ == bool(keys):
        raise click.UsageError("say which: --key, or --all")
    released = with_admin(
        address,
        lambda admin: administration.release(
            admin, group, keys or None, timeout_s=timeout, report=show_progress
        ),
        with_management=False,
    )
    if as_json:
        echo_json({"group": group, "action": "released", **released.to_json()})
    else:
        click.echo(
            f"{counted(len(released.done), 'key')} of group {group} released, {counted(released.published, 'message')}"
        )
    if released.failed_again:
        failed = ", ".join(printable(key) for key in sorted(released.failed_again))
        raise CliError(f"parked again, because a message failed again: {failed}")


@park.command(name="replay-one", epilog="Example: lbg park replay-one orders acme")
@click.argument("group")
@click.argument("key")
@DONE
@broker_options(login=True)
def replay_one(group: str, key: str, address: BrokerAddress, as_json: bool) -> None:
    """Give the first parked message of KEY back, as a trial: the others stay parked, whether it succeeds or fails."""
    from lbg_core.admin.parked_messages import administration

    first = with_admin(
        address, lambda admin: administration.replay_first(admin, group, key), with_management=False
    )
    id_ = "-".join(map(str, first))
    if as_json:
        echo_json({"group": group, "action": "replayed", "key": key, "id": id_})
    else:
        click.echo(f"message {printable(id_)} of key {printable(key)} is given back")


@park.command(epilog="Example: lbg park discard orders --key acme --save acme.jsonl")
@click.argument("group")
@click.option("--key", metavar="KEY", help="Discard the messages of this key.")
@click.option("--id", "ids", multiple=True, metavar="ID", help="Discard this message. Repeatable.")
@click.option("--all", "all_", is_flag=True, help="Discard all parked messages.")
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="New file (JSON Lines) for each of them, which is on disk before one is deleted.",
)
@click.option("--yes", is_flag=True, help="Discard without confirmation.")
@DONE
@broker_options(login=True)
def discard(
    group: str,
    address: BrokerAddress,
    key: str | None,
    ids: tuple[str, ...],
    all_: bool,
    save: Path | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete parked messages of GROUP. A key that has none left goes on with what is published next."""
    from lbg_core.admin.dead_letters import Selection
    from lbg_core.admin.parked_messages import administration

    if all_ == bool(ids or key is not None):
        raise click.UsageError("say which: --key, --id (what is given must all hold), or --all")
    if not yes:
        require_consent(
            lambda: f"discard parked messages of group {group} for good?", refused="nothing was discarded"
        )
    selection = Selection(frozenset(ids), key)
    with new_file(save) as file:
        count = with_admin(
            address,
            lambda admin: administration.discard(admin, group, selection, save=file),
            with_management=False,
        )
    if as_json:
        echo_json({"group": group, "action": "discarded", "discarded": count})
    else:
        click.echo(f"{counted(count, 'parked message')} of group {group} discarded")


def _key_document(one: ParkedKey, reason: str | None, now_us: int) -> letter_documents.ParkedKey:
    return {
        "key": one.key,
        "state": "released" if one.is_released else "parked",
        "messages": one.messages,
        "bytes": one.size_bytes,
        "first": ["-".join(map(str, identity)) for identity in one.first],
        "age_s": one.age_s(now_us),
        "reason": reason,
    }
