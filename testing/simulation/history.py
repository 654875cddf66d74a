"""One history: an installation, a plan of faults and operations, and time to recover."""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lbg_core.group import BY_LOAD, EXCLUSIVE, PARTITIONED, RABBITMQ, SESSIONS, STATIC, GroupSpec, Names
from testing.simulation import cluster_faults as _cluster_faults  # noqa: F401 (registers its faults)
from testing.simulation.application import Application, Chances
from testing.simulation.clock import Clock, Process, Stopped
from testing.simulation.cluster import Cluster
from testing.simulation.context import Setting
from testing.simulation.embedded import UNREAD_S, EmbeddedBroker
from testing.simulation.faults import KINDS, Fault, kinds_of, plan
from testing.simulation.judge import Judge
from testing.simulation.load_faults import SLOWNESS_MAX
from testing.simulation.member import SimMember
from testing.simulation.network import SILENCE_S, ClientEnd, Connection, frame_s
from testing.simulation.parking import Parkings
from testing.simulation.parking_faults import PARKING
from testing.simulation.publisher import SimPublisher
from testing.simulation.repartition import Repartitions

CALM_S = 150.0
"""For everything to be served after the last fault: two heartbeats until a lost connection is detected on both sides, a
freeze that may be as long again, a grace period, and retries."""


HASHES = 64
"""Of a group, unless it has more queues."""


