"""How long a channel is kept on which nothing gets through. Pure."""

from __future__ import annotations

from dataclasses import dataclass

LOOKS_PER_PATIENCE = 20
"""So often an alarm is looked for meanwhile: its end is noticed soon, and waiting for answers begins there."""


@dataclass(frozen=True, slots=True)
class Patience:
    """`answer_s`: without any answer. A quorum queue that has its majority back answers within 15 s what it was
    sent without one, or never.

    `refused_s`: while everything is refused. RabbitMQ 3.10 refuses for ever on a channel that first published to a
    quorum queue while its leader was down; a queue that is merely full takes messages again by itself, so this is
    also the wait before a refused dead letter is tried again.
    """

    answer_s: float = 20.0
    refused_s: float = 1.0
