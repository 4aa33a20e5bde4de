"""A search for failures: Hypothesis makes cases, and makes those that fail smaller."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from fuzzing.case import Case
from fuzzing.judging import Finding
from fuzzing.modules import modules
from fuzzing.profiles import profiles
from fuzzing.runs import runs
from fuzzing.scenarios import scenarios, suites
from fuzzing.tables import tables, traces

STRATEGIES: Mapping[str, Callable[[], st.SearchStrategy[Case]]] = {
    "scenarios": scenarios, "suites": suites, "profiles": profiles, "traces": traces, "tables": tables, "runs": runs,
    "modules": modules,
}  # fmt: skip

BATCH = 50
"""Cases of one search of Hypothesis; the failures of one are passed over in the next."""
SHRINK_SECONDS = 20.0
"""How long a batch goes on after its first failure."""


class Tries(Protocol):
    """What says whether a case shows a failure."""

    def judge(self, case: Case) -> Finding | None:
        """The failure; None if there is none."""
        ...


@dataclass(eq=False)
class Found(Exception):
    """A failure with the smallest case that was found for it."""

    finding: Finding
    case: Case


def search(
    judge: Tries,
    kind: str,
    number: int,
    *,
    count: int | None = None,
    until: float | None = None,
    shrink_seconds: float = SHRINK_SECONDS,
    known: Collection[str] = (),
    on_found: Callable[[Found], None] = lambda found: None,
) -> dict[str, Found]:
    """Failures by signature, each once, among ``count`` different cases, or those tried until a monotonic time.

    The same ``number`` gives the same cases.  Signatures that are ``known`` are left out.
    """
    found: dict[str, Found] = {}
    answers: dict[Hashable, Finding | None] = {}
    failures: dict[str, type[Found]] = {}
    failed_at: list[float] = []

    def over() -> bool:
        return (until is not None and time.monotonic() > until) or (count is not None and len(answers) >= count)

    def tried(case: Case) -> None:
        key = tuple((name, case.files.get(name)) for name in case.hostile)
        if key not in answers:
            if time.monotonic() > failed_at[0] + shrink_seconds if failed_at else over():
                return  # what comes after the end passes
            answers[key] = judge.judge(case)
        finding = answers[key]
        if finding is None or finding.signature in found or finding.signature in known:
            return
        failed_at.append(time.monotonic())
        # Hypothesis tells failures apart by their types
        failure = failures.setdefault(finding.signature, type(Found.__name__, (Found,), {}))
        raise failure(finding, case)

    batch = 0
    while not over():
        failed_at.clear()
        play = settings(
            max_examples=BATCH, database=None, deadline=None, print_blob=False,
            phases=[Phase.generate, Phase.shrink] if shrink_seconds else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(given(STRATEGIES[kind]())(tried))  # fmt: skip
        for each in _raised(seed(f"{number}:{kind}:{batch}")(play)):
            found[each.finding.signature] = each
            on_found(each)
        batch += 1
    return found


def _raised(play: Callable[[], None]) -> list[Found]:
    """The failures of a search of Hypothesis."""
    try:
        with warnings.catch_warnings():
            # of a long text of the case: an error where warnings are errors, in place of the failure
            warnings.simplefilter("ignore", HypothesisWarning)
            play()
    except Found as failure:
        return [failure]
    except BaseExceptionGroup as several:
        failures, others = several.split(Found)
        if others is not None:
            raise
        return [each for each in failures.exceptions if isinstance(each, Found)] if failures else []
    return []
