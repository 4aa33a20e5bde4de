"""Clients of a fleet and devices of the library: the rows agree with a run's verdicts, a sweep, and the profiles."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from rich.console import Console
from sweeps import check_of

import edgefl
from edgefl.commands.profile.answer import Profile
from edgefl.commands.profile.clients_table import print_clients
from edgefl.commands.profile.table import profile_csv
from edgefl.commands.sweep.answer import DeviceCheck
from edgefl.commands.sweep.devices_table import print_device_check
from edgefl.commands.sweep.table import print_sweep, sweep_csv
from edgefl.console import main
from edgefl.devices import available_memory_bytes, device_names, load_device
from edgefl.drawing.charts import records_of
from edgefl.drawing.charts.costs import memory
from edgefl.errors import ScenarioError, UnknownName
from edgefl.records.record import Record
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.units import show_bytes

Tiny = Callable[..., dict[str, Any]]

DECLARED = {"source": "declared", "clients": {"image": 6, "text": 4}, "samples": [8, 40],
            "shapes": {"image": {"channels": 1, "size": 32, "classes": 12}, "text": {"vocabulary": 200}}}  # fmt: skip
TWO_STAGES = {"name": "layerwise", "stages": 2, "rounds": 4}


@pytest.fixture(scope="module")
def scenario(tiny: Tiny) -> dict[str, Any]:
    """Ten clients on two devices, of which budgets refuse some."""
    plain = tiny(
        data={**DECLARED, "samples": 40}, schedule=TWO_STAGES, training={"batch": 8, "mode": "none"},
        fleet={"devices": {"raspberry-pi-4-4gb": 5, "raspberry-pi-3b-plus": 5}, "links": {"wifi-5": 5, "lte": 5}},
    )  # fmt: skip
    peaks = sorted(row["peak_memory_bytes"] for row in edgefl.profile(plain)["rows"])
    plain["fleet"]["budgets"] = {"memory": f"{peaks[0]}..{peaks[-1]} B"}
    return plain


@pytest.fixture(scope="module")
def clients(scenario: dict[str, Any]) -> Profile:
    return edgefl.profile(scenario, clients=True)


def shown(show: Callable[..., None], facts: Record, **options: Any) -> str:
    file = io.StringIO()
    show(facts, Console(file=file, width=100, no_color=True, color_system=None), **options)
    assert max(map(len, file.getvalue().splitlines())) <= 100
    return file.getvalue()


def test_a_clients_row_is_its_verdict_in_a_run(scenario: dict[str, Any], clients: Profile, tmp_path: Path) -> None:
    run = edgefl.run(scenario, out=tmp_path / "run")
    fleet = compose(load(scenario), trains=False).fleet
    assert [row["client"] for row in clients["clients"]] == list(range(10))
    assert {row["eligible"] for row in clients["clients"]} == {True, False}
    for row in clients["clients"]:
        verdicts = {v["stage"]: v for v in run.records("eligibility") if v["client"] == row["client"]}
        assert row["eligible"] == all(v["eligible"] for v in verdicts.values())
        assert row["stages"] == len(verdicts) == 2
        assert row["eligible_stages"] == sum(v["eligible"] for v in verdicts.values())
        mine = verdicts[row["stage"]]
        assert row["margin"] == min(v["margins"]["memory"] for v in verdicts.values())
        for name in ("kind", "device", "link", "samples", "binding", "memory_limit", "reason"):
            assert row[name] == mine[name]
        assert (row["peak_memory_bytes"], row["flops"]) == (mine["costs"]["memory"], mine["costs"]["flops"])
        assert row["virtual_seconds"] == pytest.approx(mine["costs"]["seconds"])
        assert row["batch"] == 8 and row["budget"] == fleet.budgets["memory"][row["client"]]


def test_options_limit_the_clients_and_the_stage(scenario: dict[str, Any], clients: Profile) -> None:
    texts = edgefl.profile(scenario, kind="text", stage=1, clients=True)["clients"]
    assert [row["client"] for row in texts] == [row["client"] for row in clients["clients"] if row["kind"] == "text"]
    assert {(row["stage"], row["stages"]) for row in texts} == {(1, 1)}
    with pytest.raises(ScenarioError, match="there is no stage 3"):
        edgefl.profile(scenario, stage=3, clients=True)
    with pytest.raises(UnknownName, match="'imag'; did you mean 'image'"):
        edgefl.profile(scenario, kind="imag", clients=True)


def test_combinations_have_rows_of_their_own(scenario: dict[str, Any], clients: Profile) -> None:
    found = edgefl.profile({**scenario, "compare": {"training.batch": [8, 4]}}, kind="image", clients=True)
    assert [part["clients"][0]["batch"] for part in found["combinations"].values()] == [8, 4]
    assert found["clients"] == [row for row in clients["clients"] if row["kind"] == "image"]
    text = shown(print_clients, found)
    assert "batch=4: " in text and "image clients: " in text


def test_the_table_of_clients_counts_and_marks_them(clients: Profile) -> None:
    text = shown(print_clients, clients)
    refused = sum(not row["eligible"] for row in clients["clients"])
    assert (
        f"tiny: {10 - refused} of 10 clients are eligible at their hardest stage, refused by memory {refused}" in text
    )
    assert text.count("no, memory ") == refused and text.count("yes, memory ") == 10 - refused
    assert "raspberry-pi-3b-plus" in text
    table = pd.read_csv(io.StringIO(profile_csv(clients)))
    assert list(table["eligible"]) == [row["eligible"] for row in clients["clients"]]
    many = replace(clients, clients=[*clients.clients] * 5)
    assert "and 10 more clients" in shown(print_clients, many)
    assert "more clients" not in shown(print_clients, many, full=True)


# --- devices ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checked(scenario: dict[str, Any]) -> DeviceCheck:
    """Without owners' budgets."""
    return check_of({**scenario, "fleet": {**scenario["fleet"], "budgets": {}}})


