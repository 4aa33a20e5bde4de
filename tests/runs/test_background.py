"""Calls in the background: the newest is made, not too often, and errors come back."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event

import pytest
import torch
from records_of_tests import ENVIRONMENT, blank

from edgefl.errors import RunError
from edgefl.records.rounds import Round
from edgefl.runs import RunDirectory
from edgefl.runs.background import Background
from edgefl.runs.checkpoints import rounds

FILES = {"scenario_yaml": "name: a\n", "environment": ENVIRONMENT, "models": {}}


def test_the_first_call_is_made_at_once_and_of_later_ones_the_newest() -> None:
    made: list[int] = []
    background, first = Background(60.0), Event()
    background.give(lambda: (made.append(0), first.set()))  # type: ignore[func-returns-value, arg-type, return-value]
    assert first.wait(300)
    for number in range(1, 4):
        background.give(lambda number=number: made.append(number))  # type: ignore[misc]
    assert made == [0]
    background.settle()
    assert made == [0, 3]
    background.settle()
    background.close()
    assert made == [0, 3]


def test_a_call_is_made_when_the_pause_is_over() -> None:
    background, second = Background(0.2), Event()
    began = time.monotonic()
    background.give(lambda: None)
    time.sleep(0.05)
    background.give(second.set)
    assert second.wait(300) and time.monotonic() - began >= 0.2
    background.close()


def test_an_error_is_raised_by_the_next_use_and_once() -> None:
    def fail() -> None:
        raise RunError("the disk is full")

    background = Background(0.0)
    background.give(fail)
    with pytest.raises(RunError, match="the disk is full"):
        background.settle()
    background.settle()
    background.close()


@pytest.mark.parametrize("keep", [1, 3])
def test_checkpoints_in_the_background_are_of_the_newest_round(tmp_path: Path, keep: int) -> None:
    with RunDirectory.create(tmp_path / "run", **FILES) as run:  # type: ignore[arg-type]
        run.in_background, run.keep = True, keep
        for round in range(1, 5):
            run.append(blank(Round, round=round))
            run.checkpoint(round, {"w": torch.full((2,), float(round))}, {"round": round})
    with RunDirectory.open(tmp_path / "run") as run:
        latest = run.latest()
    assert latest is not None and latest[0] == 4 and latest[1]["w"].tolist() == [4.0, 4.0]
    written = rounds(tmp_path / "run" / "checkpoints")
    assert 4 in written and len(written) < 4 if keep == 1 else written == [1, 2, 3, 4]  # the first one is synced
