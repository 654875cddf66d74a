"""`lbg consume`: a member of a group."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from lbg_core.client import BrokerAddress, ConnectionSettings, connect_any
from lbg_core.declaration import check, declarations, declared, option_of
from lbg_core.peers import PeerLog
from lbg_sidecar import CommandChannel, Member, MemberSettings, Message, SettingsError, Verdict, retry
from lbg_sidecar.app.channel import CONCURRENCY
from lbg_sidecar.process.http import address_of, listen, metrics_route, observed_bounds
from lbg_sidecar.process.lag import LagWatch
from lbg_sidecar.process.logs import configure_logging
from lbg_sidecar.process.metrics import Measures
from lbg_sidecar.process.settings import (
    ConfigurationError,
    Listener,
    LogFormat,
    settings_in,
    split_command,
    table,
    value_of,
)
from lbgroup.commands import CliError, exporting_traces
from lbgroup.options import broker_options, declared_options

log = logging.getLogger("lbg.consume")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeSettings:
    """Settings of the command beside those of the member."""

    quiet: bool = declared(False, "Without CMD: acknowledge messages and print nothing")
    work_s: float = declared(0.0, "Without CMD: processing time of each message", least=0)
    metrics: str | None = declared(
        None,
        "Serve /metrics for Prometheus on this address, the series of docs/sidecar.md; port 0 is a free one",
        metavar="HOST:PORT",
        variable="LBG_METRICS",
    )
    log_format: LogFormat = declared(
        LogFormat.TEXT,
        "Format of the log on standard error: json is one object a line, with the fields of the sidecar's log",
        variable="LBG_LOG_FORMAT",
    )
    connect_timeout_s: float = declared(
        10.0, "Longest wait for the first connection; later ones have no limit", least=0
    )

    def __post_init__(self) -> None:
        check(self, SettingsError)


def read_config(context: click.Context, _: click.Parameter, file: Path | None) -> None:
    """The file's settings become the defaults of the options: the command line and the environment take precedence."""
    if file is None:
        return
    try:
        context.default_map = dict(_defaults(context, file))
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None


def _defaults(context: click.Context, file: Path) -> Iterator[tuple[str, Any]]:
    """Raises ConfigurationError."""
    rows = {**table(), **declarations(ConsumeSettings)}
    options = {one.name for one in context.command.params} - {"config"}
    for name, value in settings_in(file).items():
        where = f"{name} in {file}"
        if name not in rows or name not in options:
            raise ConfigurationError(
                f"{where} is not a setting of lbg consume: remove it or correct its name"
            )
        read = value_of(rows[name], value, where)
        if name == "command":
            read = split_command(str(read), where)
        if isinstance(read, StrEnum):
            read = read.value  # click reads a member of an enum by its name
        yield name, (read,) if name == "broker" else read


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
@declared_options(MemberSettings, ConsumeSettings)
@broker_options(login=True)
def consume(command: tuple[str, ...], address: BrokerAddress, **values: Any) -> None:
    """Join a group as a member until SIGTERM or Ctrl-C.

    CMD runs once, as long as the member: it gets each message as one line of JSON on its standard input and answers
    each, in any order, with one line on its standard output: {"id": ..., "verdict": "ack" | "retry" | "drop",
    "reason": ...}. Without CMD, messages are printed as one line of JSON each and acknowledged.

    SIGTERM hands the queues over before it ends: nothing is delivered twice. A second SIGTERM ends it at once.
    """
    try:
        own = ConsumeSettings(**{name: values.pop(name) for name in declarations(ConsumeSettings)})
        settings = MemberSettings(broker=address.spread_places(), **values)
    except SettingsError as error:
        raise click.UsageError(f"{option_of(error.field)} {error.what}") from None
    if command and (own.quiet or own.work_s):
        raise click.UsageError("--quiet and --work go without a command")
    listener = None if own.metrics is None else _listener(own.metrics)
    if own.log_format is LogFormat.JSON:
        configure_logging(LogFormat.JSON)
    else:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with exporting_traces("lbg-consume"):
        asyncio.run(_run(settings, command, own, listener))


class _Printing:
    """The application when there is no command: one line of JSON for each message."""

    def __init__(self, settings: ConsumeSettings) -> None:
        self._settings = settings
        self.closed: Callable[[], None] = lambda: None
        self.is_closed = False

    async def __call__(self, message: Message) -> Verdict | None:
        await asyncio.sleep(self._settings.work_s)
        if self._settings.quiet:
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
    settings: MemberSettings, command: tuple[str, ...], own: ConsumeSettings, metrics: Listener | None
) -> None:
    await _first_connection(settings, own.connect_timeout_s)
    printing = _Printing(own)
    app = CommandChannel(command, concurrency=settings.concurrency or CONCURRENCY) if command else printing
    measures = None if metrics is None else Measures(asyncio.get_running_loop().time)
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


def _listener(address: str) -> Listener:
    try:
        return Listener.parse(address)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--metrics") from error


@asynccontextmanager
async def _serving_metrics(listener: Listener, member: Member, measures: Measures) -> AsyncIterator[None]:
    """Raises CliError if the address cannot be used."""
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
    places = [ConnectionSettings.parse(one) if isinstance(one, str) else one for one in settings.addresses]
    connection = await connect_any(places, name=f"lbg consume {settings.name}", within_s=timeout_s)
    await connection.close()
