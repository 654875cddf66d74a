"""`make bench`: every measurement, one after the other, each on a machine that does nothing else.

`python -m bench wire engines` runs only those. Each prints its table; docs/benchmarks.md quotes them.
"""

from __future__ import annotations

import subprocess
import sys

MEASUREMENTS = (
    "codec",
    "wire",
    "engines",
    "partitioned",
    "publish_group",
    "whole_path",
    "latency",
    "sidecar_latency",
    "push",
    "stream",
    "sidecar_memory",
    "survey",
    "message_groups",
    "comparison",
    "handoff",
    "sessions",
    "logins",
    "pipeline",
)


def main() -> int:
    chosen = sys.argv[1:] or MEASUREMENTS
    unknown = sorted(set(chosen) - set(MEASUREMENTS))
    if unknown:
        print(
            f"no such measurement: {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}", file=sys.stderr
        )
        return 2
    failed = []
    for name in chosen:
        print(f"\n## {name}\n", flush=True)
        command = [sys.executable, "-m", f"bench.{name}"]
        if subprocess.run(command, check=False).returncode != 0:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
