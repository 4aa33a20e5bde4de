"""Every registered method keeps the contract, under every registered schedule."""

from __future__ import annotations

from itertools import cycle

import pytest

import edgefl
from edgefl import registry

METHODS, SCHEDULES = registry.names("method"), registry.names("schedule")

LONGER = max(len(METHODS), len(SCHEDULES))
EACH_ONCE = sorted({pair for pair, _ in zip(zip(cycle(METHODS), cycle(SCHEDULES)), range(LONGER), strict=False)})
"""Each method under one schedule, each schedule with one method."""

FEW = {"pairs": 10, "public_batch": 4, "kinds": ["image-text"]}
QUICK = {"creamfl": {"pairs": 26}}
QUICK |= dict.fromkeys(("reamfl-mean", "reamfl-avg", "reamfl-iot", "fedmd", "fedet", "fedgems"), FEW)
"""Options with which a method has less to do: three public batches rather than all, one kind rather than three."""


@pytest.mark.parametrize(("method", "schedule"), EACH_ONCE)
def test_a_method_keeps_the_contract(method, schedule):
    report = edgefl.check_method(method, schedules=[schedule], **QUICK.get(method, {}))
    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_method_keeps_the_contract_under_every_schedule_and_in_worker_processes(method):
    report = edgefl.check_method(method, processes=True)
    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("allocation", ["uniform", "late"])
def test_a_stage_without_rounds_is_passed_over(allocation):
    schedule = {"name": "layerwise", "stages": [1, 1], "rounds": 2, "allocation": allocation}
    report = edgefl.check_method("fedcola", schedules=[schedule])
    assert report.ok, str(report)
