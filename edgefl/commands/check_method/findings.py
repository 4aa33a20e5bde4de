"""What was checked, and what was found to be wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from edgefl.errors import EdgeflError
from edgefl.schedules import Stage


@dataclass(frozen=True)
class CheckReport:
    """What ``check_method`` found: how often each rule was checked, and a sentence for each time it was broken."""

    method: str
    checks: Mapping[str, int]
    failures: tuple[str, ...]
    refused: Mapping[str, str]
    """Schedules whose parts can't be cut of this method's models, each with the reason."""

    @property
    def ok(self) -> bool:
        """Whether no rule was broken."""
        return not self.failures

    def __str__(self) -> str:
        """For people: the outcome in a line, then every failure in one of its own."""
        count = f"{sum(self.checks.values())} checks of {len(self.checks)} rules"
        if self.ok:
            less = "".join(f"; not under {name}: {why}" for name, why in self.refused.items())
            return f"{self.method}: {count}, all kept{less}"
        broken = f"{len(self.failures)} broken" if len(self.failures) > 1 else "one broken"
        return "\n".join([f"{self.method}: {count}, {broken}", *(f"  - {failure}" for failure in self.failures)])


class Findings:
    """Counts what was checked, and collects a sentence for each time that it didn't hold."""

    def __init__(self) -> None:
        self.checks: Counter[str] = Counter()
        self.failures: list[str] = []
        self.refused: dict[str, str] = {}

    def expect(self, rule: str, where: str, holds: bool, found: str = "") -> bool:
        """Note whether the rule holds here; ``found`` says what was found instead."""
        self.checks[rule] += 1
        if not holds:
            self.failures.append(f"{rule}: {where}: {found}" if found else f"{rule}: {where}")
        return holds

    def expect_none(self, rule: str, where: str, names: Collection[str], fault: str) -> bool:
        """Note that the rule holds if there are no such names; ``fault`` says what is wrong with them (``{}``)."""
        return self.expect(rule, where, not names, fault.format(_first_of(names)) if names else "")

    @contextmanager
    def attempt(self, rule: str, where: str) -> Iterator[None]:
        """What is raised inside breaks the rule: an author's code may raise anything."""
        try:
            yield
        except Exception as error:
            found = str(error) if isinstance(error, EdgeflError) else f"{type(error).__name__}: {error}"
            self.expect(rule, where, False, found)

    def report(self, method: str) -> CheckReport:
        """The report on the method of this name."""
        return CheckReport(method, dict(self.checks), tuple(self.failures), self.refused)


@dataclass(frozen=True)
class Place:
    """Where a failure was found."""

    schedule: str
    stage: Stage
    round: int

    def at(self, what: str) -> str:
        """The place as a failure names it."""
        return f"{what}, {self.schedule}, {self.stage}"


def _first_of(names: Collection[str]) -> str:
    """The first of these names, and how many more there are."""
    first, *more = sorted(names)
    return f"{first!r}" + (f" and {len(more)} more" if more else "")
