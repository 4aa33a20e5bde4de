"""Run folders of every format that there was: read as they were written, and format 4 continued.

The folders in ``formats`` were written by the version before each change of the format, all of one scenario with four
clients and a layer-wise schedule; ``cut-4`` was ended in its third round.  The finished ones have no checkpoints.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.commands.verify.verify import verify
from edgefl.errors import RunError
from edgefl.records.clients import Flight, ScoredClient
from edgefl.records.eligibility import Verdict
from edgefl.records.host import HostWork, Scratch
from edgefl.records.record import UNSET, Record, fields_of
from edgefl.records.rounds import Round
from edgefl.records.run import Environment, Evaluation, Result
from edgefl.report.facts import summary
from edgefl.runs import RunDirectory, read_run

FORMATS = Path(__file__).parent / "formats"
TABLES: dict[str, type[Record]] = {
    "rounds": Round, "clients": Flight, "scored": ScoredClient, "eligibility": Verdict, "host": HostWork,
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


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_every_record_of_an_older_format_is_read(number: int) -> None:
    folder = FORMATS / f"format-{number}"
    run = read_run(folder)
    assert run.format == number and run.finished
    of_clients = lines(folder, "clients")
    expected = {
        **{table: lines(folder, table) for table in TABLES},
        "clients": [line for line in of_clients if "when" not in line],
        "scored": [{n: v for n, v in line.items() if n != "when"} for line in of_clients if "when" in line],
    }
    assert len(expected["clients"]) >= 12 and len(expected["scored"]) == (8 if number == 4 else 0)
    for table, cls in TABLES.items():
        found = [record.as_json() for record in run.read(cls)]
        assert len(found) == len(run.records(table)) == len(expected[table])  # type: ignore[arg-type]
        for record, line in zip(found, expected[table], strict=True):
            line.pop("discount", None)  # what weight_factor was called, with another meaning for FedBuff
            assert holds(record, line), (table, record, line)
    assert len(run.clients) == len(expected["clients"]) and len(run.client_evaluations) == len(expected["scored"])
    for cls, name in ((Result, "result.json"), (Evaluation, "evaluation.json"), (Environment, "environment.json")):
        record = run.read_file(cls)  # type: ignore[type-var]
        assert record is not None and holds(record.as_json(), json.loads((folder / name).read_text()))


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_run_has_the_fields_that_its_format_is_said_to_have(number: int) -> None:
    run = read_run(FORMATS / f"format-{number}")
    for cls in (Round, Flight, Verdict):
        record = next(iter(run.read(cls)))
        for row in fields_of(cls):
            value: Any = record
            for name in row.name.split("[]")[0].split("."):
                value = getattr(value, name, UNSET) if isinstance(value, Record) else value
            if row.always and row.since <= number and "[]" not in row.name:
                assert value is not UNSET, row.name
    assert [record.ended for record in run.read(Round)] == pytest.approx(
        [line["started_virtual_seconds"] + line["virtual_seconds"] for line in lines(run.path, "rounds")], rel=1e-15
    )


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_every_command_reads_an_older_format(number: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(FORMATS / f"format-{number}", folder)
    result = json.loads((folder / "result.json").read_text())
    facts = summary(read_run(folder)).runs["recorded"]
    assert facts.totals.as_json() == result["totals"] | {
        name: facts.totals[name] for name in ("bytes_per_client_round", "energy_joules_per_client_round")
    }
    assert facts.metrics == result["metrics"]
    checked = verify(folder)
    assert checked.valid, [check for check in checked.runs["recorded"].checks if check.broken]
    assert edgefl.explain(folder, 2).took_part
    assert edgefl.trace(folder).clients == len({line["client"] for line in lines(folder, "clients")})
    assert edgefl.export(folder, "csv", tmp_path / "csv").files
    assert edgefl.write_report(folder).stat().st_size > 10_000
    assert edgefl.write_figures(folder, formats=["svg"])
    assert edgefl.compare([folder])["rows"]
    if number < 4:
        with pytest.raises(RunError, match=f"has run format {number}, .* continues runs of formats 4 and 5 only"):
            RunDirectory.open(folder)


def test_a_run_of_format_4_goes_on_in_its_format_and_ends_as_the_whole_one_did(tmp_path: Path) -> None:
    """Not through ``resume``, which also compares profiles and sources: they change from version to version."""
    folder = tmp_path / "run"
    shutil.copytree(FORMATS / "cut-4", folder)
    assert len(list(read_run(folder).read(ScoredClient))) == 4
    with RunDirectory.open(folder) as run:
        latest = run.latest()
        assert latest is not None and latest[0] == 2
        made_of = json.loads((folder / "checkpoints" / "round-000002" / "state.json").read_text())["made_of"]
        run.made_of = made_of
        run.check_unchanged(2)
        run.rewind(2)
        again = next(iter(read_run(FORMATS / "format-4").read(ScoredClient)))
        run.append(again)
        run.checkpoint(3, *latest[1:])
        run.check_unchanged(3)
    back = read_run(folder)
    assert back.format == 4 and [record.round for record in back.read(Round)] == [1, 2]
    assert len(list(back.read(ScoredClient))) == len(back.records("scored")) == 5
    assert len(list(back.read(Flight))) == 8
