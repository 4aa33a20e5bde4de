"""The classes of answers: every field has a meaning, and they hold what commands answered before there were classes."""

from __future__ import annotations

import importlib
import json
import pkgutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl import records
from edgefl.commands.profile.answer import Measurements
from edgefl.commands.profile.measure import count, measure
from edgefl.commands.run.answer import RunAnswer
from edgefl.commands.sweep.answer import Sweep
from edgefl.commands.validate.schemas import answers
from edgefl.console import main
from edgefl.records.answer import Answer
from edgefl.records.record import Record, fields_of
from edgefl.runs import Run
from tests.toys.answers import RECORDED, read_back, recorded_fit, recorded_profile, recorded_sweep

RECORDINGS = {
    **{name: lambda name=name: recorded_profile(name) for name in ("profile", "profile-creamfl", "profile-depthfl")},
    **{name: lambda name=name: recorded_sweep(name) for name in ("sweep", "sweep-sensitivity")},
    "fit": recorded_fit,
}  # fmt: skip

DECLARED = {"source": "declared", "clients": {"image": 2, "text": 1}, "samples": 16, "validation": 20,
            "shapes": {"image": {"channels": 1, "size": 16, "classes": 4}, "text": {"vocabulary": 200}}}  # fmt: skip


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


LEFT = "--set round.leave_out=[text]"
"""Leaves a kind out, whose clients then lack costs."""

ANSWERS = answers()

READ_BACK = {
    "profile": f"profile compared.yaml {LEFT} --clients --timeline t.html --against p.json --as json",
    "devices list": "devices list --as json",
    "devices show": "devices show raspberry-pi-4-4gb --as json",
    "devices new": "devices new mine --like lte --set loss=1% --force --as json",
    "parts": "parts --as json",
    "compare": "compare {run} --as json",
    "sweep": "sweep it.yaml compared.yaml --vary schedule.stages=1,2,3 --sensitivity 2x --devices phone-mid --as json",
    "fit": "fit it.yaml --device raspberry-pi-zero-2w --memory 1B --answers 1 --most 2 --as json",
    "analyse": "analyse {run} --only gradients,drift -o a --clients 1 --as json",
    "validate": "validate it.yaml --set training.mode=none --as json",
    "new": "new another --as json",
    "run": "run --resume {run} --as json",
    "verify": "run --resume {run} --verify --as json",
    "explain": "explain {run} --round 1 --client 0 --as json",
    "export": "export {run} --to csv -o csv --as json",
    "report": "report {run} -o page.html --as json",
}
"""For each answer a command that prints it."""

ELSEWHERE = {"devices calibrate", "tune", "bench"}
"""Answers that take long to make: the tests of their commands read them back."""


@pytest.fixture(scope="module")
def folder(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two scenarios, ``it.yaml`` and ``compared.yaml``, and a profile of the second, ``p.json``."""
    folder = tmp_path_factory.mktemp("answers")
    schedule = {"name": "layerwise", "stages": 2, "rounds": 6}
    scenario = {"edgefl": 1, **tiny(data=DECLARED, schedule=schedule, training={"batch": 8})}
    (folder / "it.yaml").write_text(json.dumps(scenario))
    compared = {**scenario, "name": "compared", "compare": {"training.batch": [8, 4]}}
    (folder / "compared.yaml").write_text(json.dumps(compared))
    (folder / "p.json").write_text(json.dumps(edgefl.profile(compared, [LEFT.split()[1]]).to_data()))
    return folder


@pytest.mark.parametrize("name", READ_BACK)
def test_what_is_printed_is_what_its_class_says(
    name: str, folder: Path, layerwise_run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """msgspec reads it as its class, which it refuses for a value of another type, and nothing is lost."""
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        main([word.format(run=layerwise_run.path) for word in READ_BACK[name].split()])
    assert ended.value.code in ((1,) if name == "fit" else (0, None))  # nothing fits into a byte
    read_back(RunAnswer if name == "verify" else ANSWERS[name], capsys.readouterr().out)


def test_every_answer_is_read_back() -> None:
    assert {*READ_BACK} | ELSEWHERE == {*ANSWERS, "verify"}
    assert all(issubclass(cls, Answer) for cls in ANSWERS.values())


def test_measured_steps_and_counted_macs_are_records(folder: Path) -> None:
    measured = measure(folder / "it.yaml", calibration_seconds=0.05)
    read_back(Measurements, json.dumps(measured.to_data(), allow_nan=False))
    for row in count(folder / "it.yaml"):
        assert row.forward_macs == sum(row.forward_macs_by_part.values()) > 0


def test_values_are_found_by_name_as_in_a_dictionary() -> None:
    profile: Any = recorded_profile()
    assert profile["rows"][0]["peak_memory_bytes"] == profile.rows[0].peak_memory_bytes
    assert "rows" in profile and "measured" not in profile
    with pytest.raises(KeyError, match="measured"):
        profile["measured"]


def test_the_varied_fields_of_a_sweep_stand_in_its_rows(tiny: Any, tmp_path: Path) -> None:
    scenario = tiny(data=DECLARED)
    layers = "schedule={name: layerwise, rounds: 6}"
    sweep = edgefl.sweep(scenario, ["schedule.stages=1,2,3", "training.batch=8"], overrides=[layers])
    assert [bool(row.refused) for row in sweep.rows] == [False, False, True]
    assert [row["schedule.stages"] for row in sweep.rows] == [1, 2, 3]
    written = sweep.to_data()["rows"]
    assert [row["schedule.stages"] for row in written] == [1, 2, 3] and all("sets" not in row for row in written)
    assert list(written[2]) == ["label", "schedule.stages", "training.batch", "method", "schedule", "refused"]
    assert {field.name for field in fields(Sweep)} >= sweep.to_data().keys()
