"""Small journals of any history, sound or not, for Hypothesis. Times are so few that many are the same."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from lbg_core.group import (
    EXCLUSIVE,
    MODES,
    SESSIONS,
    DeliveredRecord,
    PublishedRecord,
    incarnation_of_epoch,
)
from lbg_core.group.journal_record import VERDICTS
from testing.journal.rows import START_US, delivered, published

HASH_OF_KEY = {"k0": 0, "k1": 1, "k2": 0, None: 2}
RUNS = ((0, "i0"), (1, "i1"), (0, "i2"))
"""Members, one of which is started a second time."""

ODDITIES = (REHASHED, SKIPPED, REKEYED, RESIZED, REROUTED, COPIED) = range(1, 7)
"""A key on a second hash; numbers that no journal has; another key, body size or queue than the publisher recorded; a
record that is there twice."""

FIRST_EPOCH = "p-0a1b2c3d" + 24 * "7"
EPOCHS = (
    FIRST_EPOCH,
    *(f"p-{incarnation_of_epoch(FIRST_EPOCH[2:], began_us, bytes(16))}" for began_us in (5, 1 << 50)),
    "q",
)
"""Three epochs of one publisher, and another publisher."""

_FEW_US = st.integers(0, 6)
_DELIVERY = st.tuples(
    st.integers(0, 99),
    st.sampled_from(RUNS),
    _FEW_US,
    st.sampled_from((*VERDICTS, "ack", "ack")),
    st.one_of(st.none(), st.tuples(_FEW_US, _FEW_US)),
    st.one_of(st.none(), _FEW_US),
    st.sampled_from(["s", "s", "t", None]),
    st.integers(1, 4),
)
"""Message, member, time since the delivery before, verdict, time until the call and its
duration, time until it was settled, and session and number in mode Sessions."""


@st.composite
def journals(
    draw: st.DrawFn,
    *,
    modes: tuple[str, ...] = MODES,
    publishers: tuple[str, ...] = ("p", "q"),
    keys: tuple[str | None, ...] = (*HASH_OF_KEY,),
    groups: int = 2,
    messages: int = 8,
    deliveries: int = 12,
    odd: tuple[int, ...] = (),
) -> list[PublishedRecord | DeliveredRecord]:
    """Records of up to `groups` groups, in no order. Within an incarnation times never go back, as deliveries count.
    `odd`: of ODDITIES, what may happen to a message or to a delivery."""
    records: list[PublishedRecord | DeliveredRecord] = []
    one = st.tuples(st.sampled_from(publishers), st.sampled_from(keys), st.integers(0, 2))
    # The last: how often it is in the journal of its publisher.
    for number, mode in enumerate(draw(st.lists(st.sampled_from(modes), min_size=1, max_size=groups))):
        oddity = st.sampled_from((*odd, *[0] * 12))
        sent = _numbered(draw(st.lists(st.tuples(one, oddity), min_size=1, max_size=messages)))
        came = draw(st.lists(_DELIVERY, max_size=deliveries))
        group = f"g{number}"
        records += [
            published(group=group, at_us=at, **message)
            for at, (message, times) in enumerate(sent)
            for _ in range(times)
        ]
        delivered_ones = _deliveries(group, mode, [message for message, _ in sent], came)
        for each in delivered_ones:
            _alter(each, draw(oddity))
        records += delivered_ones
        if COPIED in odd and delivered_ones:
            records += draw(st.lists(st.sampled_from(delivered_ones), max_size=3))
    return draw(st.permutations(records))


def _numbered(messages: list[tuple[tuple[str, str | None, int], int]]) -> list[tuple[dict[str, Any], int]]:
    """With `seq`, per publisher and hash. Two messages in a row are published at the same time."""
    counted: dict[tuple[str, int], int] = {}
    numbered = []
    for at, ((publisher, key, times), odd) in enumerate(messages):
        hash_ = 3 if odd == REHASHED else HASH_OF_KEY[key]
        seq = counted.get((publisher, hash_), -1) + (3 if odd == SKIPPED else 1)
        counted[publisher, hash_] = seq
        message = {"publisher": publisher, "key": key, "hash_": hash_, "seq": seq}
        numbered.append(({**message, "published_at_us": START_US + at // 2}, times))
    return numbered


def _alter(one: DeliveredRecord, odd: int) -> None:
    if odd == REKEYED:
        one.key = "k9" if one.key is None else None
    elif odd == RESIZED:
        one.body_bytes += 1
    elif odd == REROUTED:
        one.queue += 1


def _deliveries(
    group: str, mode: str, messages: list[dict[str, Any]], came: list[tuple[Any, ...]]
) -> list[DeliveredRecord]:
    now_us: dict[str, int] = {}
    records = []
    for number, (which, (member, run), wait_us, verdict, span, settling_us, session, sequence) in enumerate(
        came
    ):
        at_us = now_us[run] = now_us.get(run, 0) + wait_us
        one = delivered(
            **messages[which % len(messages)],
            at_us=at_us,
            member=member,
            incarnation=run,
            delivery=number,
            redelivered=which % 3 == 0,
            verdict=verdict,
            group=group,
            mode=None if mode == EXCLUSIVE else mode,
        )
        came_us = one.delivered_at_us
        one.started_at_us = None if span is None else came_us + span[0]
        one.finished_at_us = None if span is None else came_us + sum(span)
        one.settled_at_us = None if settling_us is None else came_us + settling_us
        if mode == SESSIONS:
            one.session, one.sequence = session, None if session is None else sequence
        records.append(one)
    return records
