"""What noise has spent, where it is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.commands.explain.table import print_explanation
from edgefl.records.epsilon import PrivacySpent, privacy_words
from edgefl.records.record import UNSET
from edgefl.runs import Run

WORDS = "epsilon {:.4g} at delta 0.001 (rdp, noise 2, one client added or removed)"


@pytest.fixture(scope="module")
def run(tiny: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Run:
    noisy = {
        "data": {**tiny()["data"], "clients": {"image": 4}},
        "training": {"mode": "none"},
        "privacy": {"delta": 1e-3, "accountant": "rdp"},
        "aggregation": {"clip": 1.0, "noise": 2.0},
        "round": {"selection": "poisson", "weighting": "equal", "cohort": 0.5},
    }
    return edgefl.run(tiny(**noisy), out=tmp_path_factory.mktemp("noisy") / "run")


def test_explain_says_what_was_spent_by_its_round(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    first, last = (record["privacy"] for record in run.records("rounds"))
    assert 0 < first["epsilon"] < last["epsilon"]
    told = edgefl.explain(run.path, round=1)
    assert told.privacy == PrivacySpent(**first)
    print_explanation(told)
    assert WORDS.format(first["epsilon"]) in capsys.readouterr().out
    assert privacy_words(UNSET) == ""


@pytest.mark.slow(smaller="test_explain_says_what_was_spent_by_its_round")
def test_compare_and_report_say_what_all_rounds_spent(run: Run, tmp_path: Path) -> None:
    *_, last = run.records("rounds")
    told = WORDS.format(last["privacy"]["epsilon"])
    assert edgefl.compare([run.path]).privacy == [f"fedavg, end-to-end: {told}"]
    assert edgefl.report(run.path, out=tmp_path / "page.html") and told[1:] in (tmp_path / "page.html").read_text()
