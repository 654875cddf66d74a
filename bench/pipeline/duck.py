"""The same checks in SQL on DuckDB, as one would write them who wants them fast.

The files are parsed once, into the columns that are needed. Numbers and times of settling that rise are in order, so
one pass in the order of delivery finds the keys in which something may be wrong, and only those are judged in full (two
lines of one hash value make each other suspicious at most). Who had a key or a hash from when to when, in stretches of
ten minutes, says where no two members can have overlapped, and which shards moved when, without sorting. What a journal
in mode Sessions, clocks with a skew and a time to settle would need on top is left out, and so are the broken lines
themselves: they are counted. `python -m bench.pipeline.duck JOURNAL --threads 2 --memory 4GB`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import duckdb

from testing.pipeline.answers import Answer, Message

STRETCH_US = 600_000_000
"""Within so long a member usually has a key, or a hash, once; if not, all of its rows are sorted."""

COLUMNS = {
    "v": "INTEGER",
    "kind": "VARCHAR",
    "group": "VARCHAR",
    "publisher": "VARCHAR",
    "key": "VARCHAR",
    "hash": "INTEGER",
    "queue": "INTEGER",
    "seq": "BIGINT",
    "published_at_us": "BIGINT",
    "confirmed_at_us": "BIGINT",
    "resends": "INTEGER",
    "member": "INTEGER",
    "member_name": "VARCHAR",
    "incarnation": "VARCHAR",
    "delivery": "BIGINT",
    "redelivered": "BOOLEAN",
    "delivered_at_us": "BIGINT",
    "started_at_us": "BIGINT",
    "finished_at_us": "BIGINT",
    "settled_at_us": "BIGINT",
    "attempts": "INTEGER",
    "verdict": "VARCHAR",
}

READ = """
CREATE TABLE records AS
SELECT
    "group" AS grp, publisher, key, hash, seq, kind = 'published' AS is_published,
    member, incarnation, delivery, redelivered, delivered_at_us, started_at_us, finished_at_us, settled_at_us, verdict,
    v IS NULL OR v <> 1 OR "group" IS NULL OR publisher IS NULL OR hash IS NULL OR queue IS NULL OR seq IS NULL
    OR published_at_us IS NULL
    OR CASE kind
        WHEN 'published' THEN confirmed_at_us IS NULL OR resends IS NULL
        WHEN 'delivered' THEN member IS NULL OR member_name IS NULL OR incarnation IS NULL OR delivery IS NULL
            OR redelivered IS NULL OR delivered_at_us IS NULL OR attempts IS NULL OR verdict IS NULL
            OR verdict NOT IN ('ack', 'dead', 'repeat', 'released')
        ELSE true
    END AS is_broken
FROM read_json($files, format = 'newline_delimited', ignore_errors = true, columns = $columns)
"""

DELIVERED = """
CREATE VIEW delivered AS SELECT * FROM records WHERE NOT is_published AND NOT is_broken
"""

COUNTS = """
SELECT
    count(*) FILTER (is_published AND NOT is_broken),
    count(*) FILTER (NOT is_published AND NOT is_broken),
    count(*) FILTER (is_broken),
    count(*) FILTER (redelivered AND NOT is_broken)
FROM records
"""

MESSAGES = """
CREATE TABLE messages AS
SELECT
    grp, publisher, hash, seq,
    bool_or(is_published) AS was_published,
    coalesce(bool_or(verdict IN ('ack', 'dead', 'repeat')), false) AS is_final,
    count(*) FILTER (verdict IN ('ack', 'dead')) AS acknowledgements
FROM records WHERE NOT is_broken
GROUP BY ALL
HAVING NOT (was_published AND is_final AND acknowledgements <= 1)
"""

COMPLETENESS = """
CREATE TABLE completeness AS
SELECT
    grp, publisher, hash,
    count(*) FILTER (is_published) AS published, count(*) FILTER (NOT is_published) AS delivered
FROM records WHERE NOT is_broken GROUP BY ALL
"""

KEY_SPANS = """
CREATE TABLE key_spans AS
SELECT
    grp, key, member, incarnation, started_at_us // $stretch_us AS stretch,
    min(started_at_us) AS first_us, max(finished_at_us) AS last_us
