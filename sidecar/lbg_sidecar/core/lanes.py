"""Lanes: the messages of a key one after another, different keys at the same time.

All attachments of a member share one `concurrency`. The caller takes calls with `take` and must report
the end of each, with `finish`, `delay`, `await_confirm` or `discard`, however the call ended:
a call that was aborted holds its slot, and its lane, until it has really ended. So no two calls of one lane
overlap inside a member, not even across a lost channel.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Hashable, Iterable

from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome


class Lanes:
    def __init__(self, *, concurrency: int) -> None:
        self.concurrency = concurrency
        self.running = 0
        self.held: dict[InFlight, None] = {}
        """Messages that were taken, and are not called until `let_go`."""
        self._rota: deque[Attachment] = deque()  # attachments with something ready, each once
        self._delayed: list[tuple[float, int, InFlight]] = []
        self._delays = 0
        # A lane whose aborted call has not ended yet, and what came for it through a newer attachment.
        self._lingering: dict[tuple[int, Hashable], list[InFlight]] = {}

    def admit(self, attachment: Attachment, arrivals: Iterable[InFlight]) -> None:
        """Queue deliveries in the order they came. A delivery with lane None is in no order."""
        if attachment.closed:
            return
        lanes = attachment.lanes
        ready = attachment.shelved if attachment.paused else attachment.ready
        for in_flight in arrivals:
            lane = in_flight.lane
            if lane is None:
                ready.append(in_flight)
            elif lane not in lanes:
                lanes[lane] = None
                ready.append(in_flight)
            else:
                waiting = lanes[lane]
                if waiting is None:
                    lanes[lane] = deque((in_flight,))
                else:
                    waiting.append(in_flight)
        self._list(attachment)

    def take(self) -> InFlight | None:
        """The next message to hand to the application, or None when none may start now."""
        rota = self._rota
        while rota and self.running < self.concurrency:
            attachment = rota[0]
            ready = attachment.ready
            if not ready:
                rota.popleft()
                attachment.listed = False
                continue
            rota.rotate(-1)
            in_flight = ready.popleft()
            if self._lingering and in_flight.lane is not None:
                shelf = self._lingering.get((attachment.queue, in_flight.lane))
                if shelf is not None:
                    shelf.append(in_flight)
                    continue
            attachment.running[in_flight] = None
            if in_flight.tag > attachment.highest:
                attachment.highest = in_flight.tag
            self.running += 1
            return in_flight
        return None

    def put_back(self, in_flight: InFlight) -> None:
        """Undoes the last `take`: it is the next again."""
        self._leave(in_flight)
        attachment = in_flight.attachment
        attachment.ready.appendleft(in_flight)
        self._rota.rotate(1)

    @property
    def available(self) -> bool:
        """True if `take` would probably return a call."""
        return bool(self._rota) and self.running < self.concurrency

    def finish(self, in_flight: InFlight) -> None:
        """Ends the call of a message that is done: its lane goes on."""
        self._leave(in_flight)
        self._advance(in_flight)

    def delay(self, in_flight: InFlight, due: float) -> None:
        """The call ended and is to be made again at `due`; the lane waits until then."""
        self._leave(in_flight)
        if not in_flight.attachment.closed:
            self._delays += 1
            heapq.heappush(self._delayed, (due, self._delays, in_flight))

    def await_confirm(self, in_flight: InFlight, outcome: Outcome = Outcome.DEAD) -> None:
        """The call ended; the lane waits until `confirmed`, when it has this outcome. Frees the slot."""
        self._leave(in_flight)
        if not in_flight.attachment.closed:
            in_flight.attachment.refused[in_flight] = outcome

    def await_confirm_waiting(self, in_flight: InFlight) -> None:
        """The same for a message that does not run: the head of its lane in an open attachment, wherever it waits."""
        attachment = in_flight.attachment
        self.held.pop(in_flight, None)
        self._delayed = [entry for entry in self._delayed if entry[2] is not in_flight]
        heapq.heapify(self._delayed)
        shelves = (attachment.ready, attachment.shelved, *self._lingering.values())
        for shelf in shelves:
            if in_flight in shelf:
                shelf.remove(in_flight)
        attachment.refused[in_flight] = Outcome.DEAD

    def confirmed(self, in_flight: InFlight) -> None:
        if not in_flight.attachment.closed:
            del in_flight.attachment.refused[in_flight]
            self._advance(in_flight)

    def pause(self, attachment: Attachment) -> None:
        """Start nothing newer than what was started already; what is older may still start.

        Only so can everything that was started be acknowledged with the rest before the channel closes: a message
        that waits in its lane is a gap in front of what was delivered after it and is done.
        """
        attachment.paused = True
        attachment.limit = attachment.highest
        ready, attachment.ready = attachment.ready, deque()
        for in_flight in ready:
            self._make_ready(in_flight)
        if attachment.beside is not None:
            self.pause(attachment.beside)

    def hold(self, attachment: Attachment) -> None:
        """Start nothing until `resume`."""
        attachment.paused = True
        self.halt(attachment)

    def halt(self, attachment: Attachment) -> None:
        """Stops all starts of a paused attachment."""
        attachment.limit = 0
        attachment.shelved.extend(attachment.ready)
        attachment.ready.clear()
        if attachment.beside is not None:
            self.hold(attachment.beside)

    def resume(self, attachment: Attachment) -> None:
        attachment.paused = False
        attachment.ready.extend(attachment.shelved)
        attachment.shelved.clear()
        self._list(attachment)
        if attachment.beside is not None:
            self.resume(attachment.beside)

    def gate(self, attachment: Attachment) -> None:
        """Start nothing of it until each of its gates is open."""
        attachment.gates += 1

    def open_gate(self, attachment: Attachment) -> None:
        """Starts what came to a gated attachment, when this is its last gate."""
        attachment.gates -= 1
        self._list(attachment)

    def hold_back(self, in_flight: InFlight) -> None:
        """A message that was taken is not called: its lane waits until `let_go`."""
        self._leave(in_flight)
        self.held[in_flight] = None

    def let_go(self, in_flight: InFlight) -> None:
        del self.held[in_flight]
        self._make_ready(in_flight)

    def close(self, attachment: Attachment) -> list[InFlight]:
        """Forget what this attachment holds. Returns the calls that still run: abort them, then report their end."""
        attachment.closed = True
        running = list(attachment.running)
        for in_flight in running:
            if in_flight.lane is not None:
                self._lingering.setdefault((attachment.queue, in_flight.lane), [])
        attachment.ready.clear()
        attachment.shelved.clear()
        attachment.lanes.clear()
        for in_flight in [one for one in self.held if one.attachment is attachment]:
            del self.held[in_flight]
        return running

    def withdraw(self, attachment: Attachment, withdrawn: Collection[InFlight]) -> None:
        """Removes messages of an open attachment that neither run nor wait for a confirm. Messages that waited behind
        them go on."""
        heads = [
            in_flight for in_flight in (*attachment.ready, *attachment.shelved) if in_flight in withdrawn
        ]
        attachment.ready = deque(in_flight for in_flight in attachment.ready if in_flight not in withdrawn)
        attachment.shelved = deque(
            in_flight for in_flight in attachment.shelved if in_flight not in withdrawn
        )
        heads += [in_flight for _, _, in_flight in self._delayed if in_flight in withdrawn]
        self._delayed = [entry for entry in self._delayed if entry[2] not in withdrawn]
        heapq.heapify(self._delayed)
        for shelf in self._lingering.values():
            heads += [in_flight for in_flight in shelf if in_flight in withdrawn]
            shelf[:] = [in_flight for in_flight in shelf if in_flight not in withdrawn]
        for lane, waiting in attachment.lanes.items():
            if waiting is not None:
                attachment.lanes[lane] = deque(
                    in_flight for in_flight in waiting if in_flight not in withdrawn
                )
        for in_flight in heads:
            self._advance(in_flight)

    def wake(self, now: float) -> None:
        """Make ready what was delayed until `now`."""
        delayed = self._delayed
        while delayed and delayed[0][0] <= now:
            in_flight = heapq.heappop(delayed)[2]
            if not in_flight.attachment.closed:
                self._make_ready(in_flight)

    def next_due(self) -> float | None:
        while self._delayed and self._delayed[0][2].attachment.closed:
            heapq.heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    @property
    def blocked(self) -> int:
        """Lanes that wait for a retry."""
        return sum(not in_flight.attachment.closed for _, _, in_flight in self._delayed)

    def _leave(self, in_flight: InFlight) -> None:
        self.running -= 1
        attachment = in_flight.attachment
        del attachment.running[in_flight]
        if attachment.closed and in_flight.lane is not None:
            for waiting in self._lingering.pop((attachment.queue, in_flight.lane), ()):
                if not waiting.attachment.closed:
                    self._make_ready(waiting)

    def _advance(self, in_flight: InFlight) -> None:
        attachment, lane = in_flight.attachment, in_flight.lane
        if lane is None or attachment.closed:
            return
        waiting = attachment.lanes[lane]
        if waiting:
            self._make_ready(waiting.popleft())
        else:
            del attachment.lanes[lane]

    def _make_ready(self, in_flight: InFlight) -> None:
        attachment = in_flight.attachment
        if attachment.paused and in_flight.tag > attachment.limit:
            attachment.shelved.append(in_flight)
            return
        attachment.ready.append(in_flight)
        self._list(attachment)

    def _list(self, attachment: Attachment) -> None:
        if not attachment.listed and attachment.ready and not attachment.gates:
            attachment.listed = True
            self._rota.append(attachment)
