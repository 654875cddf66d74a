"""Feeds journals to `lbg pipeline validate --stream` at a rate.

`python -m bench.pipeline.live_journals DIR --rate 100000`.
Each second of the journals' time one file of each writer is closed, by rename, as writers do. What is told every few
seconds: records fed and records judged, resident memory of the JVM and of all Python workers, and what the stream
remembers, from its own progress. Rates are sustained if what is fed and not judged stays where the watermark puts it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lbg_core.group import DeliveredRecord, PublishedRecord, encode

START_US = 1_700_000_000_000_000
HASHES, QUEUES, KEYS, MEMBERS = 256, 16, 80 * 256, 4
_PROGRESS = re.compile(r"published (\d+), judged (\d+), held (\d+).* state ([\d.]+) MB")


def _second(number: int, messages: int) -> Iterator[tuple[str, str]]:
    """Names and texts of the files of a second: a key has one hash, a hash one member, numbers go on."""
    lines: dict[str, list[str]] = {"published-p": [], **{f"member-{member}": [] for member in range(MEMBERS)}}
    for row in range(messages):
        which = number * messages + row
        key = which % KEYS
        hash_, seq = key % HASHES, which // KEYS * (KEYS // HASHES) + key // HASHES
        at_us = START_US + number * 1_000_000 + row * 1_000_000 // messages
        name, queue, member = f"k{key}", hash_ % QUEUES, hash_ % MEMBERS
        lines["published-p"].append(
            encode(PublishedRecord("p", name, hash_, queue, seq, at_us, at_us + 900, 0, "g", 100))
        )
        came = at_us + 1000
        lines[f"member-{member}"].append(
            encode(
                DeliveredRecord(
                    publisher="p",
                    key=name,
                    hash_=hash_,
                    queue=queue,
                    seq=seq,
                    published_at_us=at_us,
                    member=member,
                    member_name=f"m{member}",
                    incarnation=f"i{member}",
                    delivery=which,
                    redelivered=False,
                    delivered_at_us=came,
                    started_at_us=came + 100,
                    finished_at_us=came + 200,
                    settled_at_us=came + 300,
                    attempts=1,
                    verdict="ack",
                    session=None,
                    sequence=None,
                    group="g",
                    body_bytes=100,
                )
            )
        )
    for name, of_file in lines.items():
        yield f"{name}-{number:06}.jsonl", "".join(of_file)


def _resident_mb(root: int) -> tuple[float, float]:
    """Of the JVM and of all Python processes under `root`."""
    parents, names, resident = {}, {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status = dict(
                line.split(":\t", 1) for line in (path / "status").read_text().splitlines() if ":\t" in line
            )
        except OSError:
            continue
        process = int(path.name)
        parents[process], names[process] = int(status["PPid"]), status["Name"].strip()
        resident[process] = int(status.get("VmRSS", "0 kB").split()[0]) / 1024
    under = {root}
    while more := {process for process, parent in parents.items() if parent in under} - under:
        under |= more
    jvm = sum(resident[process] for process in under if names.get(process) == "java")
    return jvm, sum(resident.get(process, 0) for process in under) - jvm


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rate", type=int, default=100_000, help="records a second, half of them published")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--watermark", type=float, default=20.0)
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    made, journal = given.directory / "made", given.directory / "journal"
    made.mkdir(parents=True)
    journal.mkdir()
    for second in range(given.seconds):
        for name, text in _second(second, given.rate // 2):
            (made / name).write_text(text)
    print(f"made {given.seconds * given.rate} records", flush=True)
    log = given.directory / "progress.log"
    command = [sys.executable, "-m", "lbgroup", "pipeline", "validate", "--stream", "--journal", str(journal)]
    command += ["--out", str(given.directory / "out"), "--checkpoint", str(given.directory / "checkpoint")]
    command += ["--master", given.master, "--watermark", str(given.watermark), "--trigger", "5"]
    with log.open("w") as told, subprocess.Popen(command, stderr=told, stdout=told) as stream:
        began = time.monotonic()
        for second in range(given.seconds):
            for path in sorted(made.glob(f"*-{second:06}.jsonl")):
                path.touch()
                path.rename(journal / path.name)
            if second % 5 == 4:
                _tell(second + 1, given.rate, log, stream.pid)
            time.sleep(max(0.0, began + second + 1 - time.monotonic()))
        while _progress(log)[0] < given.seconds * given.rate // 2 and stream.poll() is None:
            time.sleep(1)
            _tell(round(time.monotonic() - began), 0, log, stream.pid)
        took_s = time.monotonic() - began
        stream.terminate()
        print(f"{given.seconds * given.rate / took_s:.0f} records/s, exit status {stream.wait()}")


def _progress(log: Path) -> tuple[int, int, int, float]:
    found = _PROGRESS.findall(log.read_text())
    published, judged, held, remembered = found[-1] if found else (0, 0, 0, 0)
    return int(published), int(judged), int(held), float(remembered)


def _tell(second: int, rate: int, log: Path, process: int) -> None:
    published, judged, held, remembered_mb = _progress(log)
    jvm_mb, python_mb = _resident_mb(process)
    print(
        f"{second:5} s: fed {second * rate if rate else 'all'}, read {published} published, judged {judged}, "
        f"held back {held}, remembers {remembered_mb} MB, JVM {jvm_mb:.0f} MB, Python {python_mb:.0f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
