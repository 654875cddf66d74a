"""Commands of `lbg group` that change one: from `rotate` to `delete`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lbg_core.admin.progress import Progress, Stage
from lbg_core.command_output import echo_json, output_option
from lbg_core.counted_nouns import counted
from lbg_core.declaration import without_links
from lbg_core.group import ATTRIBUTES
from lbg_core.peers import printable
from lbgroup.commands import CliError
from lbgroup.group.create import (
    handed_over,
    password_from,
    password_in,
    password_lines,
    password_options,
    secret_file,
    with_admin,
)
from lbgroup.options import FILE, broker_options, counted_text, require_consent, show_progress

if TYPE_CHECKING:
    from lbg_core.client import BrokerAddress
    from lbg_core.group import Assignment
    from lbgroup import documents

DONE = output_option("one object, that states what was done.")


@click.command(epilog="Example: lbg group rotate orders --client-password-file /run/secrets/orders/password")
@click.argument("name")
@click.option(
    "--client-username",
    metavar="NAME",
    help="New user of the group; the former one may still log in. By default the user stays.",
)
@password_options
@click.option("--finish", is_flag=True, help="Delete former users; refused while they have connections.")
@click.option(
    "--force",
    is_flag=True,
    help="With --finish: delete those with connections too, which the broker then closes.",
)
@DONE
@broker_options(login=True, management=True)
def rotate(
    name: str,
    address: BrokerAddress,
    client_username: str | None,
    client_password_file: Path | None,
    write_password: Path | None,
    finish: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Give the user of group NAME a new password, or the group a new user, while members stay.

    Refused for a group of Kubernetes, whose Secret has the password. No connection is closed. A client with
    --password-file reads the new password when it connects again, and retries until it is there.
    """
    from lbg_core.admin.groups import finish_rotation, rotate_user

    if finish and (client_username or client_password_file or write_password):
        raise click.UsageError("--finish goes without a new user or password")
    if finish:
        deleted = with_admin(address, lambda admin: finish_rotation(admin, name, force=force))
        done: documents.Rotated = {
            "group": name,
            "action": "finished" if deleted else "unchanged",
            "changes": list(map(str, deleted)),
        }
        _print_rotated(done, as_json=as_json, unchanged=f"group {name} has one user, nothing to do")
        return
    password = password_from(client_password_file)
    with secret_file(write_password if password is None else None) as secret:
        rotated = with_admin(
            address, lambda admin: rotate_user(admin, name, username=client_username, password=password)
        )
        done = {
            "group": name,
            "action": "rotated",
            "changes": list(map(str, rotated.changes)),
            **handed_over(rotated.username, rotated.password, secret),
        }
    _print_rotated(done, as_json=as_json)


def _print_rotated(done: documents.Rotated, *, as_json: bool, unchanged: str = "") -> None:
    if as_json:
        echo_json(done)
        return
    click.echo("\n".join(done["changes"]) or unchanged)
    for line in password_lines(done):
        click.echo(line)


@click.command(epilog="Example: lbg group publisher orders --only --write-password publisher.password")
@click.argument("name")
@click.option(
    "--publisher-username",
    metavar="NAME",
    help="User of the publishers. By default the user that they have, or a new one, GROUP.publisher.",
)
@click.option(
    "--publisher-password-file",
    type=FILE,
    help="The user's password is this file's first line. By default one is generated.",
)
@click.option(
    "--write-password",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a generated password to this new file (mode 600) and do not print it.",
)
@click.option(
    "--only",
    is_flag=True,
    help="Members may not publish from now on: publishers that use the members' user are refused.",
)
@DONE
@broker_options(login=True, management=True)
def publisher(
    name: str,
    address: BrokerAddress,
    publisher_username: str | None,
    publisher_password_file: Path | None,
    write_password: Path | None,
    only: bool,
    as_json: bool,
) -> None:
    """Give the publishers of group NAME a user of their own, or that user a new password.

    The user may publish to the group and read the group's attributes, and nothing else: it cannot consume, purge or
    delete. No connection is closed. A former user of the publishers may still log in until `lbg group rotate NAME
    --finish`. Refused for a group of Kubernetes.
    """
    from lbg_core.admin.groups import separate_publishers

    password = None
    if publisher_password_file is not None:
        password = password_in(publisher_password_file, option="--publisher-password-file")
    with secret_file(write_password if password is None else None) as secret:
        separated = with_admin(
            address,
            lambda admin: separate_publishers(
                admin,
                name,
                username=publisher_username,
                password=password,
                members_publish=False if only else None,
            ),
        )
        done: documents.Rotated = {
            "group": name,
            "action": "separated" if separated.changes else "unchanged",
            "changes": list(map(str, separated.changes)),
            **handed_over(separated.username, separated.password, secret),
        }
    _print_rotated(done, as_json=as_json)