def test_every_device_of_the_library_has_a_row_for_each_kind(scenario: dict[str, Any], checked: DeviceCheck) -> None:
    rows = checked["rows"]
    assert {(row["device"], row["kind"]) for row in rows} == {
        (name, kind) for name in device_names() for kind in ("image", "text")
    }
    peaks = {(row["kind"], row["stage"]): row["peak_memory_bytes"] for row in edgefl.profile(scenario)["rows"]}
    for row in rows:
        available = available_memory_bytes(load_device(row["device"]))
        assert row["available_memory_bytes"] == available
        assert row["peak_memory_bytes"] == peaks[row["kind"], row["stage"]]
        assert row["eligible"] == (row["peak_memory_bytes"] <= available)
        assert (row["binding"], row["margin"]) == ("memory", available - row["peak_memory_bytes"])
    available = [row["available_memory_bytes"] for row in rows]
    assert available == sorted(available)
    found = edgefl.profile(scenario, device=rows[0]["device"], stage=rows[0]["stage"], kind=rows[0]["kind"])
    assert rows[0]["virtual_seconds"] == pytest.approx(found["rows"][0]["virtual_seconds"])
    assert rows[0]["energy_joules"] == pytest.approx(found["rows"][0]["energy_joules"])


@pytest.mark.slow(smaller="test_a_hot_device_goes_on_at_what_its_cooling_allows")
def test_a_hot_device_is_said_and_its_time_added_where_the_fleet_throttles(scenario: dict[str, Any]) -> None:
    slow = {**scenario, "training": {**scenario["training"], "epochs": 20_000}}
    hot = {**slow, "fleet": {**slow["fleet"], "throttling": True}}
    (cold,), (warm,) = (check_of(each, ["raspberry-pi-4-4gb"], kind="image")["rows"] for each in (slow, hot))
    device = load_device("raspberry-pi-4-4gb")
    assert cold["throttling_seconds"] == warm["throttling_seconds"] > 0
    assert warm["virtual_seconds"] - cold["virtual_seconds"] == pytest.approx(cold["throttling_seconds"])
    (row,) = edgefl.profile(slow, device=device.name, kind="image", stage=cold["stage"])["rows"]
    extra = (row["compute_seconds"] - device.throttle_after_seconds) * (1 / device.throttled_share - 1)
    assert row["throttling_seconds"] == pytest.approx(extra) and not row["throttling_included"]
    assert cold["throttling_seconds"] == pytest.approx(extra)
    text = shown(
        print_device_check,
        replace(check_of(hot, "phone-mid"), rows=[warm]),
    )
    assert "~: the device gets hot in this round and slows down; the time has that" in text


