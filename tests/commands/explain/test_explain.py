from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import edgefl
from edgefl import registry
from edgefl.console import main
from edgefl.errors import RunError
from edgefl.methods.fedavg import FedAvg
from edgefl.registry.registered import PARTS
from edgefl.runs import Run

Tiny = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("name", ["unequal", "asynchronous", "layerwise_run"])
def test_the_path_adds_up_to_the_round_and_has_no_gap(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    for record in run.records("rounds"):
        path = edgefl.explain(run.path, record["round"])["path"]
        assert sum(part["seconds"] for part in path) == pytest.approx(record["virtual_seconds"], rel=1e-6)
        now = record["started_virtual_seconds"]
        for part in path:
            assert part["started_virtual_seconds"] == pytest.approx(now, rel=1e-6, abs=1e-6)
            now += part["seconds"]


def test_the_slowest_client_is_on_the_path_of_a_synchronous_round(unequal: Run) -> None:
    for record in unequal.records("rounds"):
        flights = [f for f in unequal.records("clients") if f["round"] == record["round"]]
        if not flights:
            continue
        slowest = max(flights, key=lambda flight: flight["ended_virtual_seconds"])
        found = edgefl.explain(unequal.path, record["round"], client=slowest["client"])
        mine = {part["phase"]: part["seconds"] for part in found["path"] if part["client"] is not None}
        assert {part["client"] for part in found["path"]} - {None} == {slowest["client"]}
        for phase in ("download", "compute", "upload"):
            assert mine[phase] == pytest.approx(slowest[f"{phase}_seconds"], rel=1e-6)
        assert found["client"]["on_the_path"] and found["client"]["flights"][0]["slack_seconds"] == 0


def test_leaving_out_the_last_client_saves_what_is_said(untrained: Callable[..., Run]) -> None:
    sections: dict[str, Any] = {
        "data": {"source": "glyphs", "clients": {"image": 3, "text": 1}, "samples": 40, "validation": 40, "test": 40},
        "fleet": {"devices": "raspberry-pi-4-4gb", "links": "wifi-5"},
    }
    whole = untrained(**sections)
    found = edgefl.explain(whole.path, 1)
    text = next(f["client"] for f in whole.records("clients") if f["kind"] == "text")
    last = {part["client"] for part in found["path"]} - {None}
    left = untrained(**sections, round={"cohort": 1.0, "leave_out": ["text" if last == {text} else "image"]})
    shorter = whole.records("rounds")[0]["virtual_seconds"] - left.records("rounds")[0]["virtual_seconds"]
    if last == {text}:
        (said,) = [each for each in found["shorter"] if each["change"].startswith(f"without client {text}")]
        assert said["seconds"] == pytest.approx(shorter) and not said["at_most"]
    absent = edgefl.explain(left.path, 1)["absent"]
    assert {each["reason"] for each in absent} == {"left out"} and sum(e["clients"] for e in absent) in (1, 3)


class OfPairs(FedAvg):
    """Only clients with pairs take part."""

    class Options(FedAvg.Options):
        name: Literal["of-pairs"] = "of-pairs"  # type: ignore[assignment]

    def participates(self, kind: str, round: int) -> bool:
        return kind == "image-text"


@pytest.fixture
def of_pairs() -> Iterator[str]:
    edgefl.register("method", "of-pairs")(OfPairs)
    yield "of-pairs"
    PARTS.clear()
    registry.forget()


@pytest.mark.slow(smaller="test_every_client_took_part_or_is_absent_for_its_reason")
def test_kinds_without_a_part_are_told_in_the_order_of_the_scenario(
    untrained: Callable[..., Run], of_pairs: str
) -> None:
    data = {"clients": {"text": 2, "image": 3, "image-text": 2}, "samples": 40, "validation": 40, "test": 40}
    run = untrained(data={"source": "glyphs", **data}, method=of_pairs)
    for seed in ("0", "1", "2", "3"):  # a set of names has another order in each of these processes
        command = [sys.executable, "-m", "edgefl", "explain", str(run.path), "--round", "1", "--as", "json"]
        told = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True)
        absent = json.loads(told.stdout)["absent"]
        assert [(each["kind"], each["clients"], each["reason"]) for each in absent] == [
            ("text", 2, "no part"),
            ("image", 3, "no part"),
        ]


def test_an_evaluation_less_saves_what_is_said(untrained: Callable[..., Run]) -> None:
    with_one, without = untrained(evaluation={"every": 1}), untrained(evaluation={"every": 10})
    saved = [e for e in edgefl.explain(with_one.path, 1)["shorter"] if e["change"].startswith("no evaluation")]
    lasted = [run.records("rounds")[0]["virtual_seconds"] for run in (with_one, without)]
    assert saved and sum(each["seconds"] for each in saved) == pytest.approx(lasted[0] - lasted[1], rel=1e-6)


