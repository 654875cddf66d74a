"""Groups of which a verification has nothing to judge, with the reasons: their verdict is not sound."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from lbg_core.counted_nouns import counted
from lbg_pipeline.errors import JournalNotFound
from lbg_pipeline.journal.contents import Contents, contents_of


def unchecked_groups(
    spark: SparkSession, paths: Sequence[str], wanted: Collection[str], verdicts: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A `group`, null for all, with its `reason`: groups that are `wanted` and have no record, and those whose
    verdict is unchecked. The journals are read again only if records are missing."""
    return [
        {"group": group, "reason": reason}
        for group, reason in (*_absent(spark, paths, wanted, verdicts), *_partial(verdicts))
    ]


def _absent(
    spark: SparkSession, paths: Sequence[str], wanted: Collection[str], verdicts: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str | None, str]]:
    missing = sorted({*wanted} - {row["group"] for row in verdicts})
    if verdicts and not missing:
        return
    try:
        contents = contents_of(spark, paths)
    except JournalNotFound:  # a stream may begin before its journals
        contents = Contents(paths)
    if contents.groups:
        yield from ((group, contents.without(group)) for group in missing)
    else:
        yield None, contents.empty()


def _partial(verdicts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for row in verdicts:
        if row["verdict"] != "unchecked":
            continue
        if row["delivered"]:
            deliveries = counted(row["delivered"], "delivery", "deliveries")
            yield (
                row["group"],
                f"no record of a publisher: loss was not checked; order and overlap of {deliveries} were",
            )
        else:
            published = counted(row["published"], "message is", "messages are")
            yield row["group"], f"no record of a member: if all their journals were read, {published} lost"
