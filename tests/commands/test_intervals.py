"""The interval of seconds: every answer with seconds says it, and drawn paces move what it is an interval of."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import log
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

import edgefl
from edgefl import seeds
from edgefl.commands.fit.table import print_fit
from edgefl.commands.profile.table import print_answer
from edgefl.commands.run.table import print_summary
from edgefl.commands.sweep.table import print_sweep
from edgefl.devices.browsing import seconds_within
from edgefl.results import facts
from edgefl.runs import read_run

Tiny = Callable[..., dict[str, Any]]
DECLARED = {
    "source": "declared", "clients": {"image": 3}, "samples": 40,
    "shapes": {"image": {"channels": 1, "size": 16, "classes": 4}},
}  # fmt: skip
PI, PHONE = "raspberry-pi-4-8gb", "phone-mid"


def of(tiny: Tiny, **fleet: Any) -> dict[str, Any]:
    model = {"image": {"blocks": 1, "width": 8, "heads": 2}}
    return tiny(data=DECLARED, model=model, fleet={"devices": {PI: 2, PHONE: 1}, **fleet})


Printed = pytest.CaptureFixture[str]
WITHIN = seconds_within([PI, PHONE])
BOTH = f"x{WITHIN[PI]:.2g} to x{WITHIN[PHONE]:.2g} either way (80 %)"


def test_a_profile_says_the_intervals_of_its_devices(tiny: Tiny, capsys: Printed) -> None:
    profile = edgefl.profile(of(tiny))
    assert profile.seconds_within == WITHIN
    for full in (False, True):
        print_answer(profile, full=full)
        assert f"seconds: {BOTH}" in capsys.readouterr().out
    assert edgefl.profile(of(tiny), device=PHONE).seconds_within == {PHONE: WITHIN[PHONE]}


def test_a_sweep_and_a_fit_say_the_intervals_of_their_devices(tiny: Tiny, capsys: Printed) -> None:
    swept = edgefl.sweep(of(tiny), ["seed=1,2"])
    assert swept.seconds_within == WITHIN
    print_sweep(swept)
    assert f"seconds: {BOTH}" in capsys.readouterr().out
    print_fit(edgefl.fit(of(tiny), device=PI))
    assert f"seconds: x{WITHIN[PI]:.2g} either way (80 %)" in capsys.readouterr().out


def test_a_summary_says_the_intervals_beside_the_virtual_time(tiny: Tiny, tmp_path: Path, capsys: Printed) -> None:
    edgefl.run({**of(tiny), "training": {"mode": "none"}}, out=tmp_path / "run")
    summary = facts.summary(read_run(tmp_path / "run"))
    assert [each.seconds_within for each in summary.runs.values()] == [WITHIN]
    print_summary(summary)
    assert re.search(rf"virtual time \S+ \S+, {re.escape(BOTH)}, 6 updates", capsys.readouterr().out)


def test_the_share_of_seeds_in_which_a_device_trains_in_time_is_that_of_its_paces(tiny: Tiny) -> None:
    """A budget between the paces: by hand the clients of a seed are eligible if their device's own draw is below it."""
    plain = edgefl.profile(of(tiny), device=PI)
    seconds = plain.rows[0].virtual_seconds
    within = seconds_within([PI])[PI]
    sigma = log(within) / NormalDist().inv_cdf(0.9)
    drawn = [sigma * seeds.generator(seed, f"pace {PI}").standard_normal() for seed in range(1, 9)]
    assert min(drawn) < 0 < max(drawn)
    for seed, pace in zip(range(1, 9), drawn, strict=True):
        row = edgefl.profile({**of(tiny, uncertainty="80%"), "seed": seed}, device=PI).rows[0]
        assert (row.virtual_seconds > seconds) == (pace > 0)
    checked = edgefl.sweep(
        of(tiny, uncertainty="80%", budgets={"seconds_per_round": seconds}), ["seed=1,2,3,4,5,6,7,8"], devices=[PI]
    )
    assert checked.devices
    able = [check.rows[0].eligible for check in checked.devices.values()]
    assert able == [pace < 0 for pace in drawn]