def test_every_client_took_part_or_is_absent_for_its_reason(unequal: Run) -> None:
    reasons = set()
    for record in unequal.records("rounds"):
        found = edgefl.explain(unequal.path, record["round"])
        absent = {each["client"]: each for each in found["absent"]}
        assert sorted([*found["took_part"], *absent]) == list(range(7))
        assert len(found["took_part"]) == record["finished"]
        over = sum(n for reason, n in found["absent_by"].items() if reason.startswith("over budget"))
        assert over == sum(record["clients"].values()) - sum(record["eligible"].values())
        # a whole cohort is asked: who is eligible and didn't fly was offline
        flew = record["finished"] + record["late"] + record["failed"]
        assert found["absent_by"].get("offline", 0) == 7 - over - flew
        reasons |= set(found["absent_by"])
    assert "offline" in reasons and "over budget: memory" in reasons


def test_clients_under_way_are_told(asynchronous: Run) -> None:
    for record in asynchronous.records("rounds"):
        found = edgefl.explain(asynchronous.path, record["round"])
        under_way = [each for each in found["absent"] if each["reason"] == "under way"]
        again = {f["client"] for f in asynchronous.records("clients") if f["round"] == record["round"]}
        landed_later = {
            f["client"] for f in asynchronous.records("clients")
            if f["base_round"] <= record["round"] < f["round"] and f["client"] not in again
        }  # fmt: skip
        assert {each["client"] for each in under_way} == landed_later


def test_the_command_prints_tables_and_json(unequal: Run, capsys: pytest.CaptureFixture[str]) -> None:
    main_without_exit(["explain", str(unequal.path), "--round", "2"])
    text = capsys.readouterr().out
    assert text.startswith("Round 2 (stage 1, synchronous): ") and "Critical path" in text and "Absent" in text
    main_without_exit(["explain", str(unequal.path), "--round", "2", "--client", "0", "--as", "json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts == edgefl.explain(unequal.path, 2, client=0).to_data()
    main_without_exit(["explain", str(unequal.path), "--round", "2", "--client", "0"])
    assert "Client 0 (image, " in capsys.readouterr().out


def main_without_exit(arguments: list[str]) -> None:
    try:
        main(arguments)
    except SystemExit as ended:
        assert not ended.code


@pytest.mark.parametrize(
    ("round", "client", "says"),
    [(7, None, "has no round 7: its records have the rounds 1 to 6"), (1, 7, "no client 7: its clients are 0 to 6")],
)
def test_what_isnt_there_is_one_line(unequal: Run, round: int, client: int | None, says: str) -> None:
    with pytest.raises(RunError, match=says):
        edgefl.explain(unequal.path, round, client=client)


def test_a_comparison_and_a_changed_record_are_one_line(tiny: Tiny, unequal: Run, tmp_path: Path) -> None:
    scenario = tiny(training={"mode": "none"}, compare={"seed": [1, 2]})
    edgefl.run(scenario, out=tmp_path / "both")
    with pytest.raises(RunError, match="is a comparison; give the folder of one of its runs: .*seed=1"):
        edgefl.explain(tmp_path / "both", 1)
    with pytest.raises(RunError, match="there is no run at"):
        edgefl.explain(tmp_path / "none", 1)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in unequal.path.iterdir():
        if path.is_file():
            (damaged / path.name).write_bytes(path.read_bytes())
    lines = (damaged / "clients.jsonl").read_text().replace('"ended_virtual_seconds"', '"ended"')
    (damaged / "clients.jsonl").write_text(lines)
    with pytest.raises(RunError, match="field .ended_virtual_seconds. is missing"):
        edgefl.explain(damaged, 1)


def test_a_large_fleet_is_told_by_kind(untrained: Callable[..., Run]) -> None:
    run = untrained(
        data={
            "source": "declared",
            "clients": {"image": 10_500},
            "shapes": {"image": {"channels": 3, "size": 16, "classes": 4}},
            "samples": "20..60",
        },
        model={"image": {"blocks": 2, "width": 16, "heads": 2}},
        fleet={"devices": {"raspberry-pi-4-4gb": "50%", "jetson-orin-nano-8gb": "50%"},
               "budgets": {"memory": "200 kB..1 MB"}},
        round={"cohort": 20},
    )  # fmt: skip
    (record, *_) = run.records("rounds")
    found = edgefl.explain(run.path, 1)
    assert sum(found["absent_by"].values()) + len(found["took_part"]) == found["clients"] == 10_500
    assert found["absent_by"]["over budget"] == 10_500 - record["eligible"]["image"] > 0
