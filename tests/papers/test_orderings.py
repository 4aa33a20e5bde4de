"""Orderings over seeds: what counts as one, the file with every seed's values, and a round of every scenario."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import edgefl
from edgefl.commands.compare.orderings import claim_of, ordering_of_rows
from edgefl.commands.compare.table import orderings_markdown
from edgefl.errors import RunError, UnknownName
from edgefl.records.metrics import Metrics, metric_value
from edgefl.records.run import FinalSummary
from edgefl.scenario import load, scenario_names
from tools import orderings as program
from tools.pages.orderings import open_question_blocks, ordering_blocks
from tools.paper_tables import orderings
from tools.paper_tables.studies import CLAIMED, OPEN, STUDIES, Claim, Study

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = [name for name in scenario_names() if name.startswith(("papers/orderings-", "open/"))]
NOT_SHOWN = "could not be shown"


def metrics_of(run: edgefl.Run) -> Metrics:
    summary = run.read_file(FinalSummary)
    assert summary is not None
    return summary.metrics


def compared(study: Study) -> Any:
    return yaml.safe_load((ROOT / f"scenarios/{study.scenario}.yaml").read_text(encoding="utf-8"))["compare"]


def verdict(worse: Sequence[float], better: Sequence[float]) -> str:
    return claim_of("a", "b", "m.x", worse, better).verdict


@pytest.mark.parametrize(
    ("worse", "better", "word"),
    [
        # with two degrees of freedom the 97.5 % quantile is 0.95 sqrt(2 / (1 - 0.95 ** 2)), so over three seeds the
        # gap must be 2.4841 of its deviation
        ([0.0, 0.0, 0.0], [1.49, 2.49, 3.49], "shown"),
        ([0.0, 0.0, 0.0], [1.48, 2.48, 3.48], NOT_SHOWN),
        ([1.49, 2.49, 3.49], [0.0, 0.0, 0.0], "reversed"),
        ([1.0, 20.0, 300.0], [1.1, 20.1, 300.12], "shown"),  # seeds differ by much more than variants
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], NOT_SHOWN),
        ([1.0], [2.0], f"one seed: {NOT_SHOWN}"),
    ],
)
def test_an_ordering_is_shown_where_the_interval_of_the_gap_is_beyond_0(
    worse: Sequence[float], better: Sequence[float], word: str
) -> None:
    assert verdict(worse, better) == word


VALUES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=5)


@settings(max_examples=25, deadline=None)
@given(VALUES)
def test_turned_round_an_ordering_is_reversed(pairs: list[tuple[float, float]]) -> None:
    worse, better = zip(*pairs, strict=True)
    other = {"shown": "reversed", "reversed": "shown"}
    word = verdict(worse, better)
    assert verdict(better, worse) == other.get(word, word)


def test_only_seeds_that_have_every_row_are_compared() -> None:
    values = {"a": {"m.x": {1: 0.1, 2: 0.2, 3: 0.9}}, "b": {"m.x": {2: 0.5, 1: 0.3}}}
    told = orderings_markdown([ordering_of_rows("two", values, ["m.x"])], "test")
    # gaps .2 and .3: error .05; with one degree of freedom quantiles are tan(.475 pi) and tan(.3 pi), and with three
    # seeds (4.303 + 1.061) .0707 / sqrt(3) = .219 can be shown
    assert f"| a < b | m.x | +0.250 ± 0.071 | -0.385 to +0.885 | 0.704 | 2 of 2 | 3 | {NOT_SHOWN} |" in told
    assert "over seeds 1, 2, test split." in told
    del values["b"]["m.x"][2]
    told = orderings_markdown([ordering_of_rows("two", values, ["m.x"])], "test")
    assert f"| a < b | m.x | +0.200 | - | - | 1 of 1 | - | one seed: {NOT_SHOWN} |" in told


# --- the file --------------------------------------------------------------------------------------------------------

STUDY = Study(
    "mcfl", "a paper", "papers/orderings-mcfl", ("m.x",),
    (Claim(("m.x",), ("a", "b")), Claim(("m.x",), ("a - b", "b - a"))), 2.0,
)  # fmt: skip


def test_values_of_seeds_are_added_in_their_order_and_verdicts_are_scipys() -> None:
    a, b = {1: 0.10, 2: 0.35, 3: 0.20, 7: 0.15}, {1: 0.30, 2: 0.45, 3: 0.35, 7: 0.50}
    known = None
    for seed in (7, 2, 1, 3):
        known = orderings.with_seed(STUDY, known, seed, {"a": {"m.x": a[seed]}, "b": {"m.x": b[seed]}})
    assert known is not None and known.seeds == [1, 2, 3, 7]
    assert known.values == {"a": {"m.x": list(a.values())}, "b": {"m.x": list(b.values())}}
    first, second = known.claims
    low, high = stats.ttest_rel([*b.values()], [*a.values()]).confidence_interval()
    assert (first.low, first.high) == pytest.approx((low, high))
    assert (first.ahead, first.seeds, first.verdict) == (4, 4, "shown")
    assert second.gap == pytest.approx(2 * 0.2) and second.worse == "a - b"


def test_the_file_is_read_as_it_was_written_unless_the_scenario_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orderings, "STUDIES", {"mcfl": STUDY})
    file = tmp_path / "orderings.json"
    assert orderings.recorded(file) == {}
    values = orderings.with_seed(STUDY, None, 3, {"a": {"m.x": 0.12345678}, "b": {"m.x": 0.5}})
    orderings.write({"mcfl": values}, file)
    assert '"m.x": [0.123457]' in file.read_text(encoding="utf-8")
    assert orderings.recorded(file) == {"mcfl": values}
    file.write_text(file.read_text(encoding="utf-8").replace(values.fields, "0" * 12), encoding="utf-8")
    assert orderings.recorded(file) == {}


def test_rows_that_another_study_has_are_taken_from_it() -> None:
    known = orderings.recorded()
    study = STUDIES["fedcola-layers"]
    same = {  # by reading the three scenarios
        "-> none": ("fedcola", "+CA+CP"), "-> blocks": ("fedcola", "+CA+CP+CL"), "attention": ("fedcola", "+CA"),
        "attention of all": ("range-all", "all"),
    }  # fmt: skip
    assert orderings.shared_rows(study, 3, {name: known[name] for name in ("fedcola", "range-all")}) == {
        row: {metric: known[name].values[other][metric][known[name].seeds.index(3)] for metric in study.metrics}
        for row, (name, other) in same.items()
    }
    assert not orderings.shared_rows(replace(study, overrides=("training.lr=1e-3",)), 3, known)
    assert not orderings.shared_rows(replace(study, metrics=("image.loss",)), 3, known)


def test_every_recorded_value_is_of_a_row_of_todays_scenario() -> None:
    known = orderings.recorded()
    text = orderings.values_file().read_text(encoding="utf-8")
    assert list(known) == list(yaml.safe_load(text)["studies"])  # none of another scenario
    for name, found in known.items():
        study = STUDIES[name]
        assert [*found.values] == [*compared(study)["rows"]] and set(found.seeds) <= set(orderings.seeds_of(study))
        for of in found.values.values():
            assert [*of] == [*study.metrics]
            assert {len(column) for column in of.values()} == {len(found.seeds)}
            assert all(0 <= value <= 2 for column in of.values() for value in column)


def test_every_recorded_verdict_follows_from_its_values() -> None:
    """By scipy's paired t test; the bootstrap may only take a verdict away."""
    for found in orderings.recorded().values():
        for claim in found.claims:
            worse, better = (_column(found, term, claim.metric) for term in (claim.worse, claim.better))
            gaps = np.round(better - worse, 12)
            n, deviation = len(gaps), gaps.std(ddof=1) if len(gaps) > 1 else np.nan
            assert (claim.seeds, claim.ahead) == (n, (gaps > 0).sum())
            assert claim.gap == pytest.approx(gaps.mean(), abs=1e-9)
            if isnan(deviation) or not deviation:
                continue
            low, high = stats.ttest_rel(better, worse).confidence_interval()
            assert (claim.low, claim.high) == pytest.approx((low, high))
            reach = (stats.t.ppf(0.975, n - 1) + stats.t.ppf(0.8, n - 1)) * deviation / np.sqrt(n)
            assert claim.detectable == pytest.approx(reach)
            assert (claim.seeds_needed or 10_000) == _needed(abs(claim.gap), deviation)
            if claim.verdict != NOT_SHOWN:
                assert (claim.verdict == "shown") == (low > 0) and (claim.verdict == "reversed") == (high < 0)


