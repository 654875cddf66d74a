"""`lbg consume`: a member of a group."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lbgroup.commands import CliError, exporting_traces
from lbgroup.options import broker_options

if TYPE_CHECKING:
    from lbg_core.client import BrokerAddress
    from lbg_sidecar import Member, MemberSettings, Message, Verdict
    from lbg_sidecar.process.metrics import Measures
    from lbg_sidecar.process.settings import Listener

log = logging.getLogger("lbg.consume")

SECONDS = click.FloatRange(min=0)

OPTIONS = {
    "release_interval_s": "release_period",
    "rebalance_delay_s": "rebalance_delay",
    "max_handoff_s": "max_handoff_time",
    "call_timeout_s": "call_timeout",
    "connect_timeout_s": "connect_timeout",
    "work_s": "work",
}
"""Settings of the file whose options have other names."""

_IN_FILE = "lbgroup.consume.settings"
"""In the context: settings of a member that have no option."""


def read_config(context: click.Context, _: click.Parameter, file: Path | None) -> None:
    """The file's settings become the defaults of the options: the command line and the environment take precedence."""
    from lbg_sidecar.process.settings import ConfigurationError, settings_in

    if file is None:
        return
    try:
        context.default_map, context.meta[_IN_FILE] = _defaults(context, settings_in(file), file)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None


