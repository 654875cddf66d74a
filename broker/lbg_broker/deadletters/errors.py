"""What can go wrong with dead letters, besides the broker (ClientError) and the group (ProvisioningError).

DeadLetterError
└── ReplayStopped    a dead letter could not be published: it and all after it stay dead letters
"""

from __future__ import annotations


class DeadLetterError(Exception):
    """Base of every error of this package; `str()` is one line that says what, where and what to do."""


class ReplayStopped(DeadLetterError):
    def __init__(self, letter: str, why: str) -> None:
        super().__init__(
            f"{letter} was not replayed: {why}; it stays a dead letter, and so does what comes after it"
        )
