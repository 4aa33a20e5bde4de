"""Whatever a file holds, edgefl takes it or says in short lines what is wrong, in seconds and within a GiB."""

from __future__ import annotations

import re

import pytest
from fuzzing.case import KINDS, Case
from fuzzing.judging import Finding, Judge
from fuzzing.search import search
from fuzzing.targets import BadMessage, check_message
from hypothesis import strategies as st

from edgefl.errors import EdgeflError

UNMENDED: dict[str, str] = {}
"""Failures that are known and not yet mended, by the signature that ``tools/fuzz.py`` prints: the tests pass over
these, and over nothing else."""

QUICK = {"scenarios": 15, "suites": 15, "profiles": 40, "traces": 40, "tables": 15, "runs": 2, "modules": 6}
WHOLE = {"scenarios": 8_000, "suites": 1_000, "profiles": 4_000, "traces": 3_000, "tables": 2_500, "runs": 1_300,
         "modules": 200}  # fmt: skip
"""Different cases of each kind; 20,000 in all."""


def told(judge: Judge, kind: str, count: int, number: int, shrink_seconds: float) -> str:
    """The failures as text, each with its smallest case; empty if there are none."""
    found = search(judge, kind, number, count=count, shrink_seconds=shrink_seconds, known=UNMENDED)
    return "\n\n".join(
        f"{each.finding.signature}\n{each.finding.message}\n"
        + "".join(f"{name}: {each.case.files.get(name)!r:.2000}\n" for name in each.case.hostile)
        + each.finding.traceback
        for each in found.values()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_input_is_taken_or_refused_in_a_line(judge: Judge, kind: str) -> None:
    assert (text := told(judge, kind, QUICK[kind], 1, 0.0)) == "", text
    tally = judge.tallies[kind]
    assert tally.accepted and tally.refused and tally.cases >= QUICK[kind]


@pytest.mark.slow(smaller="test_a_hostile_input_is_taken_or_refused_in_a_line")
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_thousand_hostile_inputs_are_taken_or_refused_in_a_line(patient_judge: Judge, kind: str) -> None:
    assert sum(WHOLE.values()) == 20_000
    assert (text := told(patient_judge, kind, WHOLE[kind], 2, 20.0)) == "", text


# --- the harness finds what it is there for --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "signature"),
    [
        ("none", None),
        ("refusal", None),
        ("traceback", r"ZeroDivisionError in outside edgefl"),
        ("exit", r"SystemExit in .*"),
        ("empty message", r"BadMessage in .*"),
        ("memory", r"too much memory in .*"),
        ("crash", r"the process ended by signal 11"),
        pytest.param("loop", r"too slow in .*", marks=pytest.mark.slow),
        pytest.param("sleep", r"hangs: it waits for something in .*", marks=pytest.mark.slow),
        pytest.param("loop in C", r"hangs: it computes outside of Python in .*", marks=pytest.mark.slow),
    ],
)
def test_each_kind_of_failure_is_found(judge: Judge, fault: str, signature: str | None) -> None:
    finding = judge.judge(Case("faults", {"fault": fault.encode()}, ("fault",)))
    assert (finding is None) == (signature is None)
    assert finding is None or re.fullmatch(str(signature), finding.signature), finding


@pytest.mark.parametrize("message", ["", "one\ntwo", "word " * 300, "a\x00b", "a\x1b[31m", "one\n\ntwo"])
def test_a_message_that_is_no_short_line_is_found(message: str) -> None:
    class RawError(EdgeflError):
        """An error whose text isn't shortened or escaped."""

        def __str__(self) -> str:
            return message

    with pytest.raises(BadMessage):
        check_message(RawError())
    check_message(EdgeflError("data.csv:3: 'x' is not a number"))


class Planted:
    """Two bugs: one in traces with the text ``nan``, the other in those with ``true``."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def judge(self, case: Case) -> Finding | None:
        self.cases.append(case)
        content = case.files.get(case.hostile[0])
        if isinstance(content, bytes) and b"nan" in content:
            return Finding("nan", "a planted bug", "")
        return Finding("true", "another", "") if isinstance(content, bytes) and b"true" in content.lower() else None


def test_a_planted_bug_is_found_and_made_small() -> None:
    found = search(Planted(), "traces", 1, count=400)
    assert set(found) == {"nan", "true"}
    (name,) = found["nan"].case.hostile
    content = found["nan"].case.files[name]
    # all that isn't needed is the first and smallest of its kind
    assert isinstance(content, bytes) and content.count(b"nan") == 1
    assert set(content.splitlines()) <= {b"device,start,end", b"a,0,0", b"a,0,nan"}


def test_a_failure_of_a_long_case_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis warns of a case with a long text, and here warnings are errors."""
    long = Case("traces", {"trace.csv": b"nan", "more.csv": b"0" * 50_000}, ("trace.csv",))
    monkeypatch.setattr("fuzzing.search.STRATEGIES", {"traces": lambda: st.just(long)})
    assert set(search(Planted(), "traces", 1, count=1)) == {"nan"}


@pytest.mark.slow(smaller="test_each_kind_of_failure_is_found")
def test_what_is_known_is_passed_over() -> None:
    assert set(search(Planted(), "traces", 1, count=400, known=["true"], shrink_seconds=0.0)) == {"nan"}


def test_the_same_number_gives_the_same_cases() -> None:
    first, second, third = Planted(), Planted(), Planted()
    for listening, number in ((first, 1), (second, 1), (third, 2)):
        search(listening, "traces", number, count=30, known=["nan", "true"])
    assert first.cases == second.cases != third.cases and len(first.cases) == 30
