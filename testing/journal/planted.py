"""A journal of several groups with faults planted at known places, and exactly what must be found in it.

planted = plant(tmp_path / "journal")
planted.offences["faulty"]      every (kind, view, key, seq) with no skew between the clocks
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

from lbg_core.group import MESSAGE_GROUPS, PARTITIONED, DeliveredRecord, PublishedRecord
from lbg_core.journal import JournalSettings, JournalWriter, closed_files
from testing.journal.broken_lines import BrokenLine, lengthen_a_record, newer_line, plant_broken_lines
from testing.journal.planted_faults import Told, faulty_keys, handed
from testing.journal.sound import Sound, sound_journal, sound_sessions
from testing.pipeline.findings import LostRange, Move

SKEW_S = 0.001
"""With this, `uncertain` is uncertain."""

_SETTINGS = JournalSettings(file_max_bytes=20_000)


@dataclass(slots=True)
class Planted:
    """Everything by group. `offences` hold those of `uncertain` as well."""

    directory: Path
    records: list[PublishedRecord | DeliveredRecord] = field(default_factory=list)
    verdicts: dict[str, str] = field(default_factory=dict)
    offences: dict[str, list[Told]] = field(default_factory=lambda: defaultdict(list))
    uncertain: dict[str, list[Told]] = field(default_factory=lambda: defaultdict(list))
    lost: dict[str, list[LostRange]] = field(default_factory=lambda: defaultdict(list))
    moves: dict[str, list[Move]] = field(default_factory=lambda: defaultdict(list))
    unpublished: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    broken: list[BrokenLine] = field(default_factory=list)


def plant(directory: Path, *, broken: bool = True) -> Planted:
    """Writes the journal into `directory`, in rotated files as publishers and members do. Of no group but `faulty` and
    `misplacing` is the verdict broken. `broken`: with lines that are no records."""
    planted = Planted(directory)
    _plant_sound(planted, "moving", sound_journal("moving", handoffs=5))
    _plant_sound(planted, "partitioned", sound_journal("partitioned", mode=PARTITIONED, messages=100))
    _plant_sound(planted, "sharing", _shared_out(sound_journal("sharing", mode=MESSAGE_GROUPS, messages=150)))
    _plant_sound(planted, "numbering", sound_sessions("numbering"))
    _plant_misplacing(planted)
    _plant_faults(planted, "faulty")
    _write(planted)
    lengthen_a_record(closed_files(directory)[0])
    if broken:
        planted.broken = plant_broken_lines(closed_files(directory))
    (directory / ".m0-20231114T221320000000Z-000099.jsonl.open").write_bytes(b'{"v":1,"kind":"publ')
    return planted


def plant_newer(directory: Path) -> Path:
    """A record of a newer version, between others; the file that it is in."""
    file = closed_files(directory)[0]
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:3], newer_line() + b"\n", *lines[3:]]))
    return file


def _plant_sound(planted: Planted, group: str, sound: Sound) -> None:
    planted.verdicts[group] = "sound"
    key_of = {(one.publisher, one.hash_, one.seq): one.key for one in sound.published}
    planted.offences[group] += [
        ("rewound", "delivered", str(key_of[message]), message[2]) for message in sound.rewound
    ]
    planted.moves[group] += sound.moves
    _add(planted, group, sound.published, sound.delivered)


def _shared_out(sound: Sound) -> Sound:
    """To whoever is free: of a message group, so long as it has messages, always to one."""
    sound.delivered = [handed(one, number % 3) for number, one in enumerate(sound.delivered)]
    sound.moves = []
    return sound


def _plant_misplacing(planted: Planted) -> None:
    """Messages of sessions in other sessions, under other numbers and in none."""
    group, sound = "misplacing", sound_sessions("misplacing")
    given = sound.delivered
    ninth, twelfth = given[9], given[12]
    ninth.sequence, twelfth.sequence = twelfth.sequence, ninth.sequence
    again = replace(given[5], session="session-0", sequence=41, verdict="repeat", redelivered=True)
    renumbered = replace(given[-1], seq=120, key="k1", session="session-1", sequence=1)
    nowhere = replace(given[-1], seq=121, key="k2", session=None, sequence=None)
    for after, one in enumerate((again, renumbered, nowhere), 1):
        one.delivered_at_us = given[-1].delivered_at_us + 1000
        one.started_at_us = one.finished_at_us = None
        one.settled_at_us = one.delivered_at_us + after
        sound.delivered.append(one)
    sound.published += [
        replace(sound.published[-1], seq=one.seq, key=one.key) for one in (renumbered, nowhere)
    ]
    _plant_sound(planted, group, sound)
    planted.verdicts[group] = "broken"
    planted.offences[group] = [
        *(("inverted", view, "k5", 12) for view in ("delivered", "acknowledged")),
        ("misplaced", "delivered", "k5", 5),
        ("misplaced", "delivered", "k1", 120),
        *(("rewound", view, "k1", 120) for view in ("delivered", "acknowledged")),
        ("misplaced", "delivered", "k2", 121),
    ]


def _plant_faults(planted: Planted, group: str) -> None:
    planted.verdicts[group] = "broken"
    keys = faulty_keys(group)
    for of_key in keys:
        planted.offences[group] += of_key.told
        planted.uncertain[group] += of_key.uncertain
        planted.lost[group] += of_key.lost
        planted.moves[group] += of_key.moves
        planted.unpublished[group] += of_key.unpublished
    _add(
        planted,
        group,
        [one for of_key in keys for one in of_key.published],
        [one for of_key in keys for one in of_key.delivered],
    )


def _add(
    planted: Planted, group: str, published: list[PublishedRecord], delivered: list[DeliveredRecord]
) -> None:
    """With members of its own, whose deliveries are counted as they arrived."""
    counted: dict[str, int] = defaultdict(int)
    for one in sorted(delivered, key=lambda one: one.delivered_at_us):
        one.member_name, one.incarnation = f"{group}-{one.member_name}", f"{group}-{one.incarnation}"
        one.delivery = counted[one.incarnation]
        counted[one.incarnation] += 1
    planted.records += [*published, *delivered]


def _write(planted: Planted) -> None:
    writers: dict[str, list[PublishedRecord | DeliveredRecord]] = defaultdict(list)
    for one in planted.records:
        is_published = isinstance(one, PublishedRecord)
        writers[f"published-{one.publisher}" if is_published else one.member_name].append(one)
    for writer, records in writers.items():
        with JournalWriter(planted.directory, writer, settings=_SETTINGS) as journal:
            for one in records:
                journal.append(one)