WAITING_SHOWN_EVERY_S = 3.0


@click.command(epilog="Example: lbg group repartition orders --queues 8")
@click.argument("name")
@click.option(
    "--queues", required=True, type=click.IntRange(min=1), metavar="N", help="New number of queues."
)
@click.option(
    "--max-clients",
    type=click.IntRange(min=1),
    metavar="N",
    show_default="as the group has it",
    help="New highest number of members, if a limit that was given is to change as well.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Longest wait until keys have moved, or offline until the group is drained, and again for its members.",
)
@click.option(
    "--offline",
    is_flag=True,
    help="Close ingress and drain the group also where the number can be changed online.",
)
@click.option(
    "--discard",
    is_flag=True,
    help="Delete messages that are left in the queues that are removed, instead of waiting for them; of separate "
    "queues only with --offline.",
)
@DONE
@broker_options(login=True, management=True)
def repartition(
    name: str,
    address: BrokerAddress,
    queues: int,
    max_clients: int | None,
    timeout: float,
    discard: bool,
    offline: bool,
    as_json: bool,
) -> None:
    """Give group NAME another number of queues, while members stay.

    The change is online: publishers go on, and keys move in order, each when its earlier messages are settled. In mode
    Partitioned on the embedded broker the broker moves them, and goes on without the command. Between separate queues
    the command and members do: after an interruption the same command goes on, and one with the former number moves the
    keys back.

    With --offline publishers wait: ingress is closed, the group is drained, the number changes (the highest queue is
    removed first), members become Ready, and ingress is opened. Publishers of LBG go on in order; others are refused.
    A group that is not drained in time is not changed. After an interruption the same command finishes the change, and
    one with the former number reverts it.
    """
    from lbg_core.admin.repartition import repartition_group

    steps = Steps()
    try:
        done = with_admin(
            address,
            lambda admin: repartition_group(
                admin,
                name,
                queues,
                timeout_s=timeout,
                max_clients=max_clients,
                discard=discard,
                offline=offline,
                report=steps.show,
            ),
        )
    finally:
        if steps.is_moving:
            click.echo(
                f"! keys of group {name} are between queues, and publishers and members go on: the same command again "
                "goes on from here",
                err=True,
            )
        if steps.is_closed:
            click.echo(
                f"! group {name} takes no messages: the same command again goes on from here", err=True
            )
    if as_json:
        answer: documents.Repartitioned = {
            "group": name,
            "action": "repartitioned" if done.is_changed else "unchanged",
            "former_queue_count": done.was,
            "queue_count": done.now,
        }
        echo_json(answer)
    elif done.is_changed:
        click.echo(f"group {name} has {counted(done.now, 'queue')} now")
    else:
        click.echo(f"group {name} has {counted(done.now, 'queue')} already")


class Steps:
    """Every step is a line, and at intervals a pending condition: its counts change all the time."""

    def __init__(self) -> None:
        self.is_closed = False
        """True if publishers were shut out, and not let in again."""
        self.is_moving = False
        """True if keys have begun to move between separate queues, and have not arrived."""
        self._quiet_until = 0.0

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        match progress.stage:
            case Stage.BEGUN | Stage.CONTINUED:
                self.is_moving = True
            case Stage.READY | Stage.UNCHANGED:
                self.is_moving = False
            case Stage.INGRESS_OFF:
                self.is_closed = True
            case Stage.INGRESS_ON | Stage.INGRESS_PAUSED:
                self.is_closed = False
        is_pending = progress.stage is Stage.WAITING
        if not is_pending or now >= self._quiet_until:
            show_progress(progress)
            self._quiet_until = now + WAITING_SHOWN_EVERY_S if is_pending else 0.0


@click.command(epilog="Example: lbg group assign orders Static")
@click.argument("name")
@click.argument("assignment", type=click.Choice(ATTRIBUTES["assignment"].choices))
@click.option(
    "--rebalance-threshold-percent",
    type=int,
    metavar="PERCENT",
    help=f"{without_links(ATTRIBUTES['rebalance_threshold_percent'].help)}. By default as it is.",
)
@DONE
@broker_options(login=True, management=True)
def assign(
    name: str,
    assignment: Assignment,
    rebalance_threshold_percent: int | None,
    address: BrokerAddress,
    as_json: bool,
) -> None:
    """Assign the queues of group NAME to its members by another rule, from now on.

    Members go on, and hand over what is another's by that rule. The group's record has the rule, so that members that
    connect later follow it too. Refused for a group of Kubernetes, whose object has spec.assignment.
    """
    from lbg_core.admin.groups import assign_queues

    is_new = with_admin(
        address,
        lambda admin: assign_queues(
            admin, name, assignment, rebalance_threshold_percent=rebalance_threshold_percent
        ),
    )
    done: documents.Assigned = {
        "group": name,
        "action": "assigned" if is_new else "unchanged",
        "assignment": assignment,
    }
    if as_json:
        echo_json(done)
    else:
        click.echo(f"queues of group {name} are assigned by {assignment}{'' if is_new else ' already'}")