def test_a_line_for_each_device(scenario: dict[str, Any], checked: DeviceCheck) -> None:
    lines = shown(print_device_check, checked).splitlines()
    assert len(lines) == len(device_names()) + 11
    assert "raspberry-pi-zero-2w" in lines[5] and lines[5].split().count("memory?") == 2
    full = shown(print_device_check, checked, full=True).splitlines()
    assert len(full) == 2 * len(device_names()) + 13
    with pytest.raises(UnknownName, match="unknown device 'phone-midd'; did you mean 'phone-mid'"):
        check_of(scenario, "all,phone-midd")


def test_the_commands(scenario: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str],
                      monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    Path("s.yaml").write_text(json.dumps({"edgefl": 1, **scenario}))

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(words)
        return int(ended.value.code or 0), *capsys.readouterr()

    code, out, _ = call("sweep", "s.yaml", "--devices", "phone-mid", "--as", "json")
    answer = json.loads(out)
    assert code == 0 and [row["kind"] for row in answer["devices"]["tiny"]["rows"]] == ["image", "text"]
    assert answer["rows"] == [] and answer["frontier"] == {}  # the fleet isn't priced
    code, out, _ = call("sweep", "s.yaml", "--devices", "phone-mid", "--as", "csv")
    assert code == 0 and out.startswith("device,kind,stage,batch,peak_memory_bytes,")
    code, out, _ = call("profile", "s.yaml", "--clients", "--as", "csv", "--kind", "text")
    assert code == 0 and out.count("\n") == 5 and out.startswith("client,kind,samples,device,link,stage,batch,")
    code, out, _ = call("profile", "s.yaml", "--clients")
    assert code == 0 and "of 10 clients are eligible" in out
    assert "One client's round" not in out
    code, out, _ = call("profile", "s.yaml", "--clients", "--as", "json")
    answer = json.loads(out)
    assert code == 0 and len(answer["clients"]) == 10 and len(answer["rows"]) == 4
    code, out, _ = call("sweep", "s.yaml", "--devices", "phone-mid,raspberry-pi-4-4gb", "--out", "rows")
    assert code == 0 and "fit tiny over" in out and "Eligible clients" in out  # rows are asked for
    for words, wrong in (
        (("--link", "lte"), "--link, --stage and --kind are of the devices: add --devices all"),
        (("--devices", "phone-mid", "--link", "lto"), "unknown link 'lto'; did you mean 'lte'"),
        (("--devices", "phone-midd", "--out", "new"), "unknown device 'phone-midd'; did you mean 'phone-mid'"),
        (("--devices", "all", "--vary", "training.bach=2"), "did you mean 'batch'"),
    ):
        code, _, err = call("sweep", "s.yaml", *words)
        assert code == 2 and wrong in err and not Path("new").exists()


# --- owners' budgets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "memory",
    ["600 KiB", "20% of device", "0.2..2 MiB", {"300 KiB": "30%", "unlimited": "70%"}, {"0.1..1 MiB": 4, "10 MiB": 6}],
)
def test_owners_grants_count_as_in_a_fleet_of_that_device(scenario: dict[str, Any], memory: object) -> None:
    """The witness: each owner of a fleet whose devices are all this one, judged by the gate of a run."""
    data = {**scenario["data"], "samples": 12}
    for name in ("phone-mid", "raspberry-pi-zero-2w"):
        fleet = {**scenario["fleet"], "devices": name, "links": "wifi-5", "budgets": {"memory": memory}}
        alike = {**scenario, "data": data, "fleet": fleet}
        clients = edgefl.profile(alike, clients=True).clients
        elsewhere = {**alike, "fleet": {**fleet, "devices": "server-a5000"}}
        for row in check_of(elsewhere, [name], link="wifi-5").rows:
            mine = [client for client in clients if client.kind == row.kind]
            fitting = sum(client.eligible for client in mine)
            assert (row.owners, row.fitting_owners) == (len(mine), fitting)
            assert row.eligible == (fitting == len(mine))
            assert row.answer == ("yes" if row.eligible else "no") or row.peak_memory_bytes > row.least_available_bytes
            assert row.margin == min(client.margin for client in mine if not client.is_left_out)
            budgets = [client.budget for client in mine if not client.is_left_out]
            assert (row.least_memory_bytes, row.most_memory_bytes) == (min(budgets), max(budgets))


