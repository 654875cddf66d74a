"""Password hashes as RabbitMQ stores them, for the broker and for those who compare."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Final

SCRYPT: Final = "scrypt"
RABBITMQ_SHA256: Final = "rabbit_password_hashing_sha256"
_ALGORITHM_BY_LENGTH = {48: SCRYPT, 36: RABBITMQ_SHA256}
_SCRYPT_COST = 1 << 11  # 2 MiB and about 4 ms: a burst of 50 reconnecting members must not hold the loop
_SCRYPT_BLOCK = 8
_SCRYPT_SALT, _RABBITMQ_SALT = 16, 4
"""Bytes."""


def hash_password(password: str, salt: bytes | None = None) -> str:
    """`salt + scrypt(password)` in base64; a random 16-byte salt when none is given."""
    salt = secrets.token_bytes(_SCRYPT_SALT) if salt is None else salt
    digest = hashlib.scrypt(password.encode(), salt=salt, n=_SCRYPT_COST, r=_SCRYPT_BLOCK, p=1, dklen=32)
    return base64.b64encode(salt + digest).decode()


def hash_algorithm(password_hash: str) -> str | None:
    """Algorithm of the hash: `scrypt` (the embedded broker's), RabbitMQ's salted SHA-256, or None for neither.

    RabbitMQ's («Passwords»: 4 bytes of salt, then SHA-256 of salt and password) is accepted so that users
    exported from it can log in to the embedded broker.
    """
    try:
        return _ALGORITHM_BY_LENGTH.get(len(base64.b64decode(password_hash, validate=True)))
    except ValueError:
        return None


def is_hash_of(password: str, password_hash: str) -> bool:
    """False also for a hash by an algorithm that is not known here."""
    algorithm = hash_algorithm(password_hash)
    if algorithm is None:
        return False
    stored = base64.b64decode(password_hash)
    if algorithm == SCRYPT:
        computed = base64.b64decode(hash_password(password, stored[:_SCRYPT_SALT]))
    else:
        salt = stored[:_RABBITMQ_SALT]
        computed = salt + hashlib.sha256(salt + password.encode()).digest()
    return hmac.compare_digest(computed, stored)


def is_password_of_user(password: str, password_hash: str) -> bool:
    """As `is_hash_of`; an unknown user, whose hash is empty, takes as long as a wrong password."""
    if password_hash:
        return is_hash_of(password, password_hash)
    hash_password(password, b"")
    return False
