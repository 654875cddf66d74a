"""Peers by their address: names escaped for logs, one log line a minute, fair places, descriptors.

What a peer sends is written into logs through `printable`, and what a peer can cause any number of times through a
`PeerLog`. Nothing here trusts an address further than that: it separates those who ask too much from the others.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import ssl
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

NAME_MAX_CHARS: Final = 300
_NETWORK_BITS = 64
"""Of IPv6: one host has as many addresses as it likes in its network (RFC 4291, section 2.5.1)."""


def printable(text: object, *, max_chars: int | None = NAME_MAX_CHARS) -> str:
    """Text from outside for a log line: what cannot be printed is escaped as by `repr`, and a long text is cut.

    A line end in it would begin a line of its own, which a reader of the log takes for the process's.
    """
    line = str(text)
    if max_chars is not None and len(line) > max_chars:
        line = f"{line[:max_chars]}…"
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)


_LISTEN_REMEDIES = {
    errno.EADDRINUSE: "another process listens there: end it, or choose another port",
    errno.EADDRNOTAVAIL: "this machine has no such address: choose one of its own",
    errno.EACCES: "ports below 1024 take a privilege: choose a higher one",
}


def system_reason(error: BaseException) -> str:
    """The system's words for an error of a connection, in place of which asyncio has a sentence of its own."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):  # its number is OpenSSL's
        return f"TLS: {getattr(error, 'reason', None) or error}"
    if isinstance(error, OSError):
        words = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        return words or str(error) or type(error).__name__
    return str(error) or type(error).__name__


def listen_reason(error: OSError) -> str:
    """The reason for which an address cannot be listened on, and what to do."""
    reason = system_reason(error)
    remedy = _LISTEN_REMEDIES.get(error.errno or 0)
    return reason if remedy is None else f"{reason} ({remedy})"


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """The address that a peer is counted by: of IPv6 its /64, of an IPv4 address in IPv6 the IPv4 address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if parsed.is_loopback:
        return str(parsed)
    return str(ip_network((int(parsed) >> _NETWORK_BITS << _NETWORK_BITS, _NETWORK_BITS)))


def is_of_here(url: str) -> bool:
    """True if its host is this machine by name or address."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    name = host.removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761, section 6.3
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(slots=True)
class _Window:
    ends_at: float
    more: int = 0
    last: str = ""


class PeerLines:
    """Lines about peers: the first of an address at once, and those of each minute after it as one with a count.

    Addresses beyond `addresses_max` share the lines of one, so that nobody fills the log by having many.
    """

    OTHERS: Final = "other addresses"

    def __init__(self, *, window_s: float = 60.0, addresses_max: int = 100) -> None:
        self._window_s = window_s
        self._addresses_max = addresses_max
        self._windows: dict[str, _Window] = {}

    @property
    def next_at(self) -> float | None:
        """Time of the next count; None if none is open."""
        return min((window.ends_at for window in self._windows.values()), default=None)

    def note(self, address: str, line: str, now: float) -> str | None:
        """The line to log now; None if it is counted."""
        if address not in self._windows and len(self._windows) >= self._addresses_max:
            address = self.OTHERS
        window = self._windows.get(address)
        if window is None:
            self._windows[address] = _Window(now + self._window_s)
            return line
        window.more += 1
        window.last = line
        return None

    def due(self, now: float) -> list[str]:
        """The counts of the windows that have ended."""
        lines: list[str] = []
        for address, window in list(self._windows.items()):
            if window.ends_at > now:
                continue
            if window.more:
                lines.append(self._count(address, window))
                self._windows[address] = _Window(now + self._window_s)
            else:
                del self._windows[address]
        return lines

    def rest(self) -> list[str]:
        """The counts of the windows that are open, which are closed by that."""
        windows, self._windows = self._windows, {}
        return [self._count(address, window) for address, window in windows.items() if window.more]

    def _count(self, address: str, window: _Window) -> str:
        return f"{address}: {window.more} more in {self._window_s:g} s, the last: {window.last}"


class PeerLog:
    """`PeerLines` on a logger and the running loop's clock."""

    def __init__(self, log: logging.Logger, lines: PeerLines | None = None) -> None:
        self._log = log
        self._lines = lines or PeerLines()
        self._timer: asyncio.TimerHandle | None = None

    def warn(self, address: str, line: str, *, error: BaseException | None = None) -> None:
        """Log the line, with the traceback of an error, or count it."""
        loop = asyncio.get_running_loop()
        first = self._lines.note(address, line, loop.time())
        if first is not None:
            self._log.warning("%s", first, exc_info=error)
        if self._timer is None:
            self._wait(loop)

    def close(self) -> None:
        """Log what was counted, and wait for nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for line in self._lines.rest():
            self._log.warning("%s", line)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        at = self._lines.next_at
        self._timer = None if at is None else loop.call_at(at, self._end_windows, loop)

    def _end_windows(self, loop: asyncio.AbstractEventLoop) -> None:
        for line in self._lines.due(loop.time()):
            self._log.warning("%s", line)
        self._wait(loop)


_DESCRIPTORS_WANTED: Final = 16384


def descriptors() -> int:
    """File descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else _DESCRIPTORS_WANTED


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors, as far as the hard limit allows: many systems give a process 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


_OUT_OF_DESCRIPTORS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


def log_accept_errors(loop: asyncio.AbstractEventLoop, log: PeerLog) -> None:
    """Have the loop report connections that it cannot accept as one line a minute.

    asyncio reports each with a traceback, and as many in one turn as its backlog has places.
    """

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _OUT_OF_DESCRIPTORS and "socket" in context:
            log.warn("accept", f"connections cannot be accepted: {error.strerror}")
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)


_TokenT = TypeVar("_TokenT", bound=Hashable)


class FairPlaces(Generic[_TokenT]):
    """Places that peers occupy: at most so many for an address, and so many in all.

    When all are occupied, a newcomer gets the oldest place of the address that has most of them. Whoever has few places
    is therefore served, however many another occupies.
    """

    def __init__(self, *, in_all: int, per_address: int) -> None:
        self._in_all = in_all
        self._per_address = per_address
        self._places: dict[str, dict[_TokenT, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, address: str, token: _TokenT) -> tuple[bool, _TokenT | None]:
        """Returns whether the newcomer has a place, and the token whose place it was, if there was one."""
        network = network_of(address)
        held = len(self._places.get(network, ()))
        if held >= self._per_address:
            return False, None
        loser: _TokenT | None = None
        if self._count >= self._in_all:
            heaviest = max(self._places, key=lambda one: len(self._places[one]))
            if held and held + 1 > len(self._places[heaviest]):
                return False, None
            loser = next(iter(self._places[heaviest]))
            self._remove(heaviest, loser)
        self._places.setdefault(network, {})[token] = None
        self._count += 1
        return True, loser

    def leave(self, address: str, token: _TokenT) -> None:
        """The place is free; nothing happens to who has none."""
        network = network_of(address)
        if token in self._places.get(network, ()):
            self._remove(network, token)

    def _remove(self, network: str, token: _TokenT) -> None:
        places = self._places[network]
        del places[token]
        self._count -= 1
        if not places:
            del self._places[network]