def test_what_owners_grant_is_told(scenario: dict[str, Any]) -> None:
    def told(memory: object) -> str:
        budgets = {"memory": memory}
        limited = {**scenario, "fleet": {**scenario["fleet"], "budgets": budgets}}
        return shown(print_device_check, check_of(limited, ["phone-mid", "macbook-air-m1"]))

    assert told("1 KiB").startswith("0 of 2 devices fit tiny over ") and "6 owners grant 1 KiB" in told("1 KiB")
    some = told({"1 KiB": "50%", "unlimited": "50%"})
    assert "0 of 2 devices fit tiny" in some and "2 more for some owners" in some and "3 of 6 owners" in some
    assert "limited by the device's memory" in told("unlimited")


def test_what_depends_on_scratch_is_said(scenario: dict[str, Any]) -> None:
    """Between the live memory and the upper end of the range nobody knows, on a machine without the GPU."""
    wide = {"image": {"blocks": 2, "width": 64, "heads": 2}, "text": scenario["model"]["text"]}  # more than a segment
    training = {**scenario["training"], "batch": 32}
    on_gpu = {**scenario, "model": wide, "training": training, "executor": {"device": "cuda"}}
    if torch.cuda.is_available():
        pytest.skip("scratch is measured on this machine")
    (row,) = edgefl.profile(on_gpu, stage=2, kind="image").rows
    least, peak = row.reserved_memory_bytes, row.peak_memory_bytes
    assert row.memory_assumed and row.live_memory_bytes < least < peak
    answers = {}
    for most in (least - 1, least, peak - 1, peak):
        fleet = {**scenario["fleet"], "budgets": {"memory": f"{most} B"}}
        checked = check_of({**on_gpu, "fleet": fleet}, ["desktop-rtx-3060"], stage=2, kind="image")
        answers[most] = checked.rows[0].answer
        if answers[most] == "depends on scratch":
            assert "0 of 1 devices fit tiny" in (text := shown(print_device_check, checked))
            assert "1 more depending on scratch" in text and "scratch?" in text
    assert list(answers.values()) == ["no", "depends on scratch", "depends on scratch", "yes"]


