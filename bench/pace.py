"""Cost of a member's pace: CPU time of one reading of its finished messages, which it makes every 5 s.

python -m bench.pace [--rounds 30]
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time

from lbg_core.group.pace import MEASURED_S, WINDOW_S, pace_of
from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome
from lbg_sidecar.core.finished import MESSAGES_MAX, FinishedMessages
from lbg_sidecar.core.pace_meter import CALLS_MAX

BATCH = 16
BATCH_S = 0.05


def full_ring(keys: int) -> tuple[FinishedMessages, float]:
    """With calls of 10 ms on average, and the time of its last batch."""
    chance, ring, attachment, now = random.Random(1), FinishedMessages(), Attachment(0, 1, partitions=1), 0.0
    for number in range(0, MESSAGES_MAX + BATCH, BATCH):
        now += BATCH_S
        batch = []
        for tag in range(number, number + BATCH):
            key, identity = f"key-{chance.randrange(keys)}", ("publisher", 7, tag)
            one = InFlight(attachment, tag, key=key, identity=identity, outcome=Outcome.ACK, calls=1)
            one.started_at, one.finished_at = now - chance.expovariate(100), now
            batch.append(one)
        ring.add(batch, now, settled=True)
    return ring, now


def reading_ms(ring: FinishedMessages, now: float, calls_max: int) -> float:
    gc.collect()
    begun = time.process_time()
    calls, since = ring.calls_since(now - WINDOW_S, calls_max)
    pace_of(calls, since=since, now=now, busy=0.5, finished_hz=1.0)
    return 1000 * (time.process_time() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    rounds = range(parser.parse_args().rounds)
    for keys in (200, 5000):
        ring, now = full_ring(keys)
        for calls_max in (CALLS_MAX, MESSAGES_MAX):
            all_ms = [reading_ms(ring, now, calls_max) for _ in rounds]
            middle = statistics.median(all_ms)
            print(
                f"{keys:5} keys, {calls_max:6} calls: {middle:.2f} ms ({min(all_ms):.2f} to {max(all_ms):.2f}), "
                f"{middle / MEASURED_S / 10:.3f} % of a core"
            )


if __name__ == "__main__":
    main()
