"""The whole job, from a journal to the files of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbg_core.group import DeliveredRecord, hash_of, queue_of
from lbg_pipeline.errors import PlanRefused
from lbg_pipeline.plan.manifest import read_manifest
from testing.journal.rows import START_US, delivered, write_journal, write_lines
from testing.kubernetes.manifests import Manifest, group_manifest
from testing.output_documents import checked

from .test_patches import require_acceptable


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Question, Report, SparkSession, Wishes, answer
    from pyspark.sql import SparkSession

    from lbg_pipeline.plan.job import Question, Report, answer
    from lbg_pipeline.plan.recommend import Wishes


pytestmark = pytest.mark.slow

HASHES, QUEUES = 128, 2
SECONDS = 60
SCALED = {
    "groupName": "shop-orders",
    "queues": {"count": QUEUES},
    "scaling": {"minReplicas": 1, "maxReplicas": 2, "targetLag": 100},
}


def stamped(key: str, number: int, *, at_s: float, service_s: float, **others: Any) -> DeliveredRecord:
    hash_ = hash_of(key, HASHES)
    at_us = int(at_s * 1e6)
    started_us = START_US + at_us + 500
    told = {
        "key": key,
        "hash_": hash_,
        "queue": queue_of(hash_, QUEUES),
        "published_at_us": START_US + at_us,
        "started_at_us": started_us,
        "finished_at_us": started_us + int(service_s * 1e6),
        "settled_at_us": started_us + int(service_s * 1e6) + 10,
        "group": "shop-orders",
    }
    return delivered(number, at_us=at_us, **{**told, **others})


def a_minute(**others: Any) -> Iterator[DeliveredRecord]:
    """40 keys of 0.05 calls at once each, and one that asks for 1.5."""
    number = 0
    for second in range(SECONDS):
        for key in range(40):
            yield stamped(f"key-{key}", number, at_s=second, service_s=0.05, **others)
            number += 1
        yield stamped("hot", number, at_s=second + 1, service_s=1.5, **others)
        number += 1


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_journal(tmp_path_factory.mktemp("journal"), a_minute())
    write_lines(directory / "broken.jsonl", ["no record\n"])
    return directory


def planned(
    spark: SparkSession, journal: Path, out: Path, manifest: Manifest | None, **wishes: Any
) -> Report:
    declared = None
    if manifest is not None:
        file = out.parent / "group.yaml"
        file.write_text(yaml.safe_dump(manifest))
        declared = read_manifest(file, group=None)
    question = Question(journals=(str(journal),), declared=declared, wishes=Wishes(**wishes))
    return answer(spark, question, str(out))


def test_a_journal_and_a_manifest_become_a_plan(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    out, manifest = tmp_path / "out", group_manifest(SCALED)
    report = planned(spark, journal, out, manifest, concurrency=1)
    assert sorted(path.name for path in out.iterdir() if path.name[0] not in "._") == [
        "broken",
        "candidates",
        "hot_keys",
        "patch.yaml",
        "plan.json",
        "report.html",
    ]
    told = checked("pipeline plan", (out / "plan.json").read_text())
    assert told == report.document
    assert (told["group"], told["messages"], told["broken_lines"]) == ("shop-orders", 41 * SECONDS, 1)
    # 40 * 0.05 and the hot key, which can have no more than 1.
    assert told["load_mean"] == pytest.approx(3.0, rel=0.02)
    assert told["existing"]["members"] == 2
    assert told["existing"]["utilisation_peak"] > 1
    # A member that has the hot key is always busy: 100 % is the least that there can be.
    assert not told["recommended"]["meets"]
    assert 1 <= told["recommended"]["utilisation_peak"] <= 1.06
    assert told["hot_keys"][0]["key"] == "hot"
    assert told["hot_keys"][0]["is_too_hot"]
    assert told["hot_keys"][0]["peak_load"] == pytest.approx(1.5, rel=0.02)
    patch = yaml.safe_load((out / "patch.yaml").read_text())
    assert patch == told["patch"]
    after = require_acceptable(manifest, patch)["spec"]
    assert after["queues"]["count"] == told["recommended"]["queue_count"] > QUEUES
    assert after["scaling"]["maxReplicas"] == told["recommended"]["members"]
    candidates = spark.read.parquet(str(out / "candidates")).collect()
    (best,) = [row for row in candidates if row["is_recommended"]]
    assert len(best["queue_loads_peak"]) == best["queue_count"]
    assert sum(best["member_loads_mean"]) == pytest.approx(told["load_mean"])
    assert [row for row in candidates if row["is_existing"]]
    hot = spark.read.parquet(str(out / "hot_keys")).first()
    assert hot is not None
    assert hot["key"] == "hot"
    page = (out / "report.html").read_text()
    assert "Plan for group shop-orders" in page
    assert "too hot for any split" in page
    text = "\n".join(report.lines)
    assert "key 'hot': too hot for any split; 1.5" in text
    assert "at the peak messages wait longer and longer" in text
    assert "lbg group repartition shop-orders --queues" in text
    assert "1 line is not a record" in text


def test_without_a_manifest_the_journal_tells_what_the_group_is(
    spark: SparkSession, journal: Path, tmp_path: Path
) -> None:
    report = planned(spark, journal, tmp_path / "out", None, hash_counts=(HASHES,), growth=2.0)
    assert report.document["hash_function"] == "crc32"
    assert report.document["load_mean"] == pytest.approx(5.0, rel=0.02)
    assert report.document["capacity_messages_per_second"] == pytest.approx(
        16e6 / report.document["service_time_us"]
    )
    assert any(line.startswith("at the peak one message in a hundred waits ") for line in report.lines)
    assert report.document["recommended"]["hash_count"] == HASHES
    # 5 calls at once are little for the 16 of a member.
    assert report.document["patch"] == {
        "spec": {"scaling": {"minReplicas": 1, "maxReplicas": 1, "targetDelay": "10s"}}
    }


def test_a_manifest_of_another_group_is_refused(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    manifest = group_manifest({**SCALED, "hash": {"count": 64, "function": "crc32"}})
    with pytest.raises(PlanRefused, match="the manifest is not of the group in the journals: there key '"):
        planned(spark, journal, tmp_path / "out", manifest)
    assert not (tmp_path / "out" / "plan.json").exists()


def test_message_groups_get_replicas_alone(spark: SparkSession, tmp_path: Path) -> None:
    journal = write_journal(tmp_path / "journal", a_minute(mode="MessageGroups", queue=0))
    report = planned(spark, journal, tmp_path / "out", None, concurrency=1)
    assert (report.document["mode"], report.document["recommended"]["members"]) == ("MessageGroups", 5)
    assert set(report.document["patch"]["spec"]) == {"scaling"}
    assert "has no number of queues" in report.lines[-2]
