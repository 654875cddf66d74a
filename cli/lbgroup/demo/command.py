"""`lbg demo`: its options and its settings."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lbg_broker.client import BrokerAddress
from lbg_broker.group import Mode
from lbgroup.commands import CliError
from lbgroup.demo.settings import DemoSettings
from lbgroup.options import other_broker_options

if TYPE_CHECKING:
    from lbgroup.demo.model import DemoModel


PLAY_S = 54.0
# What one broker, four members and a judge carry on two cores without falling behind.
RATE_MAX = 2500.0
SAMPLE = Path(__file__).resolve().parents[3] / "examples" / "flights-sample.csv.gz"
SAMPLE_KEY = "tailnum"
PLAIN_WIDTH = 100


@click.command(epilog="Example: lbg demo --input flights.csv.zip --key tailnum --report report.json")
@click.option(
    "--input",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="CSV or JSON lines, also .gz and .zip; by default the sample of flights in examples/.",
)
@click.option(
    "--key", metavar="FIELD", help="Messages with the same FIELD keep their order. [default: tailnum]"
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.json",
    help="Write what was proved to this file.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    metavar="N",
    help=f"Messages a second, 0 for as fast as it goes; by default the input lasts {PLAY_S:g} s, or longer where "
    f"that would be more than {RATE_MAX:g} a second.",
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0.1, max=20),
    default=1.0,
    show_default=True,
    metavar="X",
    help="Play X times as fast.",
)
@click.option(
    "--mode",
    type=click.Choice(["Exclusive", "Partitioned", "MessageGroups", "Sessions"]),
    default="Exclusive",
    show_default=True,
    help="How the members share; the last two on the embedded broker only (docs/modes.md).",
)
@click.option(
    "--queues",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Queues, or partitions, of the group.",
)
@click.option(
    "--rebalance-delay",
    type=click.FloatRange(min=0),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the members must be the same before queues move. (`lbg consume` waits 5.)",
)
@click.option(
    "--work",
    type=click.FloatRange(min=0),
    default=0.002,
    show_default=True,
    metavar="SECONDS",
    help="What each message costs a member.",
)
@click.option(
    "--journal",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the journals of the publisher and of all members there, for `lbg pipeline`.",
)
@click.option("--plain", is_flag=True, help="Plain lines instead of the live screen.")
@click.option(
    "--group",
    default="demo",
    show_default=True,
    metavar="NAME",
    help="With --broker: the group to make, and to remove at the end.",
)
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
) -> int:
    """Play a group's life on this machine, and prove that nothing is lost and nothing is out of order.

    Starts an embedded broker, or goes to the one that --broker names, and a publisher, up to four members and a
    validator as processes of their own, and plays the figures of "Sticky Load Balancing": two members share four
    queues, one is killed and comes back, a third and a fourth join, and all but one leave again. In other
    modes partitions, keys or sessions take the place of the queues.

    The exit status is 1 if anything was lost or out of order.
    """
    from lbg_broker.journal import JournalWriter
    from lbgroup.demo.script import rate_for

    source, key = _input(source, key)
    if report is not None and not report.resolve().parent.is_dir():
        raise CliError(f"--report {report}: there is no directory {report.resolve().parent}")
    if journal is not None:
        JournalWriter(journal, "demo").close()  # it can be written to, or that is told now
    rows = _counted(source, key)
    with tempfile.TemporaryDirectory(prefix="lbg-demo-") as directory:
        settings = DemoSettings(
            source=source.resolve(),
            key=key,
            rows=rows,
            rate=rate if rate is not None else rate_for(rows, play_s=PLAY_S / speed, max_rate=RATE_MAX),
            directory=Path(directory),
            queue_count=queues,
            hash_count=max(100, queues),
            rebalance_delay_s=rebalance_delay / max(1.0, speed),
            work_s=work,
            look_s=2.5 / speed,
            mode=mode,
            group=group,
            address=address,
            journal=journal.resolve() if journal is not None else None,
        )
        found = asyncio.run(_perform(settings, plain=plain or not _can_draw()))
    if report is not None:
        report.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if found["ok"] else 1


async def _perform(settings: DemoSettings, *, plain: bool) -> dict[str, Any]:
    """Play on the terminal, or as lines; a signal ends it as Ctrl-C does, with every process it started."""
    from lbgroup.demo.run import DemoRun

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with _plain_view() if plain else _live_view() as view:
        playing = DemoRun(settings, view)
        try:
            report = await playing.run()
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
    _tell(playing.scene, report)
    return report


@contextlib.contextmanager
def _plain_view() -> Any:
    from lbgroup.demo.screen import PlainView

    yield PlainView(click.echo)


@contextlib.contextmanager
def _live_view() -> Any:
    from rich.console import Console
    from rich.live import Live

    from lbgroup.demo.screen import frame

    console = Console()

    class LiveView:
        def show(self, scene: DemoModel) -> None:
            live.update(frame(scene, width=console.width, height=console.height), refresh=True)

    # No thread of its own: a frame is drawn when the scene says so.
    with Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
        yield LiveView()


def _can_draw() -> bool:
    from rich.console import Console

    console = Console()
    return console.is_terminal and not console.is_dumb_terminal


def _tell(scene: DemoModel, report: dict[str, Any]) -> None:
    from rich.console import Console

    from lbgroup.demo.screen import finale

    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
    console.print(finale(scene, report, width=console.width))


def _input(source: Path | None, key: str | None) -> tuple[Path, str]:
    if source is not None:
        if key is None:
            raise click.UsageError("--input needs --key FIELD: the field whose messages keep their order")
        return source, key
    if not SAMPLE.exists():
        raise CliError(
            f"the sample of flights is not here ({SAMPLE}): it comes with the source and not with an installed "
            "package; give a file of your own with --input FILE --key FIELD"
        )
    return SAMPLE, key or SAMPLE_KEY


def _counted(source: Path, key: str) -> int:
    """Number of messages in the input; a bad input is reported before anything is started."""
    from lbg_broker.publisher import BadRow, InputError, RowOptions, open_source
    from lbg_broker.publisher.input.rows import read_rows

    rows = 0
    with open_source(str(source)) as opened:
        for batch in read_rows(opened, RowOptions(key_field=key)):
            for row in batch:
                if isinstance(row, BadRow):
                    raise row
            rows += len(batch)
    if rows == 0:
        raise InputError(f"{source} holds no messages")
    return rows
