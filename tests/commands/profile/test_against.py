"""Two profiles of one scenario at two times: what grew, and whether it may."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import edgefl
from edgefl.commands.profile.against import GROWTH, RowsDiffer, with_difference
from edgefl.commands.profile.answer import Profile
from edgefl.console import main
from edgefl.records.reading import from_data

Tiny = Callable[..., dict[str, Any]]
Call = Callable[..., tuple[int, str, str]]

DECLARED = {"source": "declared", "clients": {"image": 2, "text": 2}, "samples": 40, "validation": 30,
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}}  # fmt: skip


@pytest.fixture(scope="module")
def scenario(tiny: Tiny) -> dict[str, Any]:
    return tiny(data=DECLARED, schedule={"name": "layerwise", "stages": 2, "rounds": 4})


@pytest.fixture(scope="module")
def profiled(scenario: dict[str, Any]) -> dict[str, Any]:
    return edgefl.profile(scenario).to_data()


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: dict[str, Any]
) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"edgefl": 1, **scenario}))

    def answer(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["profile", "s.yaml", *words])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return answer


def write(path: Path, found: dict[str, Any]) -> Path:
    path.write_text(json.dumps(found))
    return path


def compared(old: dict[str, Any], new: dict[str, Any], fail_above: float = 0.0) -> Profile:
    """The new profile with what differs from the old one."""
    return with_difference(from_data(Profile, new, "new"), from_data(Profile, old, "old"), fail_above)


def test_an_equal_profile_has_no_difference(call: Call, profiled: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "old.json", profiled)
    code, out, _ = call("--against", "old.json")
    assert code == 0 and "changed 0, grown by more than 0 %: 0" in out and "One client's round" not in out


def test_what_grew_above_the_limit_ends_with_1(call: Call, profiled: dict[str, Any], tmp_path: Path) -> None:
    smaller = copy.deepcopy(profiled)
    row = smaller["rows"][2]
    row["peak_memory_bytes"] = profiled["rows"][2]["peak_memory_bytes"] * 100 // 103
    row["upload_bytes"] *= 2
    write(tmp_path / "old.json", smaller)
    code, out, _ = call("--against", "old.json", "--fail-above", "2%")
    assert code == 1 and "stage 2, image" in out and "-50 %" in out and "<<" in out
    code, out, _ = call("--against", "old.json", "--fail-above", "4%", "--as", "json")
    answer = json.loads(out)
    found = answer.pop("against")
    assert code == 0 and not found["grew"] and answer == profiled
    assert [(c["where"], c["figure"]) for c in found["changed"]] == [
        ("stage 2, image", "peak_memory_bytes"), ("stage 2, image", "upload_bytes")
    ]  # fmt: skip
    assert found["changed"][1]["growth"] == -0.5
    # without a limit every growth counts, and what shrank never does
    assert compared(smaller, profiled).exit_code == 1
    assert compared(profiled, {**smaller, "rows": profiled["rows"]}).exit_code == 0


def test_python_takes_it_too(scenario: dict[str, Any], profiled: dict[str, Any], tmp_path: Path) -> None:
    smaller = copy.deepcopy(profiled)
    smaller["totals"][0]["virtual_seconds"] /= 2
    old = write(tmp_path / "old.json", smaller)
    found = edgefl.profile(scenario, against=old, fail_above=0.5)
    assert found.exit_code == 1 and [change.growth for change in found.against.changed] == [1.0]
    assert edgefl.profile(scenario, against=old, fail_above="100%").exit_code == 0


def test_what_comes_out_of_nothing_has_grown(profiled: dict[str, Any]) -> None:
    old, new = copy.deepcopy(profiled), copy.deepcopy(profiled)
    old["server_rows"][0]["backward_flops"], new["server_rows"][0]["backward_flops"] = 0, 7
    found = compared(old, new, fail_above=9.0).against
    assert found and found.grew and [change.growth for change in found.changed] == [None]


def test_rows_that_only_one_has_are_named_and_end_with_2(call: Call, profiled: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "old.json", {**profiled, "rows": profiled["rows"][1:]})
    code, out, err = call("--against", "old.json")
    assert code == 2 and "added: stage 1, image\n" in out
    assert err.endswith("edgefl: error: the profiles don't match: only the new one has 'stage 1, image'\n")
    with pytest.raises(RowsDiffer, match="only the old one has 'stage 1, image'") as differ:
        compared(profiled, {**profiled, "rows": profiled["rows"][1:]})
    found = differ.value.answer.against
    assert found and found.removed == ["stage 1, image"] and not found.added


def test_combinations_are_compared_by_label(profiled: dict[str, Any]) -> None:
    one = {**profiled, "combinations": {"a": profiled, "b": profiled}}
    other = json.loads(json.dumps(one))  # as from a file: nothing is shared
    other["combinations"]["b"]["totals"][0]["download_bytes"] += 10**9
    found = compared(one, other).against
    assert found and [change.where for change in found.changed] == ["b: totals, image"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it isn't JSON"),
        ("[1, 2]", "expected `object`, got `array`"),
        ("{}", "field 'scenario' is missing"),
        ('{"scenario": "s", "rows": [{"stage": 1}]}', "field 'rows[0].kind' is missing"),
        ('{"scenario": "s", "rows": 3}', "field 'rows': expected `array`"),
        ('"rows"', "expected `object`, got `str`"),
        ("\udcff", "it isn't JSON"),
    ],
)
def test_a_file_that_is_no_profile_is_named_and_nothing_is_written(
    call: Call, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "old.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    code, out, err = call("--against", "old.json", "--figure", "f.png")
    assert (code, out) == (2, "") and message in err
    assert err.startswith("edgefl: error: old.json isn't what this version's edgefl profile --as json prints: ")
    assert err.count("\n") == 1 and not (tmp_path / "f.png").exists()


def test_an_answer_of_another_version_or_command_is_no_profile(
    call: Call, scenario: dict[str, Any], profiled: dict[str, Any], tmp_path: Path
) -> None:
    older = copy.deepcopy(profiled)
    del older["rows"][1]["runtime_overhead_bytes"]
    write(tmp_path / "older.json", older)
    write(tmp_path / "sweep.json", edgefl.sweep(scenario, ["training.batch=8"]).to_data())
    for name, says in (("older", "'rows[1].runtime_overhead_bytes' is missing"), ("sweep", "is missing")):
        code, out, err = call("--against", f"{name}.json")
        assert (code, out) == (2, "") and f"{name}.json isn't what this version's" in err and says in err


def test_a_cost_may_more_than_double() -> None:
    assert (GROWTH.parse("2%"), GROWTH.parse("150%")) == (0.02, 1.5)


def test_the_options_of_a_profile(call: Call) -> None:
    code, out, _ = call("--stage", "2", "--kind", "image", "--as", "csv")
    assert code == 0 and out.count("\n") == 2 and out.startswith("kind,stage,peak_memory_bytes,")
    for words, message in (
        (("--stage", "7"), "there is no stage 7: the schedule has stages 1 to 2"),
        (("--kind", "imag"), "unknown client kind 'imag'; did you mean 'image'?"),
        (("--timeline", "t.gif"), "its name ends in .gif; allowed: .html, .png"),
        (("--as", "cvs"), "unknown --as 'cvs'; did you mean 'csv'?"),
        (("--against", "nowhere.json"), "can't read nowhere.json"),
        (("--fail-above", "much"), "'much' is not a share; write for example '2%'"),
    ):
        code, out, err = call(*words)
        assert (code, out) == (2, "") and message in err


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "many"])
def test_costs_that_are_no_numbers_end_with_2(
    call: Call, profiled: dict[str, Any], tmp_path: Path, value: object
) -> None:
    changed = copy.deepcopy(profiled)
    changed["rows"][0]["peak_memory_bytes"] = value
    write(tmp_path / "old.json", changed)
    code, out, err = call("--against", "old.json")
    assert (code, out) == (2, "") and "old.json isn't what this version's edgefl profile --as json prints" in err


def test_files_without_end_end_with_2(call: Call, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for name, says in (("pipe", "isn't a regular file"), ("/dev/zero", "isn't a regular file"), ("deep.json", "deep")):
        code, _, err = call("--against", name)
        assert code == 2 and says in err and err.count("\n") == 1