@click.command(epilog="Example: lbg group adopt orders")
@click.argument("name")
@DONE
@broker_options(login=True, management=True)
def adopt(name: str, address: BrokerAddress, as_json: bool) -> None:
    """Take group NAME over from its owner, as an object of Kubernetes: its record states that it is managed by hand.

    Queues, messages, members, user and password stay. From then on `lbg group rotate` and `delete` change the group,
    and the operator does not: its object reports NotOwned, and leaves the group on the broker when it is deleted.
    """
    from lbg_core.admin.groups import adopt_group
    from lbg_core.admin.record import is_of_kubernetes, owner_text

    adopted = with_admin(
        address, lambda admin: adopt_group(admin, name), with_management=bool(address.management_urls)
    )
    if as_json:
        answer: documents.Adopted = {
            "group": name,
            "action": "adopted" if adopted.is_changed else "unchanged",
            "former_owner": adopted.before or None,
        }
        echo_json(answer)
        return
    if not adopted.is_changed:
        click.echo(f"group {name} is managed by hand, nothing to do")
        return
    click.echo(f"group {name} is managed by hand now; its owner before: {owner_text(adopted.before)}")
    click.echo("its queues, messages, members, user and password stay as they are")
    if is_of_kubernetes(adopted.before):
        click.echo(
            "its object of Kubernetes reports NotOwned: it changes nothing of the group and does not delete it, unless "
            "it has adopt and its Broker allows that"
        )


@click.command(epilog="Example: lbg group close orders --session orders-2")
@click.argument("name")
@click.option("--session", metavar="NAME", help="End this session only: it gets no new messages.")
@DONE
@broker_options(login=True, management=True)
def close(name: str, address: BrokerAddress, session: str | None, as_json: bool) -> None:
    """Close group NAME, of mode Sessions: publishers are refused, waiting messages are delivered, and each session
    that is drained gets End-of-Session.

    Prints what is left. A session without a consumer keeps its messages until a consumer of that name connects.
    """
    from lbg_core.admin.groups import close_group
    from lbgroup.group.show import leftover_document, leftover_lines

    left = with_admin(address, lambda admin: close_group(admin, name, session=session))
    if as_json:
        echo_json(leftover_document(left, session=session))
        return
    click.echo("\n".join(leftover_lines(left, session=session)))


@click.command(epilog="Example: lbg group delete orders")
@click.argument("name")
@click.option(
    "--force",
    is_flag=True,
    help="Delete with the messages and consumers that remain, after a confirmation on the terminal.",
)
@click.option("--yes", is_flag=True, help="With --force: delete without confirmation.")
@click.option("--no-user", is_flag=True, help="Keep the group's user; then no management API is needed.")
@DONE
@broker_options(login=True, management=True)
def delete(name: str, address: BrokerAddress, force: bool, yes: bool, no_user: bool, as_json: bool) -> None:
    """Delete group NAME with all its objects, even if some are missing.

    Refused while messages or consumers remain, unless --force, and for a group of Kubernetes, which `lbg group adopt`
    takes over.
    """
    from lbg_core.admin.describe import describe
    from lbg_core.admin.groups import delete_group
    from lbg_core.admin.snapshot import UNKNOWN

    with_management = not no_user or bool(address.management_urls)

    def question() -> str:
        observed = with_admin(address, lambda admin: admin.observe(name), with_management=with_management)
        group = describe(name, observed, beats=UNKNOWN)
        waiting = counted_text(group.ready, "waiting message")
        dead = counted_text(group.dead_letters, "dead letter")
        return f"delete group {name} with {waiting} and {dead} for good?"

    if force and not yes:
        require_consent(question, refused="nothing was deleted")
    actions = with_admin(
        address,
        lambda admin: delete_group(admin, name, force=force, with_user=not no_user),
        with_management=with_management,
    )
    if as_json:
        answer: documents.Deleted = {
            "group": name,
            "action": "deleted",
            "changes": list(map(str, actions)),
        }
        echo_json(answer)
    else:
        click.echo(f"group {name} deleted ({len(actions)} objects)")


