"""Whole processes, Spark's start included: `lbg pipeline validate` and a short script of DuckDB, in turns.

`python -m bench.pipeline.whole --records 1000000 --rounds 5`; `--directory DIR` keeps the journal, or takes its own.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.measurement import Measurement
from testing.pipeline.journal_generator import generate


def main() -> None:
    parser = Measurement(__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path)
    asked = parser.asked()
    with tempfile.TemporaryDirectory(prefix="lbg-bench-pipeline-") as scratch:
        directory = asked.directory or Path(scratch, "made")
        if not (directory / "journal").exists():
            generate(directory, asked.records)
        journal = str(directory / "journal")
        validate = ["lbgroup", "pipeline", "validate", "--journal", journal, "--out", f"{scratch}/out"]
        contenders = {"lbg pipeline validate": validate, "DuckDB": ["bench.pipeline.short_script", journal]}
        took_s: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(asked.rounds + 1):
            for name, module in contenders.items():
                begun = time.monotonic()
                subprocess.run(
                    [sys.executable, "-m", *module], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                if number:  # the first round brings all into memory
                    took_s[name].append(time.monotonic() - begun)
    print("| | s, median | least | most |\n|---|--:|--:|--:|")
    for name, all_s in took_s.items():
        print(f"| {name} | {statistics.median(all_s):.1f} | {min(all_s):.1f} | {max(all_s):.1f} |")
    ratios = [ours / theirs for ours, theirs in zip(*took_s.values(), strict=True)]
    print(f"\n{statistics.median(ratios):.2f} times DuckDB's time, median of {asked.rounds} rounds")


if __name__ == "__main__":
    main()
