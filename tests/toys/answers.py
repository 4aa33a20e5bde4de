"""The recorded answers of commands as records."""

from __future__ import annotations

import json
from pathlib import Path

from edgefl.commands.fit.answer import Fit
from edgefl.commands.profile.answer import Profile
from edgefl.commands.sweep.answer import MethodFrontier, Sensitivity, Sweep, read_cell
from edgefl.records.reading import decode
from edgefl.records.record import UNSET

RECORDED = Path(__file__).parents[1] / "recorded" / "expected"


def recorded_profile(name: str = "profile") -> Profile:
    return decode(Profile, (RECORDED / f"{name}.json").read_bytes(), name)


def recorded_fit() -> Fit:
    return decode(Fit, (RECORDED / "fit.json").read_bytes(), "fit")


def recorded_sweep(name: str = "sweep") -> Sweep:
    given = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    frontier = {
        method: decode(MethodFrontier, json.dumps(value).encode(), name) for method, value in given["frontier"].items()
    }
    rows = [read_cell(row, name) for row in given["rows"]]
    predictions = given.get("predictions", UNSET)
    sweep = Sweep(scenario=given["scenario"], axes=given["axes"], rows=rows, frontier=frontier, predictions=predictions)
    if "sensitivity" not in given:
        return sweep
    order = decode(Sensitivity, json.dumps(given["sensitivity"]).encode(), name)
    return Sweep(**{**vars(sweep), "sensitivity": order})
