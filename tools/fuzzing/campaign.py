"""A search for failures: cases are made and tried until a time or number is reached, and made small if they fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzzing.case import Case
from fuzzing.judging import Finding, Judge
from fuzzing.profiles import profiles
from fuzzing.runs import runs
from fuzzing.scenarios import scenarios
from fuzzing.shrinking import shrunk
from fuzzing.tables import tables, traces

STRATEGIES: Mapping[str, Callable[[], st.SearchStrategy[Case]]] = {
    "scenarios": scenarios, "profiles": profiles, "traces": traces, "tables": tables, "runs": runs,
}  # fmt: skip

BATCH = 50
"""Cases between two looks at the clock."""


@dataclass(frozen=True)
class Found:
    """A failure with the smallest case that was found for it."""

    finding: Finding
    case: Case


def search(
    judge: Judge,
    kind: str,
    number: int,
    *,
    count: int | None = None,
    until: float | None = None,
    shrink_seconds: float = 20.0,
    known: Mapping[str, str] | None = None,
    on_found: Callable[[Found], None] = lambda found: None,
) -> dict[str, Found]:
    """Failures by signature, each once, among ``count`` different cases, or those tried until a monotonic time.

    The same ``number`` gives the same cases.  Signatures that are ``known`` are left out.
    """
    found: dict[str, Found] = {}
    seen: set[int] = set()

    def tried(case: Case) -> None:
        if until is not None and time.monotonic() > until:
            return
        if count is not None and len(seen) >= count:
            return
        key = hash(tuple((name, case.files.get(name)) for name in case.hostile))
        if key in seen:
            return
        seen.add(key)
        finding = judge.judge(case)
        if finding is None or finding.signature in found or finding.signature in (known or {}):
            return

        def shows(smaller: Case) -> bool:
            again = judge.judge(smaller)
            return again is not None and again.signature == finding.signature

        found[finding.signature] = Found(finding, shrunk(case, shows, shrink_seconds) if shrink_seconds else case)
        on_found(found[finding.signature])

    batch = 0
    while (count is None or len(seen) < count) and (until is None or time.monotonic() < until):
        play = given(STRATEGIES[kind]())(tried)
        play = settings(
            max_examples=BATCH, phases=[Phase.generate], database=None, deadline=None,
            suppress_health_check=list(HealthCheck),
        )(play)  # fmt: skip
        seed(f"{number}:{kind}:{batch}")(play)()
        batch += 1
    return found