def test_a_gpu_is_compared_by_what_its_allocator_reserves(scenario: dict[str, Any], tmp_path: Path) -> None:
    """By every answer, with one sentence; a CPU needs its peak alone."""
    own = {
        **scenario, "schedule": {"name": "end-to-end", "rounds": 1}, "fleet": {"devices": "desktop-rtx-3060"},
        "data": {**DECLARED, "samples": 40, "clients": {"image": 2}},
    }  # fmt: skip

    def answers(device: str, budget: int) -> tuple[set[tuple[bool, str]], list[Any], list[Any]]:
        """Whether the clients fit and why, by all; the verdicts and flights of a run."""
        asked = {**own, "executor": {"device": device}}
        asked["fleet"] = {**own["fleet"], "budgets": {"memory": f"{budget} B"}}
        run = edgefl.run(asked, out=tmp_path / f"{device}-{budget}")
        verdicts, flights = list(run.records("eligibility")), list(run.records("clients"))
        fit = edgefl.fit(asked, device="desktop-rtx-3060", memory=budget).kinds["image"].as_it_stands
        rows = [*edgefl.profile(asked, clients=True).clients, *check_of(asked, ["desktop-rtx-3060"]).rows]
        swept = edgefl.sweep(asked, vary=["round.cohort=1.0"]).rows[0]
        assert (swept.eligible_share == 1) == verdicts[0]["eligible"]
        chart = memory(records_of(run))
        assert chart is not None
        drawn.append({series.name: series.y[0] for series in chart.panels[0].series})
        told = {(each.eligible, each.reason) for each in (*rows, *fit.stages)}
        return told | {(each["eligible"], each["reason"]) for each in verdicts}, verdicts, flights

    drawn: list[dict[str, Any]] = []
    (row,) = edgefl.profile({**own, "executor": {"device": "cuda"}}).rows
    reserved, peak = row.reserved_memory_bytes, row.peak_memory_bytes
    assert reserved == 2 * 2**20 > peak + 1  # one segment of small blocks, c10's kSmallBuffer
    told, verdicts, flights = answers("cuda", reserved - 1)
    needs = f"2 MiB (reserved by a GPU's allocator for a peak of {show_bytes(peak)})"
    assert told == {(False, f"not eligible: needs memory of {needs} where 2 MiB is allowed")} and not flights
    assert {(v["costs"]["memory"], v["peak_memory_bytes"]) for v in verdicts} == {(reserved, peak)}
    told, verdicts, flights = answers("cuda", reserved)
    assert {fits for fits, _ in told} == {True}
    assert {(f["peak_memory_bytes"], f["reserved_memory_bytes"]) for f in flights} == {(peak, reserved)}
    told, verdicts, flights = answers("cpu", reserved - 1)
    assert {fits for fits, _ in told} == {True} and "reserved" not in str(told)
    assert flights and not any("reserved_memory_bytes" in flight for flight in flights)
    assert all(v["costs"]["memory"] == flights[0]["peak_memory_bytes"] for v in verdicts)
    assert not any("peak_memory_bytes" in verdict for verdict in verdicts)
    assert [each.get("reserved beyond the peak") for each in drawn] == [None, reserved - peak, None]


def test_what_depends_on_free_memory_is_said(scenario: dict[str, Any]) -> None:
    """Between the least and the most that a device is believed to have free, the answer is neither yes nor no."""
    usable = load_device("phone-mid").facts["usable_memory_bytes"]
    fleet = {**scenario["fleet"], "devices": "server-a5000", "budgets": {}}
    (row,) = edgefl.profile({**scenario, "fleet": fleet}, stage=2, kind="image").rows
    assert usable.low < usable.value < usable.high
    answers = []
    for end, over in ((usable.low, 0), (usable.low, 1), (usable.value, 1), (usable.high, 0), (usable.high, 1)):
        taken = int(end) - row.peak_memory_bytes + over  # what is left for tensors then has the end at the peak
        lean = {**scenario, "fleet": {**fleet, "runtime": taken}}
        checked = check_of(lean, ["phone-mid"], stage=2, kind="image")
        answers.append(checked.rows[0].answer)
    assert answers == ["yes", *["depends on free memory"] * 3, "no"]
    zero = check_of(scenario, ["raspberry-pi-zero-2w"], kind="image")
    text = shown(print_device_check, zero)
    assert "0 of 1 devices fit tiny" in text and "1 more depending on free memory" in text and "free memory?" in text


def test_all_unknown_devices_are_named(scenario: dict[str, Any]) -> None:
    with pytest.raises(UnknownName) as wrong:
        check_of(scenario, ["phone-midd", "phone-mid", "pi4"])
    first, second = str(wrong.value).split("\n")
    assert "'phone-mid'" in first and "'raspberry-pi-4-4gb'" in second


def test_a_scenario_that_compares_has_a_column_for_each_combination(scenario: dict[str, Any]) -> None:
    several = {**scenario, "compare": {"training.batch": [4, 8]}}
    result = edgefl.sweep(several, devices=["phone-mid"], kind="image")
    checks = result.devices or {}
    assert [check.sets for check in checks.values()] == [{"training.batch": 4}, {"training.batch": 8}]
    alone = [check_of(scenario, "phone-mid", kind="image", overrides=[f"training.batch={size}"]) for size in (4, 8)]
    assert [check.rows for check in checks.values()] == [check.rows for check in alone]
    text = shown(print_sweep, result)
    assert "device     batch=4   batch=8" in text and "over lte" in text