FROM delivered WHERE key IS NOT NULL AND started_at_us < finished_at_us
GROUP BY ALL
"""

SUSPICIOUS = """
CREATE TABLE suspicious AS
SELECT DISTINCT grp, key FROM (
    SELECT
        grp, key, verdict, seq, settled_at_us,
        lag(seq) OVER line AS seq_before,
        lag(settled_at_us) OVER line AS settled_before_us
    FROM delivered
    WHERE key IS NOT NULL
    WINDOW line AS (PARTITION BY hash(grp, publisher, hash, key) ORDER BY delivered_at_us, incarnation, delivery)
)
WHERE seq <= seq_before OR settled_at_us <= settled_before_us OR verdict NOT IN ('ack', 'dead') OR settled_at_us IS NULL
UNION
SELECT grp, key FROM (
    SELECT grp, key, first_us, max(last_us) OVER (
        PARTITION BY grp, key ORDER BY first_us, last_us ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before_us
    FROM key_spans
) WHERE first_us < before_us
"""

SUSPECTS = """
CREATE TABLE suspects AS SELECT delivered.* FROM delivered SEMI JOIN suspicious USING (grp, key)
"""

ORDER = """
SELECT kind, publisher, hash, seq FROM (
    SELECT
        publisher, hash, seq,
        CASE
            WHEN row_number() OVER (
                PARTITION BY grp, publisher, hash, key, seq ORDER BY {at}, incarnation, delivery
            ) > 1 THEN 'rewound'
            WHEN seq < max(seq) OVER (
                PARTITION BY grp, publisher, hash, key ORDER BY {at}, incarnation, delivery
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) THEN 'inverted'
        END AS kind
    FROM suspects WHERE {of_view}
) WHERE kind IS NOT NULL
"""

OVERLAPS = """
WITH spans AS (
    SELECT *, row_number() OVER (PARTITION BY grp, key ORDER BY started_at_us, incarnation, delivery) AS place,
        max(finished_at_us) OVER (
            PARTITION BY grp, key ORDER BY started_at_us, incarnation, delivery
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS finished_before_us
    FROM suspects WHERE started_at_us < finished_at_us
)
SELECT DISTINCT late.publisher, late.hash, late.seq, late.place
FROM spans AS late JOIN spans AS early
    ON late.grp = early.grp AND late.key = early.key AND early.place < late.place
    AND late.started_at_us < early.finished_at_us
    AND (late.member, late.incarnation) <> (early.member, early.incarnation)
WHERE late.started_at_us < late.finished_before_us
"""

SHARD_SPANS = """
CREATE TABLE shard_spans AS
SELECT
    grp, hash, member, delivered_at_us // $stretch_us AS stretch,
    min(delivered_at_us) AS first_us, max(delivered_at_us) AS last_us
FROM delivered GROUP BY ALL
"""

TANGLED = """
CREATE TABLE tangled AS
SELECT DISTINCT grp, hash FROM (
    SELECT grp, hash, first_us, max(last_us) OVER (
        PARTITION BY grp, hash ORDER BY first_us, last_us ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before_us
    FROM shard_spans
) WHERE first_us <= before_us
"""

MOVES = """
CREATE TABLE moves AS
SELECT * FROM (
    SELECT
        grp, hash, lag(member) OVER w AS was, member AS now, first_us AS at_us,
        first_us - lag(last_us) OVER w AS pause_us
    FROM shard_spans ANTI JOIN tangled USING (grp, hash)
    WINDOW w AS (PARTITION BY grp, hash ORDER BY first_us)
    UNION ALL
    SELECT grp, hash, lag(member) OVER w, member, delivered_at_us, delivered_at_us - lag(delivered_at_us) OVER w
    FROM delivered SEMI JOIN tangled USING (grp, hash)
    WINDOW w AS (PARTITION BY grp, hash ORDER BY delivered_at_us, incarnation, delivery)
) WHERE was <> now
"""


def judged(
    journal: Path, *, threads: int, memory: str, scratch: Path | None = None
) -> tuple[Answer, dict[str, float]]:
    """The answer, and the seconds of each step."""
    settings = {"threads": threads, "memory_limit": memory, "preserve_insertion_order": False}
    connection = duckdb.connect(config=settings | ({"temp_directory": str(scratch)} if scratch else {}))
    took_s: dict[str, float] = {}

    def run(name: str, sql: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        begun = time.monotonic()
        rows = connection.execute(sql, parameters).fetchall()
        took_s[name] = time.monotonic() - begun
        return rows

    run("read", READ, {"files": str(journal / "*.jsonl"), "columns": COLUMNS})
    run("view", DELIVERED)
    ((published, delivered, broken, redelivered),) = run("counts", COUNTS)
    run("messages", MESSAGES)
    run("completeness", COMPLETENESS)
    run("spans of keys", KEY_SPANS, {"stretch_us": STRETCH_US})
    run("suspicious lines", SUSPICIOUS)
    run("suspects", SUSPECTS)
    offences = []
    for view, at, of_view in (
        ("delivered", "delivered_at_us", "true"),
        ("acknowledged", "settled_at_us", "verdict IN ('ack', 'dead') AND settled_at_us IS NOT NULL"),
    ):
        rows = run(f"order as {view}", ORDER.format(at=at, of_view=of_view))
        offences += [(kind, view, _message(*message)) for kind, *message in rows]
    offences += [("overlap", "", _message(*message)) for *message, _ in run("overlaps", OVERLAPS)]
    run("spans of shards", SHARD_SPANS, {"stretch_us": STRETCH_US})
    run("tangled shards", TANGLED)
    run("moves", MOVES)
    found = run(
        "findings", "SELECT publisher, hash, seq, was_published, is_final, acknowledgements FROM messages"
    )
    for *message, _, _, acknowledgements in found:
        offences += [("repeated", "", _message(*message))] * (acknowledgements - 1)
    ((moves,),) = run("moves told", "SELECT count(*) FROM moves")
    lost = [_message(*message) for *message, was, is_final, _ in found if was and not is_final]
    unpublished = sum(not was for *_, was, _, _ in found)
    return (
        Answer(published, delivered, broken, redelivered, moves, unpublished, sorted(lost), sorted(offences)),
        took_s,
    )


def _message(publisher: str, hash_: int, seq: int) -> Message:
    return int(publisher.rpartition("-")[2]), hash_, seq


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("journal", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", default="4GB")
    parser.add_argument("--scratch", type=Path, help="where what does not fit into memory goes")
    arguments = parser.parse_args()
    begun = time.monotonic()
    answer, took_s = judged(
        arguments.journal, threads=arguments.threads, memory=arguments.memory, scratch=arguments.scratch
    )
    job_s = time.monotonic() - begun
    print(json.dumps({"answer": json.loads(answer.as_json()), "job_s": job_s, "steps_s": took_s}))


if __name__ == "__main__":
    main()
