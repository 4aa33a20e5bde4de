"""Orderings over seeds: what counts as one, and a round of every scenario that looks for some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgefl
from edgefl.commands.compare import orderings
from edgefl.commands.compare.studies import Claim, Study, study_of
from edgefl.commands.compare.table import orderings_markdown
from edgefl.scenario import load, scenario_names

SCENARIOS = [name for name in scenario_names() if name.startswith("papers/orderings-")]


@pytest.mark.parametrize(
    ("worse", "better", "word"),
    [
        # with two degrees of freedom the 97.5 % quantile is 0.95 sqrt(2 / (1 - 0.95 ** 2)), so over three seeds the
        # gap must be 2.4841 of its deviation
        ([0.0, 0.0, 0.0], [1.49, 2.49, 3.49], "holds"),
        ([0.0, 0.0, 0.0], [1.48, 2.48, 3.48], "no ordering"),
        ([1.49, 2.49, 3.49], [0.0, 0.0, 0.0], "reversed"),
        ([1.0, 20.0, 300.0], [1.1, 20.1, 300.12], "holds"),  # seeds differ by much more than variants
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], "no ordering"),
        ([1.0], [2.0], "one seed: no ordering"),
    ],
)
def test_an_ordering_holds_where_the_interval_of_the_gap_is_beyond_0(
    worse: Sequence[float], better: Sequence[float], word: str
) -> None:
    assert orderings.judge(worse, better).word == word


VALUES = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=5)


@settings(max_examples=25, deadline=None)
@given(VALUES)
def test_turned_round_an_ordering_is_reversed(pairs: list[tuple[float, float]]) -> None:
    worse, better = zip(*pairs, strict=True)
    other = {"holds": "reversed", "reversed": "holds"}
    word = orderings.judge(worse, better).word
    assert orderings.judge(better, worse).word == other.get(word, word)


def test_only_seeds_that_have_every_variant_are_compared() -> None:
    study = Study({"a": {}, "b": {}}, ("m.x",), (Claim("m.x", ("a", "b")),), "two")
    table = orderings.SeedScores(study)
    table.values["a"]["m.x"].update({1: 0.1, 2: 0.2, 3: 0.9})
    table.values["b"]["m.x"].update({2: 0.5, 1: 0.3})
    assert table.seeds == [1, 2]
    assert table.seed_values("b - a", "m.x") == pytest.approx([0.2, 0.3])
    # gaps .2 and .3: error .05; with one degree of freedom quantiles are tan(.475 pi) and tan(.3 pi), and with three
    # seeds (4.303 + 1.061) .0707 / sqrt(3) = .219 can be shown
    assert "| a < b | m.x | +0.250 ± 0.071 | -0.385 to +0.885 | 0.704 | 2 of 2 | 3 | no ordering |" in (
        told := orderings_markdown([orderings.ordering_of_study(table)], "test")
    )
    assert "over seeds 1, 2, test split." in told
    table.values["b"]["m.x"].pop(2)
    assert "| a < b | m.x | +0.200 | - | - | 1 of 1 | - | one seed: no ordering |" in orderings_markdown(
        [orderings.ordering_of_study(table)], "test"
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_claim_is_about_variants_that_its_scenario_runs(name: str) -> None:
    scenario = load(name)
    study = study_of(scenario.name)
    assert study is not None
    cells = [cell.to_data() for _, cell in scenario.combinations()]
    found = {variant for cell in cells for variant in study.variants if orderings.is_variant(study, variant, cell)}
    assert found <= set(study.variants)
    assert all(sum(orderings.is_variant(study, v, cell) for v in study.variants) == 1 for cell in cells)
    assert len({cell["seed"] for cell in cells}) >= 3
    assert {cell["evaluation"]["final"] for cell in cells} == {"test"}
    for claim in study.claims:
        assert {part for term in claim.order for part in term.split(" - ")} <= set(study.variants)


TINY = (
    "compare=null", "schedule.rounds=1", "training.batch=8", "training.epochs=1",
    "data.samples=8", "data.validation=20", "data.test=20",
)  # fmt: skip
MORE = {
    "data": ["data.source=glyphs"],
    "image": ["model.image.blocks=1", "model.text.blocks=1"],
    "multiway": ["model.multiway.blocks=1"],
    "public": ["data.public=20"],
    "pretrain": ["pretrain={image: {epochs: 1, batch: 8}, text: {epochs: 1, batch: 8}}"],
}
"""What makes a scenario small that has it."""


QUICK = {"papers/orderings-fedcola", "papers/orderings-eligibility-30"}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SCENARIOS]
)
def test_a_round_of_every_scenario(name: str, tmp_path: Path) -> None:
    whole = load(name).to_data()
    parts = {"data": True, "public": whole["data"]["public"], "pretrain": any((whole["pretrain"] or {}).values())}
    there = {part for part, value in {**parts, **whole["model"]}.items() if value}
    tiny = [*TINY, *(override for part, overrides in MORE.items() if part in there for override in overrides)]
    tiny += [f"data.clients.{kind}={min(count, 3)}" for kind, count in whole["data"]["clients"].items()]
    run = edgefl.run(name, out=tmp_path / "run", overrides=tiny)
    study = study_of(str(run.scenario["name"]))
    assert run.is_finished and study is not None
    assert all(0 <= orderings.last_metric(run, metric) <= 2 for metric in study.metrics)
