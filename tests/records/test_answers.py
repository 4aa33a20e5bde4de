"""The classes of answers: every field has a meaning, and they hold what commands answered before there were classes."""

from __future__ import annotations

import importlib
import json
import pkgutil
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import edgefl
from edgefl import records
from edgefl.commands.analyse.answer import Analysis
from edgefl.commands.compare.answer import ComparedRuns
from edgefl.commands.devices.published import validate_devices
from edgefl.commands.fit.answer import Fit
from edgefl.commands.profile.against import cost_diff
from edgefl.commands.profile.answer import ComparedProfiles, CostDifference, Measurements, Profile
from edgefl.commands.profile.compare_profiles import compare_profiles
from edgefl.commands.profile.measure import count, measure
from edgefl.commands.sweep.answer import Sweep
from edgefl.records.devices import DeviceCheck
from edgefl.records.published import PublishedAgreement
from edgefl.records.reading import decode
from edgefl.records.record import Record, fields_of
from edgefl.runs import Run
from tests.toys.answers import RECORDED, recorded_fit, recorded_profile, recorded_sweep

RECORDINGS = {
    **{name: lambda name=name: recorded_profile(name) for name in ("profile", "profile-creamfl", "profile-depthfl")},
    **{name: lambda name=name: recorded_sweep(name) for name in ("sweep", "sweep-sensitivity")},
    "fit": recorded_fit,
}  # fmt: skip

DECLARED = {"source": "declared", "clients": {"image": 2}, "samples": 16, "validation": 20,
            "shapes": {"image": {"channels": 1, "size": 16, "classes": 4}}}  # fmt: skip


def classes() -> list[type[Record]]:
    for module in pkgutil.iter_modules(records.__path__):
        importlib.import_module(f"edgefl.records.{module.name}")
    found, waiting = [], Record.__subclasses__()
    while waiting:
        each = waiting.pop()
        waiting += each.__subclasses__()
        if each.__module__.startswith("edgefl.records."):
            found.append(each)
    return found


def test_every_field_has_a_meaning_and_the_unit_that_its_name_says() -> None:
    units = {"bytes": "bytes", "seconds": "s", "joules": "J", "flops": "FLOPs", "macs": "MACs", "share": "share"}
    assert len(classes()) > 60
    for cls in classes():
        for row in fields_of(cls):  # raises TypeError for one without a meaning
            word = row.name.replace("[]", "").rpartition(".")[2].rpartition("_")[2]
            if row.type in ("integer", "number"):
                assert row.unit == units.get(word, row.unit), f"{cls.__name__}.{row.name}"


@pytest.mark.parametrize("name", RECORDINGS)
def test_what_was_answered_before_comes_back_whole(name: str) -> None:
    given = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    assert RECORDINGS[name]().to_data() == given  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "name", ["analyse", "check_devices", "compare", "fit", "profile", "profile_clients", "sweep"]
)  # fmt: skip
def test_a_public_command_returns_a_record(name: str) -> None:
    kind: Any = get_type_hints(getattr(edgefl, name))["return"]
    for each in getattr(kind, "__args__", (kind,)):
        assert issubclass(each, Record)


@pytest.fixture(scope="module")
def answers(tiny: Any, layerwise_run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[type[Record], Record]:
    """An answer of each command, made now."""
    folder = tmp_path_factory.mktemp("answers")
    scenario = tiny(data=DECLARED, model={"image": {"blocks": 2, "width": 16, "heads": 2}}, training={"batch": 8})
    compared = {**scenario, "compare": {"training.batch": [8, 4]}, "evaluation": {"every": 10}}
    profile = edgefl.profile(compared, timeline=folder / "t.html")
    (folder / "p.json").write_text(json.dumps(edgefl.profile(scenario).to_data()))
    only = ("gradients", "drift")
    return {
        Profile: profile,
        ComparedProfiles: compare_profiles([compared]),
        CostDifference: cost_diff(folder / "p.json", folder / "p.json"),
        DeviceCheck: edgefl.check_devices(scenario, devices=["phone-mid"]),
        PublishedAgreement: validate_devices(devices=["jetson-xavier-nx-8gb"]),
        Measurements: measure(scenario, calibration_seconds=0.05),
        ComparedRuns: edgefl.compare([layerwise_run.path]),
        Fit: edgefl.fit(scenario, device="raspberry-pi-zero-2w", memory="1 B", first=1, most=2),
        Analysis: edgefl.analyse(layerwise_run.path, only=only, out=folder / "a", clients=1),
    }


def test_answers_are_what_their_classes_say(answers: dict[type[Record], Record]) -> None:
    """msgspec reads each as its class, which it refuses for a value of another type, and nothing is lost."""
    for cls, answer in answers.items():
        written = answer.to_data()
        assert type(answer) is cls
        assert decode(cls, json.dumps(written, allow_nan=False).encode(), cls.__name__).to_data() == written


def test_values_are_found_by_name_as_in_a_dictionary(answers: dict[type[Record], Record]) -> None:
    profile = answers[Profile]
    assert profile["rows"][0]["peak_memory_bytes"] == profile.rows[0].peak_memory_bytes  # type: ignore[attr-defined]
    assert "timeline" in profile and "measured" not in profile
    with pytest.raises(KeyError, match="measured"):
        profile["measured"]


def test_the_varied_fields_of_a_sweep_stand_in_its_rows(tiny: Any, tmp_path: Path) -> None:
    scenario = tiny(data=DECLARED, model={"image": {"blocks": 2, "width": 16, "heads": 2}})
    layers = "schedule={name: layerwise, rounds: 6}"
    sweep = edgefl.sweep(scenario, ["schedule.stages=1,2,3", "training.batch=8"], overrides=[layers])
    assert [bool(row.refused) for row in sweep.rows] == [False, False, True]
    assert [row["schedule.stages"] for row in sweep.rows] == [1, 2, 3]
    written = sweep.to_data()["rows"]
    assert [row["schedule.stages"] for row in written] == [1, 2, 3] and all("sets" not in row for row in written)
    assert list(written[2]) == ["label", "schedule.stages", "training.batch", "method", "schedule", "refused"]
    assert {field.name for field in fields(Sweep)} >= sweep.to_data().keys()


def test_counted_macs_are_a_record_each(tiny: Any) -> None:
    (row,) = count(tiny(data=DECLARED, model={"image": {"blocks": 1, "width": 16, "heads": 2}}))
    assert row.forward_macs == sum(row.forward_macs_by_part.values()) > 0
