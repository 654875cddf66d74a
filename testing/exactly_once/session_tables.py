"""The tables of a run by sessions, in SQLite: what was inserted, and how far each session is."""

from __future__ import annotations

import sqlite3

BUSY_S = 60.0


def connected(database: str) -> sqlite3.Connection:
    """In WAL mode, not synced at every commit: what is committed survives kill -9, which is what happens here."""
    connection = sqlite3.connect(database, timeout=BUSY_S, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def create(connection: sqlite3.Connection) -> None:
    """No index on `inserted`: it takes every duplicate."""
    connection.execute("CREATE TABLE inserted (session TEXT, sequence INTEGER, number INTEGER)")
    connection.execute("CREATE TABLE positions (session TEXT PRIMARY KEY, committed INTEGER NOT NULL)")
