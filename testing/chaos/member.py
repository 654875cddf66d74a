"""A member in a process of its own: `python -m testing.chaos.member '{"settings": {…}, "ledger": …, "mood": …}'`.

SIGTERM: leave and end with status 0. Status 3: it could not join, as a container that is started again says.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from lbg_core.admin.errors import ProvisioningError
from lbg_core.client import ClientError
from lbg_sidecar import IndexTaken, Member, MemberSettings
from testing.chaos.application import Application

COULD_NOT_JOIN = 3


async def run(told: dict[str, Any]) -> int:
    application = Application(Path(told["ledger"]), Path(told["mood"]))
    member = Member(MemberSettings(**told["settings"]), application)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, member.stop, "SIGTERM")
    try:
        async with member:
            await member.run()
    except (ClientError, IndexTaken, ProvisioningError) as error:
        logging.warning("could not join: %s", error)
        return COULD_NOT_JOIN
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    sys.exit(asyncio.run(run(json.loads(sys.argv[1]))))
