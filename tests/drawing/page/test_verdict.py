"""The verdict and the matrix of a report: numbers are those of the records, and only what is beyond chance is best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import pi, tan
from statistics import mean, stdev
from typing import Any

import pytest

import edgefl
from edgefl import units
from edgefl.drawing.charts import Records, groups_of, records_of
from edgefl.drawing.page.matrix import Matrix, matrix_of
from edgefl.drawing.page.verdict import verdict_of
from edgefl.results.facts import hardest
from edgefl.runs import Run

Groups = dict[str, list[Records]]


@pytest.fixture(scope="module")
def compared(compared_runs: Run) -> Run:
    return compared_runs


@pytest.fixture(scope="module")
def groups(compared: Run) -> Groups:
    return groups_of(compared, [records_of(run, label) for label, run in compared.runs.items()])


def runs_of(compared: Run, label: str) -> list[Run]:
    return [run for name, run in compared.runs.items() if name.startswith(label)]


def cells(matrix: Matrix, kind: str, label: str) -> Mapping[str, str]:
    part = next(part for part in matrix.parts if part.kind == kind)
    row = part.rows[list(matrix.labels).index(label)]
    return dict(zip(matrix.titles, (text for text, _ in row), strict=True))


def test_of_stages_that_admit_as_many_the_one_with_the_largest_peak_is_the_hardest(groups: Groups) -> None:
    facts = groups["layerwise"][0].facts
    first, second = (
        replace(stage, kinds={"text": replace(stage.kinds["text"], clients=2, eligible=1, peak_memory_bytes=peak)})
        for stage, peak in zip(facts.stages, (6, 11), strict=True)
    )
    assert hardest(replace(facts, stages=[first, second])) is hardest(replace(facts, stages=[second, first])) is second
    fewer = replace(first, kinds={"text": replace(first.kinds["text"], eligible=0)})
    assert hardest(replace(facts, stages=[fewer, second])) is fewer


def test_where_nobody_trained_nothing_is_least(groups: Groups) -> None:
    runs = groups["end-to-end"]
    nobody = [replace(run, facts=replace(run.facts, totals=replace(run.facts.totals, finished=0))) for run in runs]
    both = {**groups, "end-to-end": nobody}
    matrix = matrix_of(both)
    assert not any(is_best for part in matrix.parts for row in part.rows for _, is_best in row)
    assert any("takes the least" in sentence for sentence in verdict_of(groups, matrix_of(groups)))
    assert not any("takes the least" in sentence for sentence in verdict_of(both, matrix))


def test_the_matrix_has_what_the_records_have(compared: Run, groups: Groups) -> None:
    matrix = matrix_of(groups)
    assert len(matrix.labels) == 2 and matrix.titles[:2] == ["eligible", "metric"]
    for label in matrix.labels:
        runs = runs_of(compared, label)
        fewest = [min(sum(r["eligible"].values()) for r in run.records("rounds")) for run in runs]
        shown = cells(matrix, "", label)
        assert shown["eligible"] == f"{mean(fewest):.1f} ± {stdev(fewest):.1f} of 7"
        assert shown["time"].startswith(f"{mean(run.result['virtual_seconds'] for run in runs) * 1000:.3g}"[:2])
        for kind in ("image", "text", "image-text"):
            shown = cells(matrix, kind, label)
            peaks = [max(v["costs"]["memory"] for v in run.records("eligibility") if v["kind"] == kind) for run in runs]
            assert peaks[0] == peaks[1] and shown["peak memory"] == units.show_bytes(peaks[0])
            name = "r@10" if kind == "image-text" else "balanced_accuracy"
            scores = [run.result["metrics"][kind][name] for run in runs]
            assert shown["metric"].startswith(f"{mean(scores):.3f}")


def test_it_says_how_many_can_train_under_which_run(compared: Run, groups: Groups) -> None:
    first, *others = verdict_of(groups, matrix_of(groups))
    for label in groups:
        fewest = mean(
            min(sum(r["eligible"].values()) for r in run.records("rounds")) for run in runs_of(compared, label)
        )
        assert f"{'all 7' if fewest == 7 else f'{fewest:.3g} of 7'} under" in first and label in first
    assert any("beyond chance" in sentence or "seeds could show" in sentence for sentence in others)
    assert any("takes the least" in sentence for sentence in others)


def test_a_single_run_says_whom_which_budget_leaves_out_and_what_was_learned(compared: Run) -> None:
    run = runs_of(compared, "end-to-end")[0]
    records = records_of(run, run.name)
    refused = {v["client"] for v in run.records("eligibility") if not v["eligible"]}
    assert refused
    one = {"mine": [records]}
    fits, lost, learned = verdict_of(one, matrix_of(one))
    assert fits == f"{7 - len(refused)} of 7 clients can train this."
    assert lost.startswith(f"Memory leaves {len(refused)} out, and ")
    score = run.result["metrics"]["image"]["balanced_accuracy"]
    assert f"mage balanced accuracy {score:.3f}" in learned and "after 2 rounds" in learned and "test split" in learned


def scored(groups: Groups, scores: Mapping[str, Sequence[float]]) -> Groups:
    """The same runs with these accuracies of images and no other metric."""
    return {
        label: [
            replace(
                run,
                rounds=[replace(r, metrics={"image": {"accuracy": 0.5}}) for r in run.rounds],
                facts=replace(run.facts, metrics={"image": {"accuracy": score}}),
            )
            for run, score in zip(runs, scores[label], strict=True)
        ]
        for label, runs in groups.items()
    }


def test_a_run_is_ahead_only_beyond_chance(groups: Groups) -> None:
    a, b = groups
    clear = scored(groups, {a: (0.2, 0.8), b: (0.1, 0.69)})  # gaps .10 and .11: t = 21 with one degree of freedom
    told = verdict_of(clear, matrix_of(clear))
    assert f"Image accuracy: {b} is behind {a} by 0.105 (paired over 2 seeds, beyond chance)." in told
    assert any(best for part in matrix_of(clear).parts if part.kind == "image" for _, best in part.rows[0][1:2])
    chance = scored(groups, {a: (0.8, 0.9), b: (0.7, 0.7)})  # gaps .1 and .2: t = 3
    told = verdict_of(chance, matrix_of(chance))
    could = (tan(0.475 * pi) + tan(0.3 * pi)) * 0.05  # quantiles of one degree of freedom, times the error
    assert f"Image accuracy: {b} is not shown to be behind {a}: by 0.150, where 2 seeds could show {could:.3f}." in told
    single = {label: runs[:1] for label, runs in clear.items()}
    assert "With fewer than two shared seeds nothing shows which run learns best." in verdict_of(
        single, matrix_of(single)
    )
    assert not any(best for part in matrix_of(single).parts for row in part.rows for _, best in row)


def test_a_run_without_training_has_no_metric(tiny: Callable[..., dict[str, Any]], tmp_path: Any) -> None:
    run = edgefl.run(tiny(training="none"), out=tmp_path / "run")
    one = {"mine": [records_of(run)]}
    matrix = matrix_of(one)
    assert "metric" not in matrix.titles and matrix.parts[0].rows[0][0][0] == "7 of 7"
    assert verdict_of(one, matrix) == ["All 7 clients can train this."]