@click.command(epilog="Example: lbg group skip orders p-4711-12-0")
@click.argument("name")
@click.argument("id", metavar="ID")
@DONE
@broker_options(login=True, management=True)
def skip(name: str, id: str, address: BrokerAddress, as_json: bool) -> None:
    """Make the poisoned message ID of group NAME a dead letter, so that its key goes on.

    A message is poisoned when it has failed as often as its member's setting allows; `lbg group show` names it. The
    member that holds it does this: it waits until the broker has the dead letter before it acknowledges the message.
    A message that is being called now is skipped when this call has failed.
    """
    from lbg_core.admin.member_requests import skip_message

    skipped = with_admin(address, lambda admin: skip_message(admin, name, id))
    if as_json:
        answer: documents.Skipped = {
            "group": name,
            "action": "skipped",
            "id": id,
            "key": skipped.key,
            "attempts": skipped.attempts,
            "member": skipped.member,
        }
        echo_json(answer)
        return
    key = "it had no key" if skipped.key is None else f"key {printable(skipped.key)} goes on"
    click.echo(
        f"message {printable(id)} is a dead letter after {counted(skipped.attempts, 'attempt')} at {skipped.member}, "
        f"and {key}; lbg dead replay {name} --id {printable(id)} publishes it again"
    )


@click.command(epilog="Example: lbg group pause orders")
@click.argument("name")
@click.option("--ingress", "is_ingress", is_flag=True, help="Pause ingress, and not consumption.")
@click.option("--all", "is_all", is_flag=True, help="Pause both.")
@DONE
@broker_options(login=True, management=True)
def pause(name: str, is_ingress: bool, is_all: bool, address: BrokerAddress, as_json: bool) -> None:
    """Pause the consumption of group NAME, or its ingress, until `lbg group resume`.

    Consumption: members keep their queues and start no new call; calls that run end. Publishers go on, and messages
    wait in the queues. Ingress: publishers of LBG wait, every other one is refused, and members go on. The group's
    record has the pause, so that members and publishers that connect later follow it too. Refused for a group of
    Kubernetes, whose object has spec.paused and spec.ingress.
    """
    with _reported(name, is_paused=True, as_json=as_json) as done:
        if is_ingress or is_all:
            _pause_ingress(done, address)
        if is_all or not is_ingress:
            _pause(done, address, is_paused=True)


@click.command(epilog="Example: lbg group resume orders")
@click.argument("name")
@click.option("--ingress", "is_ingress", is_flag=True, help="Resume ingress, and not consumption.")
@click.option("--all", "is_all", is_flag=True, help="Resume both.")
@DONE
@broker_options(login=True, management=True)
def resume(name: str, is_ingress: bool, is_all: bool, address: BrokerAddress, as_json: bool) -> None:
    """End the pause of group NAME: its members start calls again, or its publishers publish."""
    from lbg_core.admin.ingress import pause_ingress

    with _reported(name, is_paused=False, as_json=as_json) as done:
        if is_all or not is_ingress:
            _pause(done, address, is_paused=False)
        if is_ingress or is_all:
            with_admin(address, lambda admin: pause_ingress(admin, name, is_paused=False))
            done["ingress"] = True


@contextmanager
def _reported(name: str, *, is_paused: bool, as_json: bool) -> Iterator[documents.Paused]:
    """Print what was done, also before an error."""
    done: documents.Paused = {
        "group": name,
        "action": "paused" if is_paused else "resumed",
        "consumption": False,
        "ingress": False,
        "members_behind": [],
        "publishers_connected": False,
    }
    try:
        yield done
    finally:
        if as_json and (done["consumption"] or done["ingress"]):
            echo_json(done)
        elif not as_json:
            _print_paused(done)


def _print_paused(done: documents.Paused) -> None:
    name, is_paused = done["group"], done["action"] == "paused"
    lines = []
    if done["ingress"]:
        lines.append(
            f"ingress of group {name} is {'paused: its publishers wait' if is_paused else 'resumed'}"
        )
    if done["consumption"]:
        lines.append(f"group {name} is {'paused: its members start no new call' if is_paused else 'resumed'}")
    for line in lines if is_paused else reversed(lines):  # in the order in which it was done
        click.echo(line)


def _pause_ingress(done: documents.Paused, address: BrokerAddress) -> None:
    from lbg_core.admin.ingress import PUBLISHERS_S, pause_ingress

    is_closed = with_admin(
        address,
        lambda admin: pause_ingress(admin, done["group"], report=show_progress),
    )
    done["ingress"], done["publishers_connected"] = True, not is_closed
    if not is_closed:
        raise CliError(
            f"connections of publishers were not closed in {PUBLISHERS_S:g} s, and may publish until they are idle for "
            "a second: repeat the command"
        )


def _pause(done: documents.Paused, address: BrokerAddress, *, is_paused: bool) -> None:
    from lbg_core.admin.member_requests import pause_group

    behind = with_admin(address, lambda admin: pause_group(admin, done["group"], is_paused=is_paused))
    done["consumption"], done["members_behind"] = True, list(behind)
    if behind:
        has = "still consume" if is_paused else "are still paused"
        raise CliError(
            f"{', '.join(map(printable, behind))} {has}: versions of LBG before this command do not know it; those "
            "that know it read it from the group's record when they connect"
        )
