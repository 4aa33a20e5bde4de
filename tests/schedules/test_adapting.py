"""Schedules that see a run's metrics, losses and movement, and end their stages by them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from pydantic import Field
from rich.console import Console

import edgefl
from edgefl import registry
from edgefl.commands.fit.table import print_fit
from edgefl.commands.profile.rounds_table import print_profile
from edgefl.commands.sweep.table import print_sweep
from edgefl.errors import EdgeflError, MethodError
from edgefl.registry.registered import PARTS
from edgefl.schedules import EndedRound, Layerwise

Tiny = Callable[..., dict[str, Any]]

DATA = {"source": "glyphs", "clients": {"image": 3, "text": 2}, "samples": 24, "validation": 20, "test": 20}
SEEN: list[EndedRound] = []
"""What the schedule of the last run saw."""


class Plateau(Layerwise):
    """Layer-wise stages, each of which ends when the mean loss no longer falls by a share of itself."""

    adapts = True

    class Options(Layerwise.Options):
        name: Literal["plateau"] = "plateau"  # type: ignore[assignment]
        share: float = Field(0.02, ge=0)

    def __init__(self, options: Plateau.Options, blocks: Mapping[str, int]):
        super().__init__(options, blocks)
        self.share = options.share
        self.best: float | None = None

    def learn(self, seen: EndedRound) -> None:
        SEEN.append(seen)
        loss = sum(value for value in seen.losses.values() if value is not None)
        stalls = self.best is not None and loss > (1 - self.share) * self.best
        self.best = loss if self.best is None else min(loss, self.best)
        if stalls and self.end_stage(seen.round):
            self.best = None

    def to_data(self) -> dict[str, Any]:
        return {**super().to_data(), "best": self.best}

    def load_data(self, raw: Mapping[str, Any]) -> None:
        super().load_data(raw)
        self.best = raw["best"]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    edgefl.register("schedule", "plateau")(Plateau)
    SEEN.clear()
    yield
    PARTS.clear()
    registry.forget()


def plateau(tiny: Tiny, *, share: float = 0.02, rounds: int = 8, **sections: Any) -> dict[str, Any]:
    schedule = {"name": "plateau", "stages": 2, "rounds": rounds, "share": share}
    return tiny(**{"data": DATA, "schedule": schedule, "evaluation": {"every": 2}, **sections})


def by_hand(rounds: list[Any], share: float) -> list[int]:
    """The stage of each round, from the recorded losses: stage 1 lasts 4 rounds at most, stage 2 lasts 4."""
    losses = [sum(record["losses"].values()) for record in rounds]
    for number in range(2, 5):
        if losses[number - 1] > (1 - share) * min(losses[: number - 1]):
            return [1] * number + [2] * 4
    return [1] * 4 + [2] * 4


@pytest.mark.slow(smaller="test_the_end_of_a_stage_moves_those_behind_it")
def test_a_stage_ends_when_the_loss_no_longer_falls(tiny: Tiny) -> None:
    """The stages of the rounds are those that a loop over the recorded losses finds, at two thresholds."""
    found = {}
    for share in (0.0, 0.9):
        SEEN.clear()
        run = edgefl.run(plateau(tiny, share=share))
        found[share] = [record["stage"] for record in run.records("rounds")]
        assert found[share] == by_hand(run.records("rounds"), share)
        assert [seen.losses for seen in SEEN] == [record["losses"] for record in run.records("rounds")]
        assert [seen.metrics for seen in SEEN] == [record["metrics"] for record in run.records("rounds")]
        assert run.records("rounds")[-1]["metrics"], "the last round is evaluated"
    assert found[0.9] == [1, 1, 2, 2, 2, 2] and len(found[0.0]) > 6


def test_only_parts_that_train_move(tiny: Tiny) -> None:
    edgefl.run(plateau(tiny, share=0.9, data={**DATA, "clients": {"image": 2}}))
    first, last = (set(SEEN[at].moved_addresses()) for at in (0, -1))
    assert {a for a in first if ".blocks." in a} == {a for a in first | last if ".blocks.0." in a}
    assert {a for a in last if ".blocks." in a} == {a for a in first | last if ".blocks.1." in a}
    assert [a for a in first if ".embedding" in a] and not [a for a in last if ".embedding" in a]
    for seen in SEEN:
        assert all(
            not torch.equal(seen.before[a], seen.after[a]) for a in seen.moved_addresses() if a.endswith("weight")
        )
        assert all(seen.before[a] is seen.after[a] for a in seen.after if a not in seen.moved_addresses())


def test_what_counts_as_moved() -> None:
    before = {"a/image.head.w": torch.zeros(3), "a/image.norm.w": torch.zeros(3)}
    after = {a: t + 1 for a, t in before.items()} | {"a/image.norm.w": before["a/image.norm.w"]}
    after |= {"table/x": torch.ones(1), "a/image.norm.count": torch.ones(1, dtype=torch.int64)}
    seen = EndedRound(1, {}, {}, before | {"a/image.norm.count": torch.zeros(1)}, after)
    assert seen.moved_addresses() == ["a/image.head.w"]


@pytest.mark.parametrize("policy", ["synchronous", pytest.param("buffered", marks=pytest.mark.slow)])
@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_resumed_run_has_the_same_stages(tiny: Tiny, tmp_path: Path, after: int, policy: str) -> None:
    """Killed before its second, third or fifth record is out: before and after stage 1 has ended early."""
    round = {"policy": policy, "buffer": 2, "cohort": 1.0}
    given = plateau(tiny, share=0.9, round=round)
    whole = edgefl.run(given, out=tmp_path / "whole")

    def stop(event: str, facts: Mapping[str, Any]) -> None:
        if event == "record" and facts["round"] == after + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        edgefl.run(given, out=tmp_path / "cut", on_progress=stop)
    resumed = edgefl.run(resume=tmp_path / "cut")
    assert resumed.records("rounds") == whole.records("rounds")
    assert [record["stage"] for record in whole.records("rounds")] == [1, 1, 2, 2, 2, 2]
    assert all(torch.equal(tensor, resumed.weights()[name]) for name, tensor in whole.weights().items())


@pytest.mark.slow(smaller="test_a_resumed_run_has_the_same_stages")
def test_a_setup_can_be_run_again(tiny: Tiny) -> None:
    """A run ends the stages of a copy: the next one begins with the longest stages."""
    first, second = (edgefl.run(plateau(tiny, share=0.9)) for _ in range(2))
    assert first.records("rounds") == second.records("rounds")


def test_the_end_of_a_stage_moves_those_behind_it() -> None:
    schedule = Plateau(Plateau.Options(stages=3, rounds=9), {"image": 3})
    fresh = schedule.fresh()
    assert schedule.end_stage(2) and schedule.rounds == 8
    assert [schedule.stage(round).index for round in range(1, 9)] == [1, 1, 2, 2, 2, 3, 3, 3]
    assert schedule.ends(2) is schedule.stages[0] and [*schedule.rounds_of(schedule.stages[1])] == [3, 4, 5]
    assert not schedule.end_stage(7), "the last stage lasts"
    with pytest.raises(MethodError, match="round 9 is outside the schedule of 8 rounds"):
        schedule.stage(9)
    assert fresh.rounds == 9
    fresh.load_data(schedule.to_data())
    assert [fresh.stage(round).index for round in range(1, 9)] == [1, 1, 2, 2, 2, 3, 3, 3]


def test_what_does_not_go_with_it_is_refused(tiny: Tiny) -> None:
    with pytest.raises(EdgeflError, match="plateau ends its stages by what a run learns, and training: none learns"):
        edgefl.validate(plateau(tiny, training={"mode": "none", "batch": 8}))
    with pytest.raises(EdgeflError, match="deliver_final: a schedule that adapts knows"):
        edgefl.validate(tiny(data=DATA, schedule={"name": "plateau", "rounds": 4, "deliver_final": True}))


def test_what_is_priced_beforehand_is_said_to_be_the_most(tiny: Tiny) -> None:
    console = Console(width=200, record=True, file=StringIO())
    given = plateau(tiny, share=0.9, data={**DATA, "clients": {"image": 2}})
    profile, sweep = edgefl.profile(given), edgefl.sweep(given, ["training.batch=4,8"])
    fit = edgefl.fit(given, device="raspberry-pi-4-4gb")
    assert [total["rounds"] for total in profile["totals"]] == [8]
    assert [row["rounds"] for row in sweep["rows"]] == [8, 8]
    assert sum(stage["rounds"] for stage in fit["kinds"]["image"]["as_it_stands"]["stages"]) == 8
    for show, result in ((print_profile, profile), (print_sweep, sweep), (print_fit, fit)):
        assert result["at_most"] == ["plateau"]
        show(result, console)
        told = "plateau ends its stages by what a run learns: rounds and totals are at most these"
        assert console.export_text().count(told) == 1
    assert "at_most" not in edgefl.profile(tiny(data=DATA))
