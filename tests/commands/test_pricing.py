"""Works that worker processes price side by side: the same prices, to the byte."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.cells.pricing import Pricing, beside
from edgefl.commands.fit.command import Unfinished
from edgefl.commands.fit.table import print_fit
from edgefl.plain_data import to_data
from edgefl.planning.subjects import works_of
from edgefl.scenario import load
from edgefl.setup.compose import planner_of

Tiny = Callable[..., dict[str, Any]]
PI = "raspberry-pi-4-4gb"


@pytest.fixture
def staged(tiny: Tiny) -> dict[str, Any]:
    """Six works: three kinds in two stages."""
    shapes = {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}
    data = {"source": "declared", "clients": {"image": 2, "text": 2, "image-text": 1}, "samples": 40, "shapes": shapes}
    return tiny(data=data, schedule={"name": "layerwise", "stages": 2, "rounds": 2})


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "costs").iterdir())}


@pytest.mark.slow(smaller="test_a_worker_answers_with_the_trace")
def test_prices_of_two_jobs_are_those_of_one(
    staged: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, kept, begun = [], [], list[str]()
    begin = Pricing.begin
    monkeypatch.setattr(Pricing, "begin", lambda self, wanted: (begun.append(wanted.key), begin(self, wanted))[1])
    for jobs in (1, 2):
        monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path / str(jobs)))
        answers.append(json.dumps(edgefl.profile(staged, jobs=jobs).to_data()))
        kept.append(files_of(tmp_path / str(jobs)))
        assert len(set(begun)) == (6 if jobs == 2 else 0)
    assert answers[0] == answers[1] and kept[0] == kept[1]
    edgefl.sweep(staged, devices="all", jobs=2)
    assert len(set(begun)) == 6  # all prices are known


def test_a_worker_answers_with_the_trace(
    staged: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEFL_CACHE", str(tmp_path))
    planner = planner_of(load(staged))
    first, *_ = works_of(planner, ["image"], planner.setup.schedule.offered)
    with beside([planner.predictor], 2) as pricing:
        assert pricing is not None and pricing.take(first.key) is None  # it wasn't begun
        pricing.begin(first)
        answered = pricing.take(first.key)
    alone = planner.predictor.trace(first.work, first.shapes, first.key)
    assert answered is not None and to_data(answered) == to_data(alone)
    assert answered.peak_memory_bytes == alone.peak_memory_bytes and planner.predictor.ahead is None


@pytest.mark.slow(smaller="test_a_worker_answers_with_the_trace")
def test_what_was_found_is_kept_when_a_search_is_interrupted(
    staged: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    now = edgefl.fit(staged, device=PI, kind="text", jobs=1)["kinds"]["text"]["as_it_stands"]
    allowed = f"{int(now['peak_memory_bytes'] * 0.8)} B"
    found = list[str]()

    def interrupting(event: str, facts: Mapping[str, Any]) -> None:
        if event == "found":
            found.append(facts["what"])
            raise KeyboardInterrupt

    with pytest.raises(Unfinished) as stopped:
        edgefl.fit(staged, device=PI, kind="text", memory=allowed, answers=1, jobs=1, on_progress=interrupting)
    answer = stopped.value.answer
    print_fit(answer)
    assert "; interrupted\n" in capsys.readouterr().out
    so_far = answer["kinds"]["text"]
    whole = edgefl.fit(staged, device=PI, kind="text", memory=allowed, answers=1, jobs=2)["kinds"]["text"]
    assert so_far["complete"] is False and so_far["predictions"] >= 1
    assert found[0].startswith("text: solution 1: --set ")
    assert [each["sets"] for each in so_far["solutions"]] == [whole["solutions"][0]["sets"]]
    again = edgefl.fit(staged, device=PI, kind="text", memory=allowed, answers=1, jobs=1)["kinds"]["text"]
    assert again.to_data() == whole.to_data()
