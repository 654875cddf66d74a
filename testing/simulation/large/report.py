"""Results of a size in lines, and the bars with whether they are met."""

from __future__ import annotations

from testing.simulation.large.group import QUEUES_PER_MEMBER
from testing.simulation.large.scenarios import Crash, Join, Rest, Start

MAIL_MOST = 5.0
"""Membership messages to a member and second at rest."""

CRASH_AGREED_S = 1.0
THIRD_AGREED_S = 5.0
SERVED_AFTER_AGREEMENT_S = 2.0
SETTLED_S = 20.0
WRONG_VIEWS_SERVED_S = 10.0
"""With wrong views: from the crash until every queue is served."""


class Report:
    """Prints each result as it comes, and remembers what the bars are about."""

    def __init__(self, members: int) -> None:
        self.title = f"\n{members} members, {QUEUES_PER_MEMBER * members} queues"
        self._bars: list[tuple[str, str, bool]] = []
        self._is_sound = True

    def start(self, result: Start) -> None:
        self._line(
            "mass start",
            f"indexes claimed {seconds(result.claimed_s)} ({result.refused_claims:,} refused), "
            f"all agree {seconds(result.agreed_s)}, settled {seconds(result.settled_s)}, "
            f"{result.attachments:,} attachments, {result.mail:,} membership messages",
        )
        self._bar(f"mass start settled within {SETTLED_S:g} s", result.settled_s, SETTLED_S)

    def rest(self, result: Rest) -> None:
        self._line(
            "at rest",
            f"messages to a member {result.mail_mean:.2f}/s mean, {result.mail_most:.2f}/s most; "
            f"broker: {result.posts:,.0f}/s in, {result.broker_mail:,.0f}/s out, busy {result.broker_busy:.1%}; "
            f"member busy {result.member_busy_mean:.2%} mean, {result.member_busy_most:.2%} most",
        )
        self._bars.append(
            (
                f"at most {MAIL_MOST:g} membership messages to a member and second",
                f"{result.mail_mean:.2f}/s mean, {result.mail_most:.2f}/s most",
                result.mail_most <= MAIL_MOST,
            )
        )

    def scenario(self, name: str, result: Crash | Join | None) -> None:
        if result is None:
            self._line(name, "the CPU time is used up")
            self._bars.append((name, "not within the CPU time", False))
            return
        if isinstance(result, Join):
            self._line(
                name,
                f"all agree {seconds(result.agreed_s)}, settled {seconds(result.settled_s)}, "
                f"{result.attached:,} attachments made and {result.detached:,} ended, "
                f"{result.moves} handoffs for {result.due_moves} queues with a new primary; "
                f"lost {result.lost}, inverted {result.inverted}",
            )
        else:
            self._line(
                name,
                f"{result.victims} killed: all agree {seconds(result.agreed_s)}, "
                f"all queues served {seconds(result.served_s)}, settled {seconds(result.settled_s)}, "
                f"longest wait {result.longest_wait_s:.2f} s, {result.mail:,} membership messages; "
                f"lost {result.lost}, inverted {result.inverted}, repeated {result.repeated}",
            )
            self._crash_bars(name, result)
        self._is_sound = self._is_sound and not result.lost and not result.inverted

    def _crash_bars(self, name: str, result: Crash) -> None:
        if name == "crash":
            self._bar(f"one crash agreed by all within {CRASH_AGREED_S:g} s", result.agreed_s, CRASH_AGREED_S)
        elif name in ("third", "neighbours"):
            self._bar(f"{name}: agreed by all within {THIRD_AGREED_S:g} s", result.agreed_s, THIRD_AGREED_S)
            self._bar(
                f"{name}: every queue served within {SERVED_AFTER_AGREEMENT_S:g} s of that",
                result.served_after_agreement_s,
                SERVED_AFTER_AGREEMENT_S,
            )
        else:
            self._bar(
                f"{name}: every queue served within {WRONG_VIEWS_SERVED_S:g} s",
                result.served_s,
                WRONG_VIEWS_SERVED_S,
            )

    def exceeded(self, why: str) -> None:
        self._line("not all", why)
        self._bars.append(("everything is measured", why, False))

    def used(self, simulated_s: float, cpu_s: float, resident_mb: float) -> None:
        self._line("simulation", f"{simulated_s:.1f} s in {cpu_s:.1f} s of CPU, {resident_mb:,.0f} MB")

    def bars(self) -> bool:
        """Prints them; True if all are met."""
        bars = [*self._bars, ("0 lost, 0 inverted", "yes" if self._is_sound else "no", self._is_sound)]
        print("\n  | bar | measured | |\n  |---|---|---|")
        for bar, measured, is_met in bars:
            print(f"  | {bar} | {measured} | {'met' if is_met else 'missed'} |", flush=True)
        return all(is_met for _, _, is_met in bars)

    def _bar(self, name: str, measured: float | None, most: float) -> None:
        self._bars.append((name, seconds(measured), measured is not None and measured <= most))

    @staticmethod
    def _line(name: str, text: str) -> None:
        print(f"  {name:11} {text}", flush=True)


def seconds(value: float | None) -> str:
    return "not within the limit" if value is None else f"{value:.2f} s"