class History:
    def __init__(
        self, seed: int, setting: Setting, *, faults: Sequence[Fault] | None = None, is_verbose: bool = False
    ) -> None:
        self.seed = seed
        self.setting = setting
        self.is_verbose = is_verbose
        self.random = random.Random(seed)
        self.clock = Clock()
        self.process = Process("history")
        self.is_calm = self.is_paused = False
        self.notes: list[tuple[float, str]] = []
        self.on_end: list[Callable[[], None]] = []
        self.grace_s = 20.0
        self.call_timeout_s = 30.0
        queues = setting.queues if setting.mode in (EXCLUSIVE, PARTITIONED) else 1
        self.spec = GroupSpec(
            name="g",
            hash_prefix="h",
            hash_count=max(HASHES, queues),
            queue_count=queues,
            queue_size_mb=1,
            max_clients=setting.members if setting.assignment == STATIC else None,
            mode=setting.mode,
            assignment=setting.assignment,
        )
        self.names = Names("g")
        self.judge = Judge(self)
        self.application = Application(self, Chances())
        self.parkings = Parkings(self)
        self.broker: EmbeddedBroker | Cluster = (
            Cluster(self, self.spec) if setting.engine == RABBITMQ else EmbeddedBroker(self, self.spec)
        )
        self.repartitions = Repartitions(self)
        self.members: list[SimMember] = []
        self._joined = 0
        self._sessions: set[str] = set()
        for _ in range(setting.members):
            self.join()
        self.publishers = [
            SimPublisher(self, f"p{number}", rate_hz=setting.rate_hz / setting.publishers)
            for number in range(setting.publishers)
        ]
        self._copy: Any = None
        self._states = {one.name: one.state.copied() for one in self.publishers}
        if faults is None:
            kinds = setting.kinds or kinds_of(setting)
            faults = plan(seed, kinds, seconds=setting.seconds, per_hour=setting.faults_per_hour)
        self.faults = faults
        self.is_undisturbed = all(one.kind in PARKING for one in faults)
        """Nothing fails but messages, and nobody is killed but administrators."""

    def run(self) -> list[str]:
        """Returns the violations: none, or those of one moment, with which the history ends. An exception, which would
        end a real process, is one."""
        logging.disable()
        try:
            self._run()
        except Stopped:
            pass
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}: {error or at.line}"
            self.note(f"VIOLATION: {text}")
            return [*self.judge.violations, text]
        finally:
            self.end()
            logging.disable(logging.NOTSET)
        return self.judge.violations

    def end(self) -> None:
        """Of a history that was not run to its end, too: tasks that wait are ended."""
        for callback in self.on_end:
            callback()

    def _run(self) -> None:
        for it in self.faults:
            self.clock.at(it.at_s, self.process, KINDS[it.kind][1], self, it)
        for minute in range(int(self.setting.seconds // 60)):
            self.clock.at(60.0 * minute + 30, self.process, self._copy_files)
        self.clock.run(self.setting.seconds)
        self._calm_down()
        if self.setting.has_parking:
            if not self.parkings.is_full:
                self._run_until(self._are_others_done)
            if not self.parkings.is_full:  # beyond its bounds keys block
                self.judge.parked()
            self.note("everything is repaired and released")
            self.parkings.finish()
        self._run_until(self._is_over)
        self.parkings.kill()
        self.judge.ends()

    def _run_until(self, is_over: Callable[[], bool]) -> None:
        end = self.clock.now + CALM_S
        while self.clock.now < end and not is_over():
            self.clock.run(self.clock.now + 5.0)

    def note(self, text: str) -> None:
        self.notes.append((self.clock.now, text))

    def timeline(self) -> str:
        return "\n".join(f"{at:10.3f}  {text}" for at, text in self.notes)

    def delay_s(self) -> float:
        return frame_s(self.random)

    def key_of(self, publisher: str, row: int) -> str:
        return f"{publisher}-k{row * 7919 % 104729 % self.setting.keys}"

    # Members

    def join(self, name: str | None = None) -> SimMember:
        if name is None:
            name = f"m{self._joined}"
            self._joined += 1
            if self.setting.assignment == BY_LOAD:
                self.application.slowness[name] = SLOWNESS_MAX ** self.random.random()
        self._sessions.add(name)
        self.members = [one for one in self.members if one.is_up]
        member = SimMember(self, self.application, name)
        self.members.append(member)
        return member

    def replace(self, member: SimMember, *, after_s: float) -> None:
        """It is killed, and another process of its name is started."""
        member.kill()
        self.clock.after(after_s, self.process, self.join, member.name)

    def member_of(self, client: ClientEnd) -> SimMember | None:
        return next((one for one in self.members if one.process is client.process), None)

    def frozen(self, connection: Connection, seconds: float) -> None:
        """The client of a connection does not read for so long."""
        process = connection.broker.process
        if seconds > UNREAD_S:
            self.clock.after(UNREAD_S, process, self.broker.unread, connection, True)
            self.clock.after(seconds, process, self.broker.unread, connection, False)
        if seconds > SILENCE_S:
            self.clock.after(SILENCE_S, process, connection._expire)

    def pause(self, is_paused: bool) -> None:
        self.is_paused = is_paused
        for member in self.members:
            self.clock.after(self.delay_s(), member.process, member.pause, is_paused)

    @property
    def parking_settings(self) -> dict[str, Any]:
        """Of members, for messages that fail."""
        if not self.setting.has_parking:
            return {"max_attempts": 5, "when_exhausted": "dead-letter"}
        return {
            "max_attempts": 2,
            "when_exhausted": "park",
            "park_max_keys": self.parkings.keys_max,
            "park_max_messages": self.parkings.messages_max,
        }

    # The broker

    @property
    def embedded(self) -> EmbeddedBroker:
        assert isinstance(self.broker, EmbeddedBroker)
        return self.broker

    @property
    def cluster(self) -> Cluster:
        assert isinstance(self.broker, Cluster)
        return self.broker

    def restart_broker(self, stop: Callable[[], None], *, after_s: float) -> None:
        broker = self.embedded
        stop()
        self.judge.unacknowledged(broker.disk.durable_bodies())
        self.clock.after(after_s, self.process, broker.start)

    def free_disk(self) -> None:
        self.embedded.disk.is_full = False

    def speed_disk(self) -> None:
        self.embedded.commit_s = 0.002

    def ingress(self, is_open: bool) -> None:
        """While a repartition is under way, a pause is refused, and the end of one tried again."""
        if not self.repartitions.pause_ingress(not is_open):
            if is_open:
                self.clock.after(1.0, self.process, self.ingress, is_open)
        elif isinstance(self.broker, Cluster) and not is_open:
            processes = {one.process for one in self.publishers}
            chosen = [one for one in self.broker.connections() if one.client.process in processes]
            self.broker.close_connections("ingress is paused", chosen)

    def put_back_store(self, *, after_s: float) -> None:
        broker = self.embedded
        if self._copy is None or not broker.is_up:
            return
        self.note("the broker is stopped, and an old copy of its store is put back")
        broker.stop()
        self.repartitions.kill()
        self.parkings.kill()
        disk, self.spec, record, permissions, bindings = self._copy
        broker.restore(disk.copied())
        self.repartitions.put_back(record, permissions, bindings)
        bodies = broker.disk.durable_bodies()
        self.judge.unacknowledged(bodies)
        self.judge.store_put_back(bodies)
        self.clock.after(after_s, self.process, broker.start)

    def put_back_state(self, publisher: SimPublisher, *, after_s: float) -> None:
        publisher.kill()
        publisher.put_back(self._states[publisher.name].copied())
        self.judge.state_put_back(publisher)
        self.clock.after(after_s, self.process, publisher.restart)

    # Its end

    def _copy_files(self) -> None:
        if isinstance(self.broker, EmbeddedBroker) and self.broker.is_up:
            state = self.repartitions
            disk = self.broker.disk.copied()
            self._copy = disk, self.spec, state.record, state.permissions, dict(state.bindings)
        for publisher in self.publishers:
            self._states[publisher.name] = publisher.state.copied()

    def _calm_down(self) -> None:
        self.note("no more faults")
        self.is_calm = True
        self.broker.calm()
        self.ingress(True)
        self.repartitions.finish()
        self.pause(False)
        for publisher in self.publishers:
            publisher.restart()
            publisher.is_stopped = True
        for member in self.members:
            member.app_ready(True)
        up = {one.name for one in self.members if one.is_up and one.stopped_at is None}
        if self.setting.mode == SESSIONS:
            # The messages of a session wait for the consumer of its name.
            for name in sorted(self._sessions - up):
                self.clock.after(2 * self.grace_s, self.process, self.join, name)
        elif not up:
            self.join()

    def _is_over(self) -> bool:
        if any(not one.is_settled for one in self.publishers):
            return False
        if not (self.repartitions.is_over and self.parkings.is_over):
            return False
        return not self.judge.unfinished()

    def _are_others_done(self) -> bool:
        """All messages are processed but those that are parked."""
        return self.judge.unfinished() <= self.parkings.parked_bodies()