def _column(found: Any, term: str, metric: str) -> Any:
    first, *second = (np.array(found.values[row][metric]) for row in term.split(" - "))
    return first - second[0] if second else first


def _needed(gap: float, deviation: float) -> float:
    """The fewest seeds by trying each number; 10,000 for more, and for no gap."""
    n = np.arange(2, 10_000)
    enough = (stats.t.ppf(0.975, n - 1) + stats.t.ppf(0.8, n - 1)) * deviation / np.sqrt(n) <= gap
    return int(n[enough.argmax()]) if gap and enough.any() else 10_000


# --- the pages -------------------------------------------------------------------------------------------------------


def test_each_claim_stands_once_on_the_page_under_its_verdict() -> None:
    blocks = ordering_blocks()
    found = [orderings.recorded().get(study.name) for study in CLAIMED]
    claims = [claim for known in found if known and len(known.seeds) > 1 for claim in known.claims]
    for name, word in (("shown", "shown"), ("reversed", "reversed"), ("not-shown", NOT_SHOWN)):
        wanted = [claim for claim in claims if claim.verdict == word]
        lines = [line for line in blocks[name].splitlines()[2:] if line.startswith("|")]
        assert len(lines) == len(wanted)
        for claim, line in zip(wanted, lines, strict=True):
            assert f"| {claim.gap:+.3f}" in line and f"{claim.ahead} of {claim.seeds}" in line
        assert re.search(rf"{len(wanted)} (are )?{re.escape(word)}", blocks["counts"])


