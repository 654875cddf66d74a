"""The application of the soak: answers every message it is given, slowly while a file tells it to be slow.

`lbg consume … -- python -m bench.soak_app SLOW_FILE`: one NDJSON message a line in, one verdict a line out.
While SLOW_FILE exists, its content is the delay in seconds before each verdict.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path


def main() -> None:
    slow_file = Path(sys.argv[1])
    for line in sys.stdin:
        message = json.loads(line)
        with contextlib.suppress(FileNotFoundError, ValueError):
            time.sleep(float(slow_file.read_text()))
        sys.stdout.write(json.dumps({"id": message["id"], "verdict": "ack"}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