def test_many_combinations_have_signs_under_numbers_and_a_legend(scenario: dict[str, Any]) -> None:
    tight = {**scenario, "name": "tight", "fleet": {**scenario["fleet"], "budgets": {"memory": "1 KiB"}}}
    free = {**scenario, "fleet": {**scenario["fleet"], "budgets": {}}}
    result = edgefl.sweep([free, tight], ["training.batch=4,8"], devices=["phone-mid", "raspberry-pi-zero-2w"])
    assert result.axes == ["scenario", "training.batch"] and result.scenario == "tiny, tight"
    file = io.StringIO()
    print_sweep(result, Console(file=file, width=80, no_color=True, color_system=None))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    signs = {line.split()[0]: line.split()[1:] for line in lines[1:6]}
    assert signs["device"] == [*"12345678"] and signs["phone-mid"] == [*"yyyy...."]
    assert signs["raspberry-pi-zero-2w"] == [*"????????"]
    legend = [line.split() for line in lines if line[:1].isdigit()]
    assert [row[:4] for row in legend[:3]] == [["1", "tiny", "4", "image"], ["2", "tiny", "4", "text"],
                                               ["3", "tiny", "8", "image"]]  # fmt: skip
    assert all(row[4:7] == (["1", "0", "1"] if row[1] == "tiny" else ["0", "1", "1"]) for row in legend)
    table = pd.read_csv(io.StringIO(sweep_csv(result)))
    assert list(table.columns[:5]) == ["label", "scenario", "training.batch", "device", "kind"]
    assert len(table) == 4 * 2 * 2 and set(table["scenario"]) == {"tiny", "tight"}


def test_a_combination_that_cannot_be_run_has_no_column(scenario: dict[str, Any]) -> None:
    result = edgefl.sweep(scenario, ["schedule.stages=1,2,3"], devices="phone-mid")
    assert list(result.devices or {}) == ["stages=1", "stages=2"]
    (row,) = result.rows
    assert row.label == "stages=3" and "more than the 2 blocks" in str(row.refused)
    assert "1 combination can't be run" in shown(print_sweep, result)


def test_several_scenarios_stand_beside_each_other(scenario: dict[str, Any], tmp_path: Path,
                                                   capsys: pytest.CaptureFixture[str],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    tight = {**scenario, "name": "tight", "fleet": {**scenario["fleet"], "budgets": {"memory": "1 KiB"}}}
    free = {**scenario, "fleet": {**scenario["fleet"], "budgets": {}}}
    Path("a.yaml").write_text(json.dumps({"edgefl": 1, **free}))
    Path("b.yaml").write_text(json.dumps({"edgefl": 1, **tight}))
    Path("twin.yaml").write_text(json.dumps({"edgefl": 1, **tight, "name": "tiny"}))

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(("sweep", *words))
        return int(ended.value.code or 0), *capsys.readouterr()

    one = ("--devices", "phone-mid")
    code, out, _ = call("a.yaml", "b.yaml", *one)
    assert code == 0 and out.count("yes ") >= 2 and "tight     image    0   1" in out
    code, out, _ = call("a.yaml", "b.yaml", *one, "--as", "markdown")
    assert code == 0 and "| device | tiny: image | tiny: text | tight: image | tight: text |\n| --- |" in out
    assert "1 of 1 devices fit tiny" in out and "0 of 1 devices fit tight" in out
    assert out.count("yes, device ") == out.count("no, memory ") == 2
    assert call("a.yaml", *one, "--as", "markdown")[1].count("|") == 3 * 4
    code, out, _ = call("a.yaml", "twin.yaml", *one, "--as", "json")
    answer = json.loads(out)
    assert code == 0 and list(answer["devices"]) == ["a.yaml", "twin.yaml"]
    assert [check["sets"]["scenario"] for check in answer["devices"].values()] == ["a.yaml", "twin.yaml"]
    code, out, _ = call("a.yaml", "twin.yaml", *one, "--as", "csv")
    assert code == 0 and out.startswith("label,scenario,device,kind,") and out.count("\ntwin.yaml,twin.yaml,phone") == 2
    code, _, said = call("a.yaml", "b.yaml", "--page", "page.html")
    assert code == 2 and "--page takes one scenario" in said and not Path("page.html").exists()
