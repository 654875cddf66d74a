"""Texts, fields and commands of problems."""

from __future__ import annotations

import json
from string import Formatter

import pytest

from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject, text_of, worst_first

BAIT = "w1 `lbg group pause payments`"
FIGURES: dict[str, object] = {
    "parts": ("users", "bindings"),
    "cause": "refused",
    "version": 9,
    "former": 2,
    "queues": 4,
    "within_s": 9.0,
    "attribute": "type",
    "assignment": "Static",
    "observed": None,
    "created": "topic",
    "routing_key": "a",
    "since": "2026-01-01 23:49 UTC",
    "streams": 2,
    "unrouted": 3,
    "count": 2,
    "percent": 99,
    "policy": "policy 'p'",
    "settings": {"max-length": 5, "overflow": "drop-head"},
    "is_more": True,
    "reason": None,
    "until": "2026-01-01 00:00:00 UTC",
    "progress": "3 of 7 parts",
    "is_next": True,
    "died": "m2",
    "attempts": 0,
    "drain_s": 24.0,
    "left": ("a", "b"),
    "partition": 1,
    "ready": 2,
    "unacked": 0,
    "consumers": 1,
    "rebalance": "HoldDown",
    "index": 3,
    "is_late": True,
    "is_foreign": True,
    "hashes": 1,
    "hashes_all": 4,
    "hashes_moved": 3,
    "hashes_staged": 0,
    "messages_held": 1,
    "messages_surplus": 0,
    "phase": "moving",
    "state": "waiting",
    "queues_moved": 1,
    "messages": 3,
    "bindings": 1,
    "prefix": "p",
    "diff": ("a", "b"),
    "remedy": "wait",
    "session": "s",
    "sessions": (),
    "partitions": 4,
    "number": 1,
    "keys_parked": "2 keys",
    "is_full": True,
    "rebalance_threshold_percent": 20,
    "max_clients": 3,
    "demand": 1.4,
    "factor": 1.4,
    "behind_s": 480.0,
    "behind": 2,
    "service_ms": 40.0,
    "others_ms": 10.0,
    "are_timed": True,
    "windows": ("10 (m1)", "100 (m0)"),
}
POLICIES = (
    Kind.MESSAGES_LOST,
    Kind.PARKED_KEYS_LOST,
    Kind.MESSAGES_REORDERED,
    Kind.QUEUES_NARROWED,
    Kind.QUEUES_PAUSE,
)
SUBJECT = Subject("orders", "lbg.orders.q.1", "lbg.orders", (BAIT,), (BAIT, "k"), "p-1", "app")


def problem_of(kind: Kind, subject: Subject = SUBJECT) -> Problem:
    return Problem(kind, subject, FIGURES | ({"queues": ("a", "b", "c")} if kind in POLICIES else {}))


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_line_for_people_and_the_same_as_fields(kind: Kind) -> None:
    problem = problem_of(kind)
    line, fields = text_of(problem), json.loads(json.dumps(problem.to_json()))
    assert "{" not in line
    assert line.isprintable()
    assert line.startswith(fields["text"])
    assert fields["kind"] == kind.word
    assert len(fields["remedy"]["commands"] if fields["remedy"] else ()) == kind.remedy.count("`lbg ")


def test_the_worst_comes_first_and_those_of_one_severity_stay_as_they_come() -> None:
    kinds = (Kind.PART_UNKNOWN, Kind.QUEUE_DIFFERS, Kind.MEMBER_OVERLOADED, Kind.QUEUE_FULL, Kind.UNROUTED)
    full = [problem_of(Kind.QUEUE_FULL, Subject("orders", f"q.{number}")) for number in range(3)]
    ordered = worst_first([*map(problem_of, kinds), *full])
    assert [one.kind.severity.word for one in ordered] == [
        *("AtRisk", "Stands", "Stands", "Stands", "Stands", "Late", "Differs", "Note")
    ]
    assert [one.subject.queue for one in ordered[1:5]] == ["lbg.orders.q.1", "q.0", "q.1", "q.2"]
    assert problem_of(Kind.UNROUTED).to_json()["severity"] == "AtRisk"


