"""`python -m testing.exactly_once`. Exit status 1 if a message is missing, too often there, or out of order."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from . import DATABASES, Failed, Run, SessionSizes, SessionsRun, Sizes, __doc__


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="testing.exactly_once",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sizes = Sizes()
    parser.add_argument("--messages", type=int, default=sizes.messages)
    parser.add_argument("--members", type=int, default=sizes.members)
    parser.add_argument("--kills", type=int, default=sizes.kills)
    parser.add_argument("--engine", choices=("embedded", "rabbitmq"), default="embedded")
    parser.add_argument("--database", choices=sorted(DATABASES), default="sqlite")
    parser.add_argument("--seed", type=int, help="of the messages' keys and of what is killed when")
    parser.add_argument("--without-inbox", action="store_true", help="insert whatever comes")
    parser.add_argument(
        "--sessions",
        choices=("application", "file"),
        help="mode Sessions: the position is committed with the row (application), or kept by the member (file)",
    )
    arguments = parser.parse_args()
    if arguments.sessions and (arguments.engine != "embedded" or arguments.database != "sqlite"):
        parser.error("--sessions goes with the embedded broker and SQLite only")
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1_000_000)
    if arguments.sessions:
        return _in_sessions(arguments, seed)
    queue_size_mb = sizes.queue_size_mb if arguments.messages >= sizes.messages else 1
    sizes = Sizes(
        messages=arguments.messages,
        members=arguments.members,
        kills=arguments.kills,
        queue_size_mb=queue_size_mb,
        body_bytes=max(sizes.body_bytes, 4 * sizes.queues * queue_size_mb * 2**20 // arguments.messages),
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lbg-once-") as directory:
        print(
            f"seed {seed}: {sizes.messages:,} messages, {sizes.members} members, {sizes.kills} kills, "
            f"{arguments.engine}, {arguments.database}{', no inbox' * arguments.without_inbox}",
            flush=True,
        )
        run = Run(
            seed,
            sizes,
            Path(directory),
            engine=arguments.engine,
            database=arguments.database,
            inbox=not arguments.without_inbox,
        )
        try:
            outcome = asyncio.run(run.play())
        except Failed as failure:
            print(f"FAILED: {failure}")
            return 1
    print(f"{'exactly once' if outcome.holds else 'NOT exactly once'}: {outcome}")
    print(f"{time.monotonic() - began:.0f} s")
    return 0 if outcome.holds else 1


def _in_sessions(arguments: argparse.Namespace, seed: int) -> int:
    sizes = SessionSizes(
        messages=arguments.messages,
        consumers=arguments.members,
        kills=arguments.kills,
        broker_kills=arguments.kills // 10,
    )
    began = time.monotonic()
    print(
        f"seed {seed}: {sizes.messages:,} messages, {sizes.consumers} sessions, {sizes.kills} kills of consumers, "
        f"{sizes.broker_kills} of the broker, position kept by the {arguments.sessions}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="lbg-once-") as directory:
        run = SessionsRun(seed, sizes, Path(directory), with_file=arguments.sessions == "file")
        try:
            outcome = asyncio.run(run.play())
        except Failed as failure:
            print(f"FAILED: {failure}")
            return 1
    print(f"{'as promised' if outcome.holds else 'NOT as promised'}: {outcome}")
    print(f"{time.monotonic() - began:.0f} s")
    return 0 if outcome.holds else 1


if __name__ == "__main__":
    sys.exit(main())
