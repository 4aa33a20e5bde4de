"""What a check finds: the rules, how often each was checked, a sentence for each failure, and what hangs."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_tb
from types import FrameType

from edgefl import registry
from edgefl.errors import EdgeflError
from edgefl.planning import rules as planning_rules
from edgefl.planning.rules import summarise_names
from edgefl.schedules import Stage


class CheckRule:
    """The rules that a part keeps, as a report names them."""

    BLIND, KEPT, NAMES, WHOLE = planning_rules.BLIND, planning_rules.KEPT, planning_rules.NAMES, planning_rules.WHOLE
    WRITTEN = "a work is the same after encode() and decode()"
    ANSWERS = "every function answers, and work() with a Work"
    MEETS = "every schedule can restrict the work to its stages"
    BUILT = "the model builds without data"
    ADDRESSES = "every payload item has an address at the server"
    LIKE = "a tensor for each parameter is cut with its parameter"
    MEMORY = "predicted memory is the measured memory"
    FLOPS = "predicted FLOPs are the executed ones"
    BYTES = "predicted bytes are the serialised ones"
    TRAINS = "training changes the trainable parameters"
    STATELESS = "steps and edits keep nothing beside the context"
    SEED = "the same seed gives the same bits"
    PROCESS = "a worker process gives the same bits"
    PURE = "aggregation changes no argument and keeps no state"
    ORDER = "aggregation doesn't depend on the order of updates"
    PLACES = "aggregation keeps every address, its shape and its precision"
    VERSIONS = "a changed tensor gets a new version"
    INACTIVE = "parameters that a stage doesn't train don't change"
    UNTRAINED = "training: none needs shapes alone"
    SPARSE = "aggregation works for the update of a single client"
    SERVER = "the server's works run"
    METRICS = "evaluation gives finite metrics"
    SERVES = "at least one client kind takes part, or the server trains"
    RUNS = "a scenario with the part runs"
    REPEATS = "a run is the same again, whatever the global random state and the order of sets"
    RESUMES = "an interrupted and resumed run equals one that wasn't interrupted"
    PRICED = "a run costs what was predicted, and its records add up"


@dataclass(frozen=True)
class CheckReport:
    """The result of ``check_part``: how often each rule was checked, and a sentence for each failed check."""

    part: str
    checks: Mapping[str, int]
    failures: tuple[str, ...]
    refused: Mapping[str, str]
    """Schedules that can't split this method's models, each with the reason."""

    @property
    def ok(self) -> bool:
        """Whether no rule was broken."""
        return not self.failures

    def __str__(self) -> str:
        """The outcome in one line, then one line for each failure."""
        count = f"{sum(self.checks.values())} checks of {len(self.checks)} rules"
        if self.ok:
            less = "".join(f"; not under {name}: {why}" for name, why in self.refused.items())
            return f"{self.part}: {count}, all kept{less}"
        broken = f"{len(self.failures)} broken" if len(self.failures) > 1 else "one broken"
        return "\n".join([f"{self.part}: {count}, {broken}", *(f"  - {failure}" for failure in self.failures)])


class Findings:
    """Counts the checks, and collects a sentence for each that failed; ``renew`` is called at each check."""

    def __init__(self, renew: Callable[[], None] = lambda: None) -> None:
        self.renew = renew
        self.checks: Counter[str] = Counter()
        self.failures: list[str] = []
        self.refused: dict[str, str] = {}

    def expect(self, rule: str, where: str, holds: bool, fault: str = "") -> bool:
        """Record whether the rule holds here; ``fault`` says what is wrong."""
        self.checks[rule] += 1
        self.renew()
        if not holds:
            self.failures.append(f"{rule}: {where}: {fault}" if fault else f"{rule}: {where}")
        return holds

    def expect_none(self, rule: str, where: str, names: Collection[str], fault: str) -> bool:
        """Record that the rule holds if there are no such names; ``fault`` says what is wrong with them (``{}``)."""
        return self.expect(rule, where, not names, fault.format(summarise_names(names)) if names else "")

    @contextmanager
    def attempt(self, rule: str, where: str) -> Iterator[None]:
        """Record any exception inside as a failure of the rule: a method's code may raise any."""
        try:
            yield
        except registry.PASSED:
            raise
        except BaseException as error:
            fault = str(error) if isinstance(error, EdgeflError) else registry.plug_ins().fault(error)
            self.expect(rule, where, False, str(fault or registry.error_text(error)))

    def report(self, part: str) -> CheckReport:
        """The report on the part of this name."""
        return CheckReport(part, dict(self.checks), tuple(self.failures), self.refused)


@dataclass(frozen=True)
class CheckScope:
    """The schedule, stage and round of a check."""

    schedule: str
    stage: Stage
    round: int

    def at(self, what: str) -> str:
        """The place as a failure names it."""
        return f"{what}, {self.schedule}, {self.stage}"


HANG_SECONDS = 120.0
"""Time without a finished check, after which ``check_part`` gives up.

A choice, not measured: a check trains a tiny model for seconds, and ``hang_after`` sets more for a slow method.
"""


class Hung(KeyboardInterrupt):
    """No check was finished for too long: an interruption, which is nobody's fault and which no method catches."""


class HangWatch:
    """Raises Hung in the running code once ``seconds`` pass without a call of ``renew``.

    It needs a timer signal, which only the main thread of a POSIX system has; elsewhere there is no limit.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._watching = False

    def renew(self) -> None:
        """Give the next check the whole time again."""
        if self._watching:
            signal.setitimer(signal.ITIMER_REAL, self.seconds)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the code inside."""
        if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
            yield
            return

        def give_up(number: int, frame: FrameType | None) -> None:
            raise Hung

        before = signal.signal(signal.SIGALRM, give_up)
        self._watching = True
        self.renew()
        try:
            yield
        finally:
            self._watching = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def hang_location(error: Hung, file: str | None) -> str:
    """Where the code was: a plug-in's place, a line of ``file`` (the method's), or the line that ran."""
    if (place := registry.plug_ins().locate_fault(error)) is not None:
        return str(place[0])
    frames = [(f.f_code.co_filename, line, f.f_code.co_qualname) for f, line in walk_tb(error.__traceback__)]
    frames = [frame for frame in frames if frame[0] != __file__]  # the signal's handler
    own = [frame for frame in frames if frame[0] == file] or frames
    return "{}:{}, in {}".format(*own[-1])