def _defaults(
    context: click.Context, found: Mapping[str, Any], file: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values for options, and settings that have none. Raises ConfigurationError."""
    from dataclasses import fields

    from lbg_sidecar import MemberSettings
    from lbg_sidecar.process.settings import ConfigurationError, Setting, table, value_of

    own = {"quiet": bool, "work_s": float, "metrics": str, "connect_timeout_s": float}
    rows = table() | {name: Setting(name, kind, None, False) for name, kind in own.items()}
    options = {one.name for one in context.command.params}
    members = {one.name for one in fields(MemberSettings)}
    defaults: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in found.items():
        option, where = OPTIONS.get(name, name), f"{name} in {file}"
        if name not in rows or (option not in options and name not in members) or option == "config":
            raise ConfigurationError(
                f"{where} is not a setting of lbg consume: remove it or correct its name"
            )
        read = value_of(rows[name], value, where)
        if name == "command":
            defaults[option] = _split(str(read), where)
        elif option in options:
            text = str(read) if isinstance(read, str) else read  # an option takes no member of an enum
            defaults[option] = (text,) if name == "broker" else text
        else:
            others[name] = read
    return defaults, others


def _split(command: str, where: str) -> list[str]:
    from lbg_sidecar.process.settings import ConfigurationError

    try:
        return shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(f"{where} is {command!r}, but it cannot be split: {error}") from None


@click.command(
    epilog="Example: lbg consume --group orders --concurrency 8 -- ./handle-orders",
    context_settings={"ignore_unknown_options": False},
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD [ARGS]...]")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=read_config,
    help="TOML file with settings, named as in docs/member.md; options and environment variables override it.",
)
@click.option("--group", required=True, metavar="NAME", help="The group to join.")
@click.option(
    "--name",
    default="",
    metavar="TEXT",
    help="Name of this member; by default host and process. In mode Sessions it is required and names the session.",
)
@click.option(
    "--assignment",
    type=click.Choice(["balanced", "static"]),
    default="balanced",
    show_default=True,
    help="balanced: loads differ by at most one queue. static: queue mod clients == index.",
)
@click.option("--clients", type=int, metavar="N", help="With static: the highest number of members.")
@click.option(
    "--index", type=int, metavar="I", help="Fixed index of this member; by default the lowest free one."
)
@click.option(
    "--concurrency",
    type=int,
    default=16,
    show_default=True,
    metavar="N",
    help="Messages that the application works on at a time.",
)
@click.option(
    "--prefetch",
    type=int,
    metavar="N",
    help="Prefetch window of each queue, in messages; by default derived.",
)
@click.option(
    "--order",
    type=click.Choice(["key", "queue"]),
    help="Unit that is processed one message at a time. By default key; in mode Sessions queue, and nothing else.",
)
@click.option(
    "--release-period",
    type=SECONDS,
    default=30.0,
    show_default=True,
    metavar="S",
    help="With static: how often secondaries release their queues.",
)
@click.option(
    "--rebalance-delay",
    type=SECONDS,
    metavar="S",
    help="How long membership must be stable before queues move. By default 5, in mode Partitioned the group's.",
)
@click.option(
    "--max-handoff-time",
    type=SECONDS,
    metavar="S",
    help="Longest pause of a queue for a handoff. By default 3, in mode Partitioned the group's.",
)
@click.option(
    "--call-timeout",
    type=SECONDS,
    default=30.0,
    show_default=True,
    metavar="S",
    help="Longest wait for a verdict.",
)
@click.option(
    "--max-attempts",
    type=int,
    default=10,
    show_default=True,
    metavar="N",
    help="Failed attempts after which --when-exhausted applies.",
)
@click.option(
    "--when-exhausted",
    type=click.Choice(["block", "dead-letter", "park"]),
    default="block",
    show_default=True,
    help="block: the key waits while the message is retried at the longest interval. dead-letter: the message "
    "becomes a dead letter, and the key goes on. park: the message and all later ones of its key go to the parking "
    "queue, until `lbg park release`.",
)
@click.option(
    "--park-max-keys",
    type=int,
    default=1000,
    show_default=True,
    metavar="N",
    help="Most parked keys of the group. Beyond this and the next two, a member parks nothing more, and keys block.",
)
@click.option(
    "--park-max-messages",
    type=int,
    default=100_000,
    show_default=True,
    metavar="N",
    help="Most parked messages of the group.",
)
@click.option(
    "--park-max-mb",
    type=int,
    default=256,
    show_default=True,
    metavar="MB",
    help="Most megabytes of parked bodies of the group.",
)
@click.option("--republish", is_flag=True, help="Republish each processed message for `lbg validate`.")
@click.option(
    "--journal", type=click.Path(file_okay=False, path_type=Path), help="Directory for the journal."
)
@click.option(
    "--commits",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the commit log, by which a member of the same --name repeats nothing after a crash.",
)
@click.option("--quiet", is_flag=True, help="Without CMD: acknowledge messages and print nothing.")
@click.option(
    "--work",
    type=SECONDS,
    default=0.0,
    metavar="S",
    help="Without CMD: processing time of each message.",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    envvar="LBG_METRICS",
    show_envvar=True,
    help="Serve /metrics for Prometheus on this address, the series of docs/sidecar.md; port 0 is a free one.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    envvar="LBG_LOG_FORMAT",
    show_envvar=True,
    help="Format of the log on standard error: json is one object a line, with the fields of the sidecar's log.",
)
@click.option(
    "--connect-timeout",
    type=SECONDS,
    default=10.0,
    show_default=True,
    metavar="S",
    help="Longest wait for the first connection; later ones have no limit.",
)
@broker_options(login=True)
@click.pass_context
def consume(
    context: click.Context,
    command: tuple[str, ...],
    group: str,
    name: str,
    assignment: str,
    clients: int | None,
    index: int | None,
    concurrency: int,
    prefetch: int | None,
    order: str | None,
    release_period: float,
    rebalance_delay: float | None,
    max_handoff_time: float | None,
    call_timeout: float,
    max_attempts: int,
    when_exhausted: str,
    park_max_keys: int,
    park_max_messages: int,
    park_max_mb: int,
    republish: bool,
    journal: Path | None,
    commits: Path | None,
    quiet: bool,
    work: float,
    metrics: str | None,
    log_format: str,
    connect_timeout: float,
    address: BrokerAddress,
) -> None:
    """Join a group as a member until SIGTERM or Ctrl-C.

    CMD runs once, as long as the member: it gets each message as one line of JSON on its standard input and answers
    each, in any order, with one line on its standard output: {"id": ..., "verdict": "ack" | "retry" | "drop",
    "reason": ...}. Without CMD, messages are printed as one line of JSON each and acknowledged.

    SIGTERM hands the queues over before it ends: nothing is delivered twice. A second SIGTERM ends it at once.
    """
    from lbg_sidecar import Assignment, MemberSettings, Order, WhenExhausted

    if command and (quiet or work):
        raise click.UsageError("--quiet and --work go without a command")
    listener = None if metrics is None else _listener(metrics)
    settings = MemberSettings(
        broker=address.spread_places(),
        group=group,
        name=name,
        assignment=Assignment(assignment),
        clients=clients,
        index=index,
        concurrency=concurrency,
        prefetch=prefetch,
        order=None if order is None else Order(order),
        release_interval_s=release_period,
        rebalance_delay_s=rebalance_delay,
        max_handoff_s=max_handoff_time,
        call_timeout_s=call_timeout,
        max_attempts=max_attempts,
        when_exhausted=WhenExhausted(when_exhausted),
        park_max_keys=park_max_keys,
        park_max_messages=park_max_messages,
        park_max_mb=park_max_mb,
        republish=republish,
        journal=journal,
        commits=commits,
        **context.meta.get(_IN_FILE, {}),
    )
    if log_format == "json":
        from lbg_sidecar.process.logs import configure_logging
        from lbg_sidecar.process.settings import LogFormat

        configure_logging(LogFormat.JSON)
    else:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    printing = _Printing(quiet=quiet, work_s=work)
    with exporting_traces("lbg-consume"):
        asyncio.run(
            _run(settings, command, printing=printing, connect_timeout_s=connect_timeout, metrics=listener)
        )


class _Printing:
    """The application when there is no command: one line of JSON for each message."""

    def __init__(self, *, quiet: bool, work_s: float) -> None:
        self._quiet = quiet
        self._work_s = work_s
        self.closed: Callable[[], None] = lambda: None
        self.is_closed = False

    async def __call__(self, message: Message) -> Verdict | None:
        from lbg_sidecar import retry

        if self._work_s:
            await asyncio.sleep(self._work_s)
        if self._quiet:
            return None
        try:
            # Flushed before it is acknowledged: what a reader has not got is delivered again.
            sys.stdout.write(json.dumps(message.as_json(), separators=(",", ":")) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self.is_closed = True
            self.closed()
            return retry("nobody reads the output any more")
        return None


async def _run(
    settings: MemberSettings,
    command: tuple[str, ...],
    *,
    printing: _Printing,
    connect_timeout_s: float,
    metrics: Listener | None,
) -> None:
    from lbg_sidecar import CommandChannel, Member
    from lbg_sidecar.app import CONCURRENCY

    await _first_connection(settings, connect_timeout_s)
    app = CommandChannel(command, concurrency=settings.concurrency or CONCURRENCY) if command else printing
    measures = None if metrics is None else _measures()
    member = Member(settings, app, observer=None if measures is None else measures.observe)
    printing.closed = lambda: member.stop("nobody reads the output any more")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, member.stop, number.name)
    async with AsyncExitStack() as stack:
        if metrics is not None and measures is not None:
            await stack.enter_async_context(_serving_metrics(metrics, member, measures))
        await stack.enter_async_context(member)
        await member.run()
    if printing.is_closed:
        raise BrokenPipeError


def _measures() -> Measures:
    from lbg_sidecar.process.metrics import Measures

    return Measures(asyncio.get_running_loop().time)


def _listener(address: str) -> Listener:
    from lbg_sidecar.process.settings import Listener

    try:
        return Listener.parse(address)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--metrics") from error


@asynccontextmanager
async def _serving_metrics(listener: Listener, member: Member, measures: Measures) -> AsyncIterator[None]:
    """Raises CliError if the address cannot be used."""
    from lbg_core.peers import PeerLog
    from lbg_sidecar.process.http import address_of, listen, metrics_route, observed_bounds
    from lbg_sidecar.process.lag import LagWatch
    from lbg_sidecar.process.settings import ConfigurationError

    lag = LagWatch(member.state, member.count, asyncio.get_running_loop().time)
    try:
        runner = await listen(
            listener,
            [metrics_route(member, measures, lag)],
            body_max_bytes=0,
            setting="--metrics",
            bounds=observed_bounds(),
            peer_log=PeerLog(log),
        )
    except ConfigurationError as error:
        raise CliError(str(error)) from error
    log.info("metrics: %s", address_of(listener, runner))
    counting = asyncio.create_task(lag.run())
    try:
        yield
    finally:
        counting.cancel()
        await runner.cleanup()


async def _first_connection(settings: MemberSettings, timeout_s: float) -> None:
    """Report the error of the first connection; a member retries later ones for ever. Raises ConnectError."""
    from lbg_core.client import ConnectionSettings, connect_any

    places = [ConnectionSettings.parse(one) if isinstance(one, str) else one for one in settings.addresses]
    connection = await connect_any(places, name=f"lbg consume {settings.name}", within_s=timeout_s)
    await connection.close()
