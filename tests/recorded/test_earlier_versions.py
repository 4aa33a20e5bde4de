"""What edgefl 0.1.0 wrote, and what was written for it, is taken by this version: docs/explanation/compatibility.md.

The files in ``0.1.0`` are never made again.  A test here that fails shows a change that the page forbids, or one that
it has announced.
"""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import edgefl
from edgefl import errors, registry
from edgefl.cli.app import app
from edgefl.commands.verify.verify import verify
from edgefl.records.clients import FlightRecord, ScoredClient
from edgefl.records.compare import ComparedRuns
from edgefl.records.devices import DeviceCheck
from edgefl.records.eligibility import VerdictRecord
from edgefl.records.fit import Fit
from edgefl.records.host import HostWork, Scratch
from edgefl.records.profile import Profile
from edgefl.records.reading import decode
from edgefl.records.record import Record, types_of
from edgefl.records.rounds import Round
from edgefl.runs import read_run
from edgefl.scenario import load
from tests.records.test_answers import classes

OLD = Path(__file__).parent / "0.1.0"
WHOLE, CUT = OLD / "whole", OLD / "cut"
ANSWERS: dict[str, type[Record]] = {
    "compare": ComparedRuns, "devices-check": DeviceCheck, "fit": Fit, "profile": Profile,
}  # fmt: skip

TABLES: dict[str, type[Record]] = {
    "rounds": Round, "clients": FlightRecord, "scored": ScoredClient, "eligibility": VerdictRecord, "host": HostWork,
    "scratch": Scratch,
}  # fmt: skip


def lines(folder: Path, table: str) -> list[dict[str, Any]]:
    """The lines of a table, read without edgefl."""
    path = folder / f"{table}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def holds(record: Any, written: Any) -> bool:
    """Whether a record has every value that was written, under its name."""
    if isinstance(written, dict):
        return all(name in record and holds(record[name], value) for name, value in written.items())
    return bool(record == written)


@pytest.fixture(scope="module", autouse=True)
def _installed(install: Callable[[Path], None]) -> None:
    install(OLD / "plugin")


# --- scenarios --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "resolved"), [("tour", "tour-resolved.yaml"), ("trained", "whole/scenario.yaml")])
def test_a_scenario_means_what_it_meant(name: str, resolved: str) -> None:
    """Every field that there was has the value that it had; the defaults of new ones stand beside them."""
    now, then = load(OLD / f"{name}.yaml"), yaml.safe_load((OLD / resolved).read_text())
    assert holds(now.resolved(), then)
    assert load(OLD / resolved).resolved() == now.resolved()


# --- run folders ------------------------------------------------------------------------------------------------------


def test_every_record_of_a_run_is_read() -> None:
    run = read_run(WHOLE)
    assert run.finished
    for table, cls in TABLES.items():
        written = lines(WHOLE, table)
        assert written
        for record, line in zip(run.read(cls), written, strict=True):
            assert holds(record.as_json(), line), (table, line)
    assert holds(run.result.as_json(), json.loads((WHOLE / "result.json").read_text()))
    assert len(run.kept()) == len({flight["client"] for flight in lines(WHOLE, "clients")})
    assert run.model("image") is not None


def test_every_command_reads_a_run(tmp_path: Path) -> None:
    run = shutil.copytree(WHOLE, tmp_path / "run")
    assert verify(run).valid
    assert edgefl.write_report(run).stat().st_size > 10_000
    assert edgefl.write_figures(run, formats=["svg"])
    assert edgefl.explain(run, 2).took_part and edgefl.trace(run).clients
    assert edgefl.export(run, "csv", tmp_path / "csv").files
    told = json.loads((OLD / "answers" / "compare.json").read_text())
    (now,), (then,) = edgefl.compare([run]).as_json()["rows"], told["rows"]
    assert holds(now["figures"], then["figures"]) and then["figures"]
    before = (run / "result.json").read_bytes()
    assert edgefl.run(resume=run).finished and (run / "result.json").read_bytes() == before


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    run = shutil.copytree(CUT, tmp_path / "run")
    assert not read_run(run).finished
    begun = (run / "rounds.jsonl").read_bytes().splitlines()[0]
    assert edgefl.run(resume=run).finished and verify(run).valid
    assert (run / "rounds.jsonl").read_bytes().splitlines()[0] == begun
    sent = [
        [(each["round"], each["client"], each["upload_bytes"]) for each in lines(folder, "clients")]
        for folder in (run, WHOLE)
    ]
    assert sent[0] == sent[1]


# --- plug-ins ---------------------------------------------------------------------------------------------------------


def test_every_part_of_a_plug_in_is_found() -> None:
    points = Distribution.at(OLD / "plugin" / "firstlab-1.0.dist-info").entry_points
    assert {point.group for point in points} == set(registry.GROUPS.values())
    for noun, group in registry.GROUPS.items():
        for point in points.select(group=group):
            if group != "edgefl.profiles":
                assert registry.origin(noun, point.name).package == "firstlab"
                registry.get(noun, point.name)


def test_the_parts_of_a_plug_in_train(tmp_path: Path) -> None:
    """Those that the run which goes on doesn't have."""
    run = edgefl.run(OLD / "other-parts.yaml", output=tmp_path / "run")
    assert run.finished and [flight["attack"] for flight in run.records("clients")].count("three-back") == 1


def test_a_plug_ins_method_and_schedule_keep_the_contract() -> None:
    report = edgefl.check("method", "sparse", runs=False, schedules=["thaw"], kinds=["image"])
    assert report.ok and not report.refused, str(report)


# --- answers and names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_decoded_whole(name: str) -> None:
    text = (OLD / "answers" / f"{name}.json").read_bytes()
    assert decode(ANSWERS[name], text, name).as_json() == json.loads(text)


def names() -> dict[str, Any]:
    """What programs call by name: functions and their arguments, commands and their options, fields, exit codes."""
    commands = dict[str, Any](typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    below = {
        f"{name} {own}": each for name, of in commands.items() for own, each in getattr(of, "commands", {}).items()
    }
    of_errors = [each for each in vars(errors).values() if isinstance(each, type)]
    return {
        "functions": {name: sorted(inspect.signature(getattr(edgefl, name)).parameters) for name in edgefl.__all__},
        "commands": {
            name: sorted(option for each in command.params for option in (*each.opts, *each.secondary_opts))
            for name, command in (commands | below).items()
        },
        "fields": {
            f"{cls.__module__}.{cls.__qualname__}".removeprefix("edgefl.records."): sorted(types_of(cls))
            for cls in classes()
        },
        "exit codes": {cls.__name__: cls.exit_code for cls in of_errors if issubclass(cls, errors.EdgeflError)},
    }


def test_no_name_is_gone() -> None:
    now = names()
    for kind, then in json.loads((OLD / "names.json").read_text()).items():
        for name, parts in then.items():
            assert name in now[kind], f"{kind}: {name} is gone"
            if isinstance(parts, list):
                assert set(parts) <= set(now[kind][name]), f"{kind}: {name} lacks {set(parts) - set(now[kind][name])}"
            else:
                assert parts == now[kind][name]
