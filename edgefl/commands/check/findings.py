"""Counts of the checks, and the failures that they found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from edgefl import registry
from edgefl.errors import EdgeflError
from edgefl.planning.rules import listed
from edgefl.schedules import Stage


@dataclass(frozen=True)
class CheckReport:
    """The result of ``edgefl.check``: how often each rule was checked, and a sentence for each failed check."""

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
        return self.expect(rule, where, not names, fault.format(listed(names)) if names else "")

    @contextmanager
    def attempt(self, rule: str, where: str) -> Iterator[None]:
        """Record any exception inside as a failure of the rule: a method's code may raise any."""
        try:
            yield
        except (Exception, SystemExit) as error:
            fault = str(error) if isinstance(error, EdgeflError) else registry.plug_ins().fault(error)
            self.expect(rule, where, False, str(fault or registry.said(error)))

    def report(self, part: str) -> CheckReport:
        """The report on the part of this name."""
        return CheckReport(part, dict(self.checks), tuple(self.failures), self.refused)


@dataclass(frozen=True)
class Place:
    """The schedule, stage and round of a check."""

    schedule: str
    stage: Stage
    round: int

    def at(self, what: str) -> str:
        """The place as a failure names it."""
        return f"{what}, {self.schedule}, {self.stage}"
