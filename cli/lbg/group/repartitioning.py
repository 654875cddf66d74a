"""`lbg group repartition`: another number of queues, or partitions, for a group in use."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from lbg.group.admin import with_admin
from lbg.options import broker_options

if TYPE_CHECKING:
    from lbg_broker.client import BrokerAddress


WAITING_TOLD_EVERY_S = 3.0


@click.command(epilog="Example: lbg group repartition orders --queues 8")
@click.argument("name")
@click.option(
    "--queues", required=True, type=click.IntRange(min=1), metavar="N", help="How many there are to be."
)
@click.option(
    "--max-clients",
    type=click.IntRange(min=1),
    metavar="N",
    show_default="as the group has it",
    help="Most members, where the limit that the group was given is to change as well.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Seconds to wait until the group is drained, and again until its members are Ready.",
)
@click.option(
    "--discard", is_flag=True, help="Delete what is left in the queues that go, instead of waiting for it."
)
@broker_options(login=True, management=True)
def repartition(
    name: str, address: BrokerAddress, queues: int, max_clients: int | None, timeout: float, discard: bool
) -> None:
    """Give group NAME another number of queues, while members stay and publishers wait.

    Ingress off, wait until everything is drained, change the number (the highest queue goes first), wait until members
    are Ready, ingress on. Publishers of LBG wait and go on in order; others are refused while it lasts. If it is not
    drained in time nothing is changed. Interrupted anywhere, the same command again finishes, and one with the number
    of before takes it back.
    """
    from lbg_broker.provisioning.repartition.procedure import repartition_group

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
                tell=steps.tell,
            ),
        )
    finally:
        if steps.is_closed:
            click.echo(
                f"! group {name} takes no messages: the same command again goes on from here", err=True
            )
    if done.is_changed:
        click.echo(f"group {name} has {done.now} queues now")
    else:
        click.echo(f"group {name} has {done.now} queues, nothing to do")


class Steps:
    """Every step is a line, and now and then what is waited for: counts change all the while."""

    def __init__(self) -> None:
        self.is_closed = False
        """Whether publishers were shut out, and not let in again."""
        self._quiet_until = 0.0

    def tell(self, line: str) -> None:
        now = time.monotonic()
        if line.startswith("ingress "):
            self.is_closed = not line.startswith("ingress on")
        if not line.startswith("waiting for"):
            click.echo(line, err=True)
            self._quiet_until = 0.0
        elif now >= self._quiet_until:
            click.echo(line, err=True)
            self._quiet_until = now + WAITING_TOLD_EVERY_S
