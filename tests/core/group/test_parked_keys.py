"""The set of parked keys: entries that come twice, late and in any order add up to the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group.errors import EntryError
from lbg_core.group.parked_keys import (
    PARKED_ENTRIES,
    BarrierEntry,
    Entry,
    KeyState,
    MarkEntry,
    ParkedKeys,
    ParkEntry,
    RecordedCopies,
    ReleaseEntry,
    SettledEntry,
    SettleEntry,
    SnapshotEntry,
    VoidEntry,
)
from lbg_core.group.parked_snapshot import SnapshotMissing, SnapshotPlace, SnapshotReader, parts_of
from lbg_core.group.sequences import MessageIdentity

KEYS = ("anna", "ben")
FIRST_EPOCH = "p-" + "0" * 32
LATER_EPOCH = f"p-00000000.{1:013x}.{'1' * 32}"


def identity_of(key: str, number: int) -> MessageIdentity:
    """A number of a hash belongs to one key."""
    return ("p", 0, 2 * number + KEYS.index(key))


keys = st.sampled_from(KEYS)
causes = st.sampled_from(("c1", "c2", "c3"))
numbers = st.integers(0, 6)
copies = st.sampled_from(("x1", "x2", "x3", "x4"))
parks = st.builds(
    lambda key, n, cause, copy: ParkEntry(key, identity_of(key, n), n, cause, copy),
    keys,
    numbers,
    causes,
    copies,
)
settles = st.builds(lambda key, n: SettleEntry(key, identity_of(key, n)), keys, numbers)
releases = st.builds(lambda key, some: ReleaseEntry(key, tuple(some)), keys, st.sets(causes))
entries: st.SearchStrategy[Entry] = st.one_of(parks, settles, releases)


def set_of(history: Sequence[Entry]) -> ParkedKeys:
    parked = ParkedKeys()
    for entry in history:
        parked.apply(entry)
    return parked


def set_and_copies(history: Sequence[Entry]) -> tuple[ParkedKeys, RecordedCopies]:
    parked, recorded = ParkedKeys(), RecordedCopies()
    for entry in history:
        parked.apply(entry)
        recorded.applied(entry, parked)
    return parked, recorded


def messages_in(parked: ParkedKeys) -> set[MessageIdentity]:
    return {identity for key in KEYS for identity in parked.numbers(key)}


@given(st.lists(entries, max_size=30))
def test_the_set_is_what_was_parked_less_what_is_settled(history: list[Entry]) -> None:
    parked = set_of(history)
    settled = {entry.identity for entry in history if isinstance(entry, SettleEntry)}
    expected = {entry.identity for entry in history if isinstance(entry, ParkEntry)} - settled
    assert messages_in(parked) == expected
    assert parked.messages == len(expected)
    assert parked.size_bytes == sum(identity[2] // 2 for identity in expected)
    assert len(parked) == len({identity[2] % 2 for identity in expected})
    assert [one.key for one in parked.parked() if one.messages == 0] == []
    for key in KEYS:
        assert (parked.state(key) is KeyState.FREE) == (not list(parked.numbers(key)))


@given(st.lists(st.one_of(parks, settles), max_size=20), st.data())
def test_entries_that_come_twice_and_in_another_order_give_the_same_messages(
    history: list[Entry], data: st.DataObject
) -> None:
    again = data.draw(st.lists(st.sampled_from(history), max_size=10)) if history else []
    shuffled = data.draw(st.permutations([*history, *again]))
    assert messages_in(set_of(shuffled)) == messages_in(set_of(history))


@given(st.lists(entries, max_size=20), parks)
def test_a_late_park_of_a_dead_member_takes_no_message_and_no_key_out(
    history: list[Entry], late: ParkEntry
) -> None:
    parked = set_of(history)
    before = messages_in(parked)
    not_released = {key for key in KEYS if parked.state(key) is KeyState.PARKED}
    parked.apply(late)
    assert before <= messages_in(parked)
    assert not_released <= {key for key in KEYS if parked.state(key) is KeyState.PARKED}


@given(st.lists(entries, max_size=20), parks)
def test_a_late_park_of_a_settled_message_changes_nothing(history: list[Entry], late: ParkEntry) -> None:
    parked = set_of([*history, SettleEntry(late.key, late.identity)])
    states = [parked.state(key) for key in KEYS]
    before = messages_in(parked)
    parked.apply(late)
    assert messages_in(parked) == before
    assert [parked.state(key) for key in KEYS] == states


@given(st.lists(entries, max_size=20), st.sets(copies), st.lists(parks, max_size=5))
def test_void_copies_take_no_message_out_and_bring_none_in(
    history: list[Entry], void: set[str], late: list[ParkEntry]
) -> None:
    parked = set_of(history)
    before = messages_in(parked)
    parked.apply(VoidEntry(tuple(void)))
    assert messages_in(parked) == before
    states = [parked.state(key) for key in KEYS]
    for entry in late:
        if entry.copy in void:
            parked.apply(entry)
    assert messages_in(parked) == before
    assert [parked.state(key) for key in KEYS] == states


@given(
    st.lists(st.one_of(entries, st.builds(lambda some: VoidEntry(tuple(some)), st.sets(copies))), max_size=30)
)
def test_every_message_of_the_set_has_a_copy_with_an_entry_that_was_not_void(history: list[Entry]) -> None:
    parked, recorded = set_and_copies(history)
    for identity in messages_in(parked):
        assert any(recorded.has(identity, copy) for copy in ("x1", "x2", "x3", "x4"))
    for copy in ("x1", "x2", "x3", "x4"):
        assert not any(
            recorded.has(identity_of(key, n), copy)
            for key in KEYS
            for n in range(7)
            if identity_of(key, n) not in messages_in(parked)
        )


voids = st.builds(lambda some: VoidEntry(tuple(sorted(some))), st.sets(copies))
singles = st.builds(lambda key, n: ReleaseEntry(key, only=(identity_of(key, n),)), keys, numbers)
histories = st.lists(st.one_of(entries, voids, singles), max_size=20)


def everything_of(parked: ParkedKeys, recorded: RecordedCopies) -> object:
    """All that can be asked of a set and its copies."""
    identities = [identity_of(key, n) for key in KEYS for n in range(8)]
    return (
        list(parked.parked()),
        parked.messages,
        parked.size_bytes,
        [(key, parked.state(key), parked.cause(key)) for key in KEYS],
        [(key, one, parked.may_deliver(key, one)) for key in KEYS for one in identities],
        [(one, parked.is_settled(one), recorded.of(one)) for one in identities],
        [parked.is_void(copy) for copy in ("x1", "x2", "x3", "x4")],
    )


@given(histories, histories, histories, st.integers(0, 5))
def test_a_reader_from_a_snapshot_has_the_set_of_one_from_the_first_entry(
    before: list[Entry], meanwhile: list[Entry], after: list[Entry], cut: int
) -> None:
    parked, recorded = set_and_copies(before)
    parts = parts_of("m", parked.snapshot(recorded))
    another = SnapshotEntry("another", (), is_last=True)
    stream: list[Entry] = [*before, MarkEntry("m"), *meanwhile, another, *parts, *after]
    decoded = [PARKED_ENTRIES.decode(PARKED_ENTRIES.encode(entry)) for entry in stream]
    place = SnapshotPlace(len(before), "m")
    reader = SnapshotReader(place)
    tail = decoded[place.offset :]
    read = [*reader.read(tail[:cut]), *reader.read(tail[cut:])]
    assert everything_of(*set_and_copies(read)) == everything_of(*set_and_copies(decoded))


def test_a_stream_without_the_mark_at_the_place_is_not_read_from_there() -> None:
    for entry in (BarrierEntry("b"), MarkEntry("another"), SnapshotEntry("m", (), is_last=True)):
        with pytest.raises(SnapshotMissing):
            list(SnapshotReader(SnapshotPlace(3, "m")).read([entry]))


def test_a_large_snapshot_is_in_parts_and_an_empty_one_is_one_part() -> None:
    park = ParkEntry("anna", ("p", 0, 4), 1, "c1", "x")
    parts = parts_of("m", [park] * 250)
    assert [(len(one.entries), one.is_last) for one in parts] == [(100, False), (100, False), (50, True)]
    assert parts_of("m", []) == [SnapshotEntry("m", (), is_last=True)]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("7:abc", SnapshotPlace(7, "abc")),
        ("", None),
        ("7", None),
        ("7:", None),
        ("-7:a", None),
        ("x:a", None),
    ],
)
def test_a_place_is_read_from_the_record(text: str, place: SnapshotPlace | None) -> None:
    assert SnapshotPlace.parse(text) == place
    assert place is None or str(place) == text


@given(st.lists(entries, max_size=20), st.sampled_from(KEYS))
def test_a_late_release_does_not_release_a_key_that_failed_again(history: list[Entry], key: str) -> None:
    parked = set_of([*history, ParkEntry(key, identity_of(key, 9), 1, "new", "x")])
    parked.apply(ReleaseEntry(key, ("c1", "c2", "c3")))
    assert parked.state(key) is KeyState.PARKED


@given(st.lists(entries, max_size=30))
def test_messages_of_a_released_key_are_delivered_by_number_whatever_way_they_come(
    history: list[Entry],
) -> None:
    parked = set_of(history)
    for one in list(parked.parked()):
        parked.apply(ReleaseEntry(one.key, one.causes))
        order = list(parked.numbers(one.key))
        assert [identity for identity in order if parked.may_deliver(one.key, identity)] == order[:1]
        assert not parked.may_deliver(one.key, identity_of(one.key, 100)), "a newer one waits for all of them"
        for identity in order:
            assert parked.may_deliver(one.key, identity)
            parked.apply(SettleEntry(one.key, identity))
        assert parked.state(one.key) is KeyState.FREE
        assert parked.may_deliver(one.key, identity_of(one.key, 100))


def test_nothing_of_a_parked_key_is_delivered_and_another_key_is() -> None:
    parked = set_of([ParkEntry("anna", ("p", 0, 4), 1, "c1", "x")])
    assert not any(parked.may_deliver("anna", ("p", 0, number)) for number in range(8))
    assert not parked.may_deliver("anna", ("another", 0, 0))
    assert parked.may_deliver("ben", ("p", 0, 5))


def test_a_message_that_is_released_alone_is_delivered_and_the_one_behind_it_is_not() -> None:
    parked = set_of([ParkEntry("anna", ("p", 0, number), 1, "c1", "x") for number in (2, 5)])
    parked.apply(ReleaseEntry("anna", only=(("p", 0, 2), ("p", 0, 5))))
    assert parked.state("anna") is KeyState.PARKED
    assert parked.may_deliver("anna", ("p", 0, 2))
    assert not parked.may_deliver("anna", ("p", 0, 5))
    parked.apply(SettleEntry("anna", ("p", 0, 2)))
    assert parked.may_deliver("anna", ("p", 0, 5))
    assert not parked.may_deliver("anna", ("p", 0, 6))


def test_a_later_epoch_of_a_publisher_waits_for_the_earlier_one() -> None:
    parked = set_of(
        [ParkEntry("anna", (publisher, 0, 3), 1, "c1", "x") for publisher in (LATER_EPOCH, FIRST_EPOCH)]
    )
    parked.apply(ReleaseEntry("anna", ("c1",)))
    assert not parked.may_deliver("anna", (LATER_EPOCH, 0, 3))
    assert parked.may_deliver("anna", (FIRST_EPOCH, 0, 3))
    parked.apply(SettleEntry("anna", (FIRST_EPOCH, 0, 3)))
    assert parked.may_deliver("anna", (LATER_EPOCH, 0, 3))


def test_a_cause_that_is_not_released_is_named_before_others() -> None:
    parked = set_of([ParkEntry("anna", ("p", 0, 2), 1, cause, "x") for cause in ("c1", "c2")])
    parked.apply(ReleaseEntry("anna", ("c1",)))
    assert parked.cause("anna") == "c2"
    assert [parked.is_released("anna", cause) for cause in ("c1", "c2")] == [True, False]
    parked.apply(ReleaseEntry("anna", ("c2",)))
    assert parked.cause("anna") == "c1"
    assert parked.cause("ben") is None


@pytest.mark.parametrize(
    "entry",
    [
        ParkEntry("schlüssel", ("p", 3, 4), 5, "c", "x", 7),
        SettleEntry("k", ("p", 3, 4)),
        ReleaseEntry("k", ("c1", "c2"), (("p", 3, 4),)),
        ReleaseEntry("k"),
        VoidEntry(("x1", "x2")),
        BarrierEntry("b"),
        MarkEntry("m"),
        SnapshotEntry("m", (SettledEntry("p", 3, ((0, 4), (6, 6))), VoidEntry(("x",))), is_last=True),
    ],
)
def test_an_entry_survives_the_stream(entry: Entry) -> None:
    assert PARKED_ENTRIES.decode(PARKED_ENTRIES.encode(entry)) == entry


def test_an_entry_of_a_newer_version_is_refused_in_one_line() -> None:
    with pytest.raises(EntryError) as refused:
        PARKED_ENTRIES.decode(b'{"v":2,"op":"park"}')
    assert str(refused.value) == (
        "the stream of parked keys has an entry of version 2, and this LBG reads version 1: upgrade it"
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"v":1,"type":"merge"}',
        b'{"v":1,"type":"park","key":"k"}',
        b'{"v":1,"type":"snapshot","mark":"m","is_last":true,"entries":[{"type":"barrier","id":"b"}]}',
        b"\xff",
    ],
)
def test_what_is_no_entry_is_an_error_and_not_passed_over(body: bytes) -> None:
    with pytest.raises(EntryError):
        PARKED_ENTRIES.decode(body)


def test_a_release_that_is_written_again_reaches_who_took_the_key_for_free_and_counts_from_its_beginning() -> (
    None
):
    """A member counts a message as settled before the stream has its entry: the next `park` finds no key there."""
    first, second = (ParkEntry("anna", identity_of("anna", n), 1, "c1", f"x{n}") for n in (0, 1))
    settle, release = SettleEntry("anna", first.identity), ReleaseEntry("anna", ("c1",))
    member, reader = (
        set_of([first, release, settle, second, settle]),
        set_of([first, release, second, settle]),
    )
    assert (member.state("anna"), reader.state("anna")) == (KeyState.PARKED, KeyState.RELEASED)
    member.apply(release)
    assert member.state("anna") is KeyState.RELEASED

    many = [ParkEntry("anna", identity_of("anna", n), 1, "c1", f"x{n}") for n in range(400)]
    parked = set_of([*many[:150], release, *many[150:299]])
    parked.apply(release)
    assert not parked.is_ending("anna")
    parked.apply(many[299])
    assert parked.is_ending("anna"), "as many were parked since it was released as it had then"
