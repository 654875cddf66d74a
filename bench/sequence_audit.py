"""Cost of the sequence audit: CPU time of a message in a member's core, with the audit and without, in turn.

python -m bench.sequence_audit [--messages 32000] [--rounds 15] [--keys 200]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import defaultdict

from lbg_core.group.members_protocol import Hello
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.dispatcher import MessageHooks, Rules
from lbg_sidecar.core.effects import Attach
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.core.sequence_audit import SequenceAudit
from lbg_sidecar.message import ACK
from testing.member.bare_member import setup_of

BATCH = 16
HASHES = 100


def member() -> ExclusiveMember:
    """It serves the one queue of its group."""
    machine = ExclusiveMember(setup_of(BalancingRules(queue_count=1), Rules(concurrency=BATCH)))
    machine.connected(0, 0.0)
    assert machine.roster.me is not None
    machine.returned(Hello(machine.roster.me), 0, 0.0)
    machine.tick(0.0)
    return machine


def message_us(messages: int, keys: int, *, is_audited: bool) -> float:
    """CPU microseconds of a message, from its delivery to its ack."""
    machine = member()
    hooks = machine.context.hooks
    audit = hooks.find(SequenceAudit)
    assert audit is not None
    if not is_audited:
        hooks.of(MessageHooks.arrived).remove(audit.arrived)
        hooks.of(MessageHooks.ended).remove(audit.ended)
    (attachment,) = (one.attachment for one in machine.effects if isinstance(one, Attach))
    machine.attached(attachment, 0.0)
    names = [f"key-{number}" for number in range(keys)]
    numbers: defaultdict[int, int] = defaultdict(int)
    batches = []
    for first in range(0, messages, BATCH):
        batch = []
        for tag in range(first + 1, first + BATCH + 1):
            hash_ = tag * 7 % HASHES
            identity = ("publisher-0123456789abcdef0123456789abcdef", hash_, numbers[hash_])
            numbers[hash_] += 1
            batch.append(InFlight(attachment, tag, key=names[tag * 7 % keys], identity=identity, hash_=hash_))
        batches.append(batch)
    gc.collect()
    gc.disable()
    begun = time.process_time()
    for turn, batch in enumerate(batches):
        now = turn * 1e-3
        machine.deliver(attachment, batch, now)
        while (call := machine.take(now)) is not None:
            machine.end(call, ACK, now)
        machine.flush(now)
        machine.effects.clear()
    spent_s = time.process_time() - begun
    gc.enable()
    report = audit.report()
    assert not is_audited or (report.missing, report.out_of_order, report.unknown_streams) == (0, 0, 0)
    return spent_s / messages * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=32_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--keys", type=int, default=200)
    arguments = parser.parse_args()
    costs: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(arguments.rounds):
        for is_audited in (True, False) if turn % 2 else (False, True):
            costs[is_audited].append(message_us(arguments.messages, arguments.keys, is_audited=is_audited))
    for is_audited, all_us in costs.items():
        name = "with" if is_audited else "without"
        middle = statistics.median(all_us)
        print(f"{name:8} {middle:6.2f} us a message ({min(all_us):.2f} to {max(all_us):.2f})")
    differences = [one - other for one, other in zip(costs[True], costs[False], strict=True)]
    middle = statistics.median(differences)
    print(f"{'audit':8} {middle:6.2f} us a message ({min(differences):.2f} to {max(differences):.2f})")


if __name__ == "__main__":
    main()
