"""Threads in which the event loop looks names up. Nothing can interrupt them, and Python waits for them before it ends:
where no name server answers, that takes as long as /etc/resolv.conf says (resolv.conf(5): 5 s and 2 attempts for each
server and each name of the search list), which is longer than Kubernetes waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

_PREFIX = "lbg-lookup"
_IDLE_ENDS_WITHIN_S = 0.5


def look_up_in_own_threads(loop: asyncio.AbstractEventLoop) -> ThreadPoolExecutor:
    """The executor of the loop from now on."""
    executor = ThreadPoolExecutor(thread_name_prefix=_PREFIX)
    loop.set_default_executor(executor)
    return executor


def end_threads(executor: ThreadPoolExecutor) -> bool:
    """Returns whether all have ended."""
    executor.shutdown(wait=False, cancel_futures=True)
    until = time.monotonic() + _IDLE_ENDS_WITHIN_S
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(_PREFIX)]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def exit_at_once(status: int) -> None:
    """Everything is done but for a look-up that nobody waits for: end without it."""
    logging.shutdown()
    os._exit(status)
