"""`lbg demo`: its options and its settings."""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lbg_core.client import BrokerAddress
from lbg_core.command_output import echo_json, output_option
from lbg_core.group import PARTITIONED, UNCOUNTED_MODES, GroupSpec, Mode
from lbgroup.commands import CliError
from lbgroup.options import other_broker_options

if TYPE_CHECKING:
    from lbgroup.demo.run import DemoSettings


PLAY_S = 54.0
RATE_MAX = 2500.0
"""One broker, four members and a validator carry so many on two cores without falling behind."""
SAMPLE = Path(__file__).parent / "flights-sample.csv.gz"
SAMPLE_KEY = "tailnum"
PLAIN_WIDTH = 100
VIEW_S = 2.5
"""Least time to view the result of an act."""


@click.command(
    context_settings={"show_default": True},
    epilog="Example: lbg demo --input flights.csv.zip --key tailnum --report report.json",
)
@click.option(
    "--input",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="CSV or JSON lines, also .gz and .zip; by default a month of flights.",
)
@click.option(
    "--key", metavar="FIELD", help="Messages with the same FIELD keep their order. [default: tailnum]"
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.json",
    help="File for the report, as JSON.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    metavar="N",
    help=f"Messages per second; 0 is as fast as possible. By default the input lasts {PLAY_S:g} s, or longer where "
    f"that would be more than {RATE_MAX:g} per second.",
)
@click.option(
    "--speed", type=click.FloatRange(min=0.1, max=20), default=1.0, metavar="X", help="Play X times as fast."
)
@click.option(
    "--mode",
    type=click.Choice(["Exclusive", "Partitioned", "MessageGroups", "Sessions"]),
    default="Exclusive",
    help="Mode of the group; the last two on the embedded broker only (docs/modes.md).",
)
@click.option("--queues", type=click.IntRange(1, 64), default=4, help="Number of queues or partitions.")
@click.option(
    "--rebalance-delay",
    type=click.FloatRange(min=0),
    default=2.0,
    metavar="SECONDS",
    help="How long membership must be stable before queues move. (Of `lbg consume`: 5.)",
)
@click.option(
    "--work",
    type=click.FloatRange(min=0),
    default=0.002,
    metavar="SECONDS",
    help="Processing time of each message.",
)
@click.option(
    "--journal",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Directory for the journals of the publisher and all members, for `lbg pipeline`.",
)
@click.option("--plain", is_flag=True, help="Plain lines instead of the live screen.")
@click.option(
    "--group",
    default="demo",
    metavar="NAME",
    help="With --broker: name of the group, which is deleted at the end.",
)
@output_option("the report; plain lines go to standard error.")
@other_broker_options
def demo(
    source: Path | None,
    key: str | None,
    report: Path | None,
    rate: float | None,
    speed: float,
    mode: Mode,
    queues: int,
    rebalance_delay: float,
    work: float,
    journal: Path | None,
    plain: bool,
    group: str,
    address: BrokerAddress | None,
    as_json: bool,
) -> int:
    """Play a group's life on this machine, and prove that nothing is lost and nothing is out of order.

    Starts an embedded broker, or goes to the one that --broker names, and a publisher, up to four members and a
    validator as processes of their own, and plays the figures of "Sticky Load Balancing": two members share four
    queues, one is killed and comes back, a third and a fourth join, and all but one leave again. In other
    modes partitions, keys or sessions take the place of the queues.

    The exit status is 1 if anything was lost or out of order.
    """
    from lbg_core.journal import JournalWriter
    from lbgroup.demo.run import DemoSettings

    source, key = _input(source, key)
    if report is not None and not report.resolve().parent.is_dir():
        raise CliError(f"--report {report}: there is no directory {report.resolve().parent}")
    if journal is not None:
        JournalWriter(journal, "demo").close()  # a directory that cannot be written to is reported now
    rows = _counted(source, key)
    delay_s = rebalance_delay / max(1.0, speed)
    with tempfile.TemporaryDirectory(prefix="lbg-demo-") as directory:
        settings = DemoSettings(
            source=source.resolve(),
            key=key,
            rows=rows,
            rate=rate_for(rows, play_s=PLAY_S / speed, max_rate=RATE_MAX) if rate is None else rate,
            directory=Path(directory),
            spec=_spec(group, mode, queues, delay_s),
            rebalance_delay_s=delay_s,
            act_gap_s=delay_s + VIEW_S / speed,
            work_s=work,
            address=address,
            journal=None if journal is None else journal.resolve(),
        )
        results = asyncio.run(_perform(settings, is_plain=plain, as_json=as_json))
    if report is not None:
        report.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if results["ok"] else 1


def rate_for(rows: int, *, play_s: float, max_rate: float) -> float:
    """Messages per second that make `rows` last `play_s`, or longer where that would be more than `max_rate`."""
    return max(1.0, min(rows / play_s, max_rate))


async def _perform(settings: DemoSettings, *, is_plain: bool, as_json: bool) -> dict[str, Any]:
    """Play on the terminal, or as lines; a signal ends it as Ctrl-C does, with every process it started."""
    from rich.console import Console

    from lbgroup.demo.run import play
    from lbgroup.demo.screen import PlainView, frame, summary
    from lbgroup.live_map import FullScreen, can_draw

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    console = Console()
    try:
        if is_plain or as_json or not can_draw(console):
            scene, report = await play(settings, PlainView(partial(click.echo, err=as_json)))
        else:
            with FullScreen(console) as screen:
                scene, report = await play(settings, lambda scene: screen.draw(partial(frame, scene)))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if as_json:
        echo_json(report)
        return report
    console = Console(width=None if console.is_terminal else PLAIN_WIDTH)
    console.print(summary(scene, report, width=console.width))
    return report


def _spec(group: str, mode: Mode, queues: int, rebalance_delay_s: float) -> GroupSpec:
    spec = GroupSpec(
        group,
        hash_count=max(100, queues),
        queue_count=1 if mode in UNCOUNTED_MODES else queues,
        queue_size_mb=256,
        mode=mode,
    )
    return spec.altered(rebalance_delay_s=rebalance_delay_s) if mode == PARTITIONED else spec


def _input(source: Path | None, key: str | None) -> tuple[Path, str]:
    if source is not None:
        if key is None:
            raise click.UsageError("--input needs --key FIELD: the field whose messages keep their order")
        return source, key
    return SAMPLE, key or SAMPLE_KEY


def _counted(source: Path, key: str) -> int:
    """Number of messages in the input; a bad input is reported before anything is started."""
    from lbg_core.publisher import InputError, RowOptions, open_source
    from lbg_core.publisher.input.rows import count_rows

    with open_source(str(source)) as opened:
        rows = count_rows(opened, RowOptions(key_field=key))
    if rows == 0:
        raise InputError(f"{source} holds no messages")
    return rows