@pytest.mark.parametrize("kind", Kind)
def test_a_command_has_words_of_its_kind_alone(kind: Kind) -> None:
    remedy = problem_of(kind).remedy
    for command in () if remedy is None else remedy.commands:
        assert "payments" not in " ".join(command)


def test_a_name_is_one_word_of_a_command_and_no_option() -> None:
    for message, words, shown in (
        ("p-1", ("p-1",), "p-1"),
        ("a; reboot", ("a; reboot",), "'a; reboot'"),
        ("--help", ("--", "--help"), "-- --help"),
        ("it's", ("it's",), "'it'\"'\"'s'"),
    ):
        subject = Subject("orders", "lbg.orders.q.1", members=("m",), keys=("k",), message=message)
        problem = problem_of(Kind.MESSAGES_POISONED, subject)
        assert problem.remedy is not None
        assert problem.remedy.commands == (("lbg", "group", "skip", "orders", *words),)
        assert text_of(problem).endswith(f"; `lbg group skip orders {shown}` skips the oldest")


def test_a_message_whose_id_is_not_reported_has_no_remedy() -> None:
    assert problem_of(Kind.MESSAGES_POISONED, Subject("orders", "lbg.orders.q.1")).remedy is None


def test_what_cannot_be_printed_is_escaped_and_stays_on_one_line() -> None:
    subject = Subject("orders", members=("a\n! orders: \u202eb",))
    assert text_of(problem_of(Kind.PAUSE_NOT_FOLLOWED, subject)).startswith("a\\n! orders: \\u202eb consume")
    poisoned = problem_of(Kind.MESSAGES_POISONED, Subject("orders", "q", message="a\x1b[2J\nb"))
    assert "`lbg group skip orders 'a\\x1b[2J\\nb'`" in text_of(poisoned)


def test_a_problem_with_other_figures_is_the_same_one() -> None:
    less, more = (Problem(Kind.QUEUE_FULL, SUBJECT, {"percent": percent}) for percent in (90, 99))
    assert (less.kind, less.subject) == (more.kind, more.subject)
    assert hash(less) == hash(more)
    assert less != more


def test_of_long_lists_a_few_names_are_shown() -> None:
    subject = Subject("orders", members=tuple("abcdefg"))
    assert text_of(problem_of(Kind.RESUME_NOT_FOLLOWED, subject)).startswith(
        "a, b, c, d, e and 2 more are paused"
    )


def test_the_causes_of_a_problem_are_in_its_line_and_in_its_fields() -> None:
    counts = {"ready": 1, "unacked": 0}
    full = [Problem(Kind.QUEUE_NOT_EMPTY, Subject("orders", f"q.{number}"), counts) for number in range(7)]
    problem = Problem(
        Kind.NOT_DRAINED,
        Subject("orders"),
        {"within_s": 9.0},
        (full[0], Problem(Kind.GROUP_PAUSED, Subject("orders")), *full[1:]),
    )
    assert text_of(problem) == (
        "group 'orders' was not drained within 9 s, nothing is changed and publishers go on: "
        + "".join(f"q.{number} has 1 ready, 0 unacknowledged; " for number in range(5))
        + "2 more like the last; members process nothing: `lbg group resume orders` resumes them; see what its "
        "members wait for (`lbg group show orders`), or give it more --timeout"
    )
    causes = json.loads(json.dumps(problem.to_json()))["causes"]
    assert [one["kind"] for one in causes[:2]] == ["QueueNotEmpty", "GroupPaused"]
    assert (causes[0]["subject"]["queue"], causes[0]["figures"]) == ("q.0", counts)


def test_the_test_has_every_figure_and_no_other() -> None:
    templates = [template for kind in Kind for template in (kind.sentence, kind.remedy)]
    templates += [spec for one in templates for _, _, spec, _ in Formatter().parse(one) if spec]
    named = {name for one in templates for _, name, _, _ in Formatter().parse(one) if name}
    assert named - {*Subject.__slots__, "causes"} == FIGURES.keys()