def test_every_study_has_a_section_that_names_its_seeds() -> None:
    known = orderings.recorded()
    for studies, blocks in ((CLAIMED, ordering_blocks()), (OPEN, open_question_blocks())):
        for study in studies:
            done = known[study.name].seeds if study.name in known else []
            seeds = re.match(r"Mean ± standard deviation over seeds? ([\d, ]+), test split\.", blocks[study.name])
            assert [int(seed) for seed in seeds[1].split(", ")] == [*done] if seeds else not done


# --- the command -----------------------------------------------------------------------------------------------------


def test_studies_are_listed_with_the_minutes_that_are_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(STUDIES)
    assert all(" of 10 " in line for line in lines)


def test_an_unknown_study_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'mcfl'"):
        orderings.studies_of(["mcf"])
    with pytest.raises(SystemExit):
        program.main(["mcfl", "--all"])


TINY = (
    "schedule.rounds=1", "training.batch=8", "training.epochs=1", "data.samples=8", "data.validation=20",
    "data.test=20", "model.image.blocks=1", "model.text.blocks=1", "evaluation.every=1",
    "compare.rows=[256 pairs, 512 pairs]",
)  # fmt: skip


@pytest.mark.slow(smaller="test_values_of_seeds_are_added_in_their_order_and_verdicts_are_scipys")
def test_seeds_that_lack_are_trained_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study("s", "", "open/few-public-pairs", ("image-text.r@10",),
                  (Claim(("image-text.r@10",), ("256 pairs", "512 pairs")),), 1.0, TINY)  # fmt: skip
    monkeypatch.setattr(orderings, "STUDIES", {"s": study})
    monkeypatch.setattr(orderings, "seeds_of", lambda _: [1, 2])
    file = tmp_path / "orderings.json"

    def train(minutes: float, out: str = "runs") -> bool:
        return orderings.train([study], tmp_path / out, lambda *_: None, minutes=minutes, file=file)

    assert not train(-1.0) and not file.exists()  # no time, so nothing begins
    assert train(10.0)
    (known,) = orderings.recorded(file).values()
    runs = edgefl.read_run(tmp_path / "runs/s/seed-2").runs
    last = [metrics_of(run) for run in runs.values()]
    assert [known.values[row]["image-text.r@10"][1] for row in ("256 pairs", "512 pairs")] == pytest.approx(
        [metric_value(metrics, "image-text.r@10") for metrics in last], abs=1e-6
    )
    assert train(-1.0)  # nothing lacks
    file.unlink()
    assert orderings.take([study], tmp_path / "runs", file) == 2 and orderings.recorded(file) == {"s": known}
    twin = Study("t", "", study.scenario, study.metrics, (), 1.0, (*TINY[:-1], "compare.rows=[512 pairs, 128 pairs]"))
    monkeypatch.setattr(orderings, "STUDIES", {"s": study, "t": twin})
    assert orderings.train([twin], tmp_path / "runs", lambda *_: None, minutes=10.0, file=file)
    assert [*edgefl.read_run(tmp_path / "runs/t/seed-2").runs] == ["seed=2,128-pairs"]
    both = orderings.recorded(file)
    assert [*both["t"].values] == ["512 pairs", "128 pairs"]
    assert both["t"].values["512 pairs"] == known.values["512 pairs"]
    orderings.write({"t": both["t"]}, file)  # has another row of a seed of s that was cut off
    shutil.rmtree(next((tmp_path / "runs/s/seed-2").glob("*256-pairs")))
    assert train(10.0)
    assert orderings.recorded(file)["s"] == known
    twin = replace(twin, name="u", overrides=TINY)
    assert orderings.seed_values(twin, 1, tmp_path / "none", orderings.shared_rows(twin, 1, both))  # nothing to train
    other = Study("s", "", study.scenario, study.metrics, study.claims, 1.0, (*TINY, "training.lr=0.5"))
    with pytest.raises(RunError, match=r"holds the run of another scenario \(.*: training.lr\); choose another folder"):
        orderings.seed_values(other, 1, tmp_path / "runs/s/seed-1")


