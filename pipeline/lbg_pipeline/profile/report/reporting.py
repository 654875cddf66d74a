"""The page as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import Row

from lbg_pipeline.pages import Column, Note, Section, Table, page
from lbg_pipeline.pages.formatting import moment, whole
from lbg_pipeline.pages.parts import Part

from ..digesting import DETAILED_GROUPS, Digest
from .latency import latency
from .load import load
from .members import members
from .moves import moves
from .overview import facts, notes
from .skew import skew


def report(
    digests: Sequence[Digest],
    published: Mapping[str, Row],
    delivered: Mapping[str, Row],
    *,
    journals: Sequence[str],
    broken: int,
    made_by: str,
) -> str:
    """One HTML page: all groups in a table, and those of `digests` drawn. `broken` is the number of lines set aside."""
    told = [Note(_broken(broken), warns=True)] if broken else []
    names = sorted({*published, *delivered})
    sections = [_group(digest) for digest in digests]
    if not names:
        told.append(Note("There is no record in these journals.", warns=True))
    if len(names) > 1 or told:
        sections.insert(
            0, Section("All groups", [*told, *([_groups(names, published, delivered)] if names else [])])
        )
    title = f"Profile of {names[0]}" if len(names) == 1 else f"Profile of {whole(len(names))} groups"
    return page(title, sections, subtitle=f"From the journals in {', '.join(journals)}", made_by=made_by)


def _broken(broken: int) -> str:
    if broken == 1:
        return "1 line is no record: it is in the table broken with the reason, and missing here."
    return f"{whole(broken)} lines are no records: they are in the table broken with the reason, and missing here."


def _groups(names: Sequence[str], published: Mapping[str, Row], delivered: Mapping[str, Row]) -> Table:
    columns = [Column("group"), Column("from (UTC)"), Column("to (UTC)")]
    columns += [
        Column(name, numeric=True) for name in ("published", "deliveries", "done", "dead", "redelivered")
    ]
    left_out = f"The {DETAILED_GROUPS} largest are drawn below." if len(names) > DETAILED_GROUPS else ""
    return Table(
        columns, [_row(name, published.get(name), delivered.get(name)) for name in names], "", left_out
    )


def _row(name: str, published: Row | None, delivered: Row | None) -> list[str]:
    spans = [one for one in (published, delivered) if one is not None]
    told = [None] * 4 if delivered is None else [delivered.deliveries, delivered.ack + delivered.dead]
    if delivered is not None:
        told += [delivered.dead, delivered.redelivered]
    return [
        name,
        moment(min(one.first_us for one in spans)),
        moment(max(one.last_us for one in spans)),
        whole(None if published is None else published.messages),
        *map(whole, told),
    ]


def _group(digest: Digest) -> Section:
    return Section(digest.group, list(_parts(digest)))


def _parts(digest: Digest) -> Iterator[Part]:
    yield facts(digest)
    yield from notes(digest)
    yield load(digest)
    yield latency(digest)
    if digest.skew:
        yield skew(digest)
    for section in (moves(digest), members(digest)):
        if section is not None:
            yield section
