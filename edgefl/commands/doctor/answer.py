"""The answer of ``edgefl doctor``, which is no record: their base imports a package that may be broken."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

OK: Literal["ok"] = "ok"
WARNING: Literal["warning"] = "warning"
ERROR: Literal["error"] = "error"


@dataclass(frozen=True)
class MachineCheck:
    """What was found about one thing; ``advice`` says what to do, None where nothing is wrong or ``found`` says it."""

    name: str
    status: Literal["ok", "warning", "error"]
    found: str
    advice: str | None = None


@dataclass(frozen=True)
class Health:
    """What was found: edgefl's version, whether no check is an error, and the checks."""

    edgefl: str
    healthy: bool
    checks: list[MachineCheck]

    @property
    def exit_code(self) -> int:
        """1 if a check found an error."""
        return 0 if self.healthy else 1

    def to_data(self) -> dict[str, object]:
        """The answer as JSON data."""
        return asdict(self)


def lines_of(answer: Health) -> str:
    """A line for each check; no tables, since what they need may be what is broken."""
    width = max(len(check.name) for check in answer.checks)
    return "".join(
        f"{check.status:<8}{check.name:<{width}}  {check.found}{f'; {check.advice}' if check.advice else ''}\n"
        for check in answer.checks
    )