# --- the scenarios ---------------------------------------------------------------------------------------------------


def test_every_scenario_is_of_a_study() -> None:
    assert {study.scenario for study in STUDIES.values()} == {*SCENARIOS}


@pytest.mark.parametrize("name", STUDIES)
def test_a_claim_is_about_rows_that_its_scenario_runs(name: str) -> None:
    study = STUDIES[name]
    compare = compared(study)
    assert compare["seed"] == [*range(1, 11)]
    for claim in study.claims:
        assert {*claim.metrics} <= {*study.metrics} and len(claim.order) >= 2
        assert {part for term in claim.order for part in term.split(" - ")} <= {*compare["rows"]}
    cells = load(study.scenario, ["compare.seed=[1]", *study.overrides]).combinations()
    assert len(cells) == len(compare["rows"])
    assert {cell.to_data()["evaluation"]["final"] for _, cell in cells} == {"test"}


SMALL = (
    "compare=null", "schedule.rounds=1", "training.batch=8", "training.epochs=1",
    "data.samples=8", "data.validation=20", "data.test=20",
)  # fmt: skip
MORE = {
    "data": ["data.source=glyphs"],
    "image": ["model.image.blocks=1"],
    "text": ["model.text.blocks=1"],
    "audio": ["model.audio.blocks=1"],
    "multiway": ["model.multiway.blocks=1"],
    "public": ["data.public=20"],
}
"""What makes a scenario small that has it."""


@pytest.mark.slow(smaller="test_a_claim_is_about_rows_that_its_scenario_runs")
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_round_of_every_scenario(name: str, tmp_path: Path) -> None:
    whole = load(name).to_data()
    parts = {
        "data": "audio" not in whole["model"],
        "public": whole["data"]["public"],
    }
    there = {part for part, value in {**parts, **whole["model"]}.items() if value}
    tiny = [*SMALL, *(override for part, overrides in MORE.items() if part in there for override in overrides)]
    tiny += [f"data.clients.{kind}={min(count, 3)}" for kind, count in whole["data"]["clients"].items()]
    for modality in (m for m in ("image", "text", "audio") if (whole["pretrain"] or {}).get(m)):
        tiny += [f"pretrain.{modality}.epochs=1", f"pretrain.{modality}.batch=8"]
    run = edgefl.run(name, out=tmp_path / "run", overrides=tiny)
    assert run.is_finished
    study = next(study for study in STUDIES.values() if study.scenario == name)
    for metric in study.metrics:
        assert 0 <= (metric_value(metrics_of(run), metric) or 0) <= 2
