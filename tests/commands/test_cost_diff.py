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
from edgefl.commands.profile.against import cost_diff, share_of
from edgefl.console import main
from edgefl.errors import UnitError

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
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERMINAL_WIDTH", "200")

    def answer(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*words])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return answer


def write(path: Path, found: dict[str, Any]) -> Path:
    path.write_text(json.dumps(found))
    return path


def test_equal_profiles_have_no_difference(call: Call, profiled: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "old.json", profiled)
    code, out, _ = call("cost-diff", "old.json", "old.json")
    assert code == 0 and "changed 0, grown by more than 0 %: 0" in out


def test_what_grew_above_the_limit_ends_with_1(call: Call, profiled: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "old.json", profiled)
    grown = copy.deepcopy(profiled)
    row = grown["rows"][2]
    row["peak_memory_bytes"] = profiled["rows"][2]["peak_memory_bytes"] * 103 // 100
    row["upload_bytes"] //= 2
    write(tmp_path / "new.json", grown)
    code, out, _ = call("cost-diff", "old.json", "new.json", "--fail-above", "2%")
    assert code == 1 and "stage 2, image" in out and "-50 %" in out and "<<" in out
    code, out, _ = call("cost-diff", "old.json", "new.json", "--fail-above", "4%", "--json")
    found = json.loads(out)
    assert code == 0 and not found["grew"]
    assert [(c["where"], c["figure"]) for c in found["changed"]] == [
        ("stage 2, image", "peak_memory_bytes"), ("stage 2, image", "upload_bytes")
    ]  # fmt: skip
    assert found["changed"][1]["growth"] == pytest.approx(-0.5, abs=1e-4)
    # without a limit every growth counts, and what shrank never does
    assert call("cost-diff", "old.json", "new.json")[0] == 1
    assert call("cost-diff", "new.json", "old.json", "--fail-above", "100%")[0] == 0


def test_what_comes_out_of_nothing_has_grown(profiled: dict[str, Any], tmp_path: Path) -> None:
    old = copy.deepcopy(profiled)
    old["server_rows"][0]["backward_flops"], profiled = 0, copy.deepcopy(profiled)
    profiled["server_rows"][0]["backward_flops"] = 7
    found = cost_diff(write(tmp_path / "a", old), write(tmp_path / "b", profiled), fail_above=9.0)
    assert found.grew and [change.growth for change in found.changed] == [None]


@pytest.mark.slow(smaller="test_a_figure_that_the_new_profile_lacks_ends_with_2")
def test_rows_that_only_one_has_are_named_and_end_with_2(call: Call, profiled: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "old.json", profiled)
    write(tmp_path / "new.json", {**profiled, "rows": profiled["rows"][1:]})
    code, out, err = call("cost-diff", "old.json", "new.json")
    assert code == 2 and "removed: stage 1, image\n" in out
    assert err == "edgefl: error: the profiles don't match: only old.json has 'stage 1, image'\n"
    code, out, _ = call("cost-diff", "new.json", "old.json", "--json")
    assert code == 2 and json.loads(out)["added"] == ["stage 1, image"]


def test_combinations_are_compared_by_label(profiled: dict[str, Any], tmp_path: Path) -> None:
    one = {**profiled, "combinations": {"a": profiled, "b": profiled}}
    other = json.loads(json.dumps(one))  # as from a file: nothing is shared
    other["combinations"]["b"]["totals"][0]["download_bytes"] += 10**9
    found = cost_diff(write(tmp_path / "one", one), write(tmp_path / "other", other))
    assert [change.where for change in found.changed] == ["b: totals, image"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "isn't valid JSON"),
        ("[1, 2]", "isn't a profile"),
        ("{}", "isn't a profile"),
        ('{"rows": [{"stage": 1}]}', "isn't a profile"),
        ('{"rows": [{"stage": 1, "kind": "image", "upload_bytes": "many"}]}', "isn't a profile"),
        ('{"rows": 3}', "isn't a profile"),
        ('"rows"', "isn't a profile"),
        ("\udcff", "isn't valid JSON"),
    ],
)
def test_a_bad_file_is_named(call: Call, profiled: dict[str, Any], tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path / "old.json", profiled)
    (tmp_path / "new.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    code, out, err = call("cost-diff", "old.json", "new.json")
    assert (code, out) == (2, "") and err.startswith("edgefl: error: new.json ") and message in err
    assert err.count("\n") == 1
    code, out, err = call("cost-diff", "old.json", "nowhere.json")
    assert (code, out) == (2, "") and "can't read nowhere.json" in err


def test_shares() -> None:
    assert share_of("2%") == share_of("0.02") == share_of(" 2 % ") == 0.02 and share_of("150%") == 1.5
    for text in ("", "x", "-1%", "nan", "inf"):
        with pytest.raises(UnitError, match="isn't a share"):
            share_of(text)


def test_the_options_of_a_profile(call: Call, scenario: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"edgefl": 1, **scenario}))
    code, out, _ = call("profile", "s.yaml", "--stage", "2", "--kind", "image", "--csv")
    assert code == 0 and out.count("\n") == 2 and out.startswith("kind,stage,peak_memory_bytes,")
    code, out, _ = call("profile", "--compare", "s.yaml", "s.yaml", "--kind", "image")
    assert code == 0 and "s.yaml (2)" in out and "(1.00)" in out
    for words, message in (
        (("--stage", "7"), "there is no stage 7: the schedule has stages 1 to 2"),
        (("--kind", "imag"), "unknown client kind 'imag'; did you mean 'image'?"),
        (("--timeline", "t.gif"), "its name ends in .gif; allowed: .html, .png"),
        (("--csv", "--json"), "can't be combined"),
        (("s.yaml",), "several scenarios need --compare"),
        (("--compare",), "two scenarios or more"),
        (("--compare", "--timeline", "t.png"), "--timeline and --compare can't be combined"),
    ):
        code, out, err = call("profile", "s.yaml", *words)
        assert (code, out) == (2, "") and message in err


def test_a_figure_that_the_new_profile_lacks_ends_with_2(call: Call, profiled: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "old.json", profiled)
    for lacking in (lambda row: row.pop("upload_bytes"), lambda row: row.update(upload_bytes=None)):
        changed = copy.deepcopy(profiled)
        lacking(changed["rows"][0])
        write(tmp_path / "new.json", changed)
        code, _, err = call("cost-diff", "old.json", "new.json", "--fail-above", "900%")
        assert code == 2
        assert err == "edgefl: error: the profiles don't match: new.json lacks 'upload_bytes of stage 1, image'\n"
    # a new figure of the new version is no loss
    assert call("cost-diff", "new.json", "old.json")[0] == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("side", ["old", "new"])
def test_costs_that_are_no_numbers_end_with_2(
    call: Call, profiled: dict[str, Any], tmp_path: Path, value: float, side: str
) -> None:
    changed = copy.deepcopy(profiled)
    changed["rows"][0]["peak_memory_bytes"] = value
    write(tmp_path / "old.json", changed if side == "old" else profiled)
    write(tmp_path / "new.json", changed if side == "new" else profiled)
    code, _, err = call("cost-diff", "old.json", "new.json")
    assert code == 2 and f"{side}.json: peak_memory_bytes of stage 1, image is {value}, not a finite number" in err


def test_files_without_end_end_with_2(call: Call, profiled: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "old.json", profiled)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for name, says in (("pipe", "isn't a regular file"), ("/dev/zero", "isn't a regular file"), ("deep.json", "deep")):
        code, _, err = call("cost-diff", "old.json", name)
        assert code == 2 and says in err and err.count("\n") == 1
