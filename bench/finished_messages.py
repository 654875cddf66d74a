"""Cost of the ring of finished messages: CPU time of `FinishedMessages.add` on a full ring, for a message.

python -m bench.finished_messages [--messages 20000] [--rounds 9]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome
from lbg_sidecar.core.finished import MESSAGES_MAX, FinishedMessages

BATCHES = (64, 16, 1)


def batches(attachment: Attachment, messages: int, size: int) -> list[tuple[InFlight, ...]]:
    return [
        tuple(
            InFlight(
                attachment,
                number,
                key=f"key-{number % 200}",
                identity=(f"publisher-{number % 7}-0123456789abcdef0123456789abcdef", 7, number),
                outcome=Outcome.ACK,
                calls=1,
                published_at_us=1_767_225_540_000_000 + number,
                received_at=number + 0.1,
                first_started_at=number + 0.2,
                started_at=number + 0.2,
                finished_at=number + 0.3,
            )
            for number in range(first, first + size)
        )
        for first in range(0, messages, size)
    ]


def message_us(messages: int, size: int, *, counts_chars: bool) -> float:
    ring, attachment = FinishedMessages(), Attachment(3, 1)
    ring.counts_chars = counts_chars
    for batch in batches(attachment, MESSAGES_MAX + size, size):
        ring.add(batch, 0.0, settled=True)
    every = batches(attachment, messages, size)
    gc.collect()
    begun = time.process_time()
    for now, batch in enumerate(every):
        ring.add(batch, float(now), settled=True)
    return (time.process_time() - begun) / messages * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    for size in BATCHES:
        for counts_chars in (False, True):
            costs = [
                message_us(arguments.messages, size, counts_chars=counts_chars)
                for _ in range(arguments.rounds)
            ]
            headers = "long" if counts_chars else "short"
            middle = statistics.median(costs)
            print(
                f"{size:3} at once, {headers:5} headers {middle:5.2f} us ({min(costs):.2f} to {max(costs):.2f})"
            )


if __name__ == "__main__":
    main()
