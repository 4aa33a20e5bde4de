"""FedScale's files, in the form that its repository has, become traces and fleets; a pickle runs nothing."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import pickle  # noqa: TID251 -- writes the files that the restricted loader is tried on
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgefl.devices import load_device, load_link, read_fleet
from edgefl.devices.availability import AvailabilityOptions, availability_of
from edgefl.devices.availability_trace import read_trace

TOOL = Path(__file__).resolve().parents[2] / "tools" / "import_fedscale.py"
TRACE = {
    1: {"duration": 40, "inactive": [30, 90], "finish_time": 100, "active": [10, 70], "model": "phone"},
    7: {"duration": 20, "inactive": [20, 30, 40], "finish_time": 50, "active": [0, 20, 40], "model": "phone"},
    9: {"duration": 0, "inactive": [], "finish_time": 100, "active": [], "model": "phone"},
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("import_fedscale", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def put(path: Path, value: Any, protocol: int = 3) -> Path:
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


class Harm:
    """What it says when it is loaded: run a command."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def test_times_become_rows_that_the_trace_reader_takes(tool: ModuleType, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "trace.csv"
    assert tool.main(["availability", str(put(tmp_path / "behave", TRACE)), "-o", str(out)]) == 0
    with out.open(newline="") as text:
        rows = [tuple(row.values()) for row in csv.DictReader(text)]
    # 7's first two times touch, its third is empty; its 50 s go on until the longest period
    assert rows == [("1", "10", "30"), ("1", "70", "90"), ("7", "0", "30"), ("7", "50", "80")]
    said = capsys.readouterr().out
    assert "1 clients are never available" in said and "period: 100 s" in said and "50 %" in said
    trace = read_trace(str(out), 100.0)
    assert trace.names == ("1", "7")
    options = AvailabilityOptions.model_validate({"trace": {"file": str(out), "period": 100}})
    there = availability_of(options, 50, 1).available(np.arange(50), 75.0)
    assert there.all()  # both records have 75 s
    assert tool.main(["availability", str(tmp_path / "behave"), "-o", str(out)]) == 2
    assert "--force" in capsys.readouterr().err


def test_capacities_become_a_fleet_of_the_nearest_profiles(tool: ModuleType, tmp_path: Path) -> None:
    flops, out = 1e9, tmp_path / "fleet.yaml"
    rates = [load_device("phone-entry").flops_per_second] * 2 + [1.1 * load_device("phone-flagship").flops_per_second]
    speed = load_link("lte").download_goodput / 1000
    clients = {
        i: {"computation": np.float64(1000 * flops / rate), "communication": np.float64(0.9 * speed)}
        for i, rate in enumerate(rates)
    }
    # FedScale's own file is of protocol 3 and has numpy's numbers; JSON and plain numbers do as well
    plain = {str(i): {k: float(v) for k, v in c.items()} for i, c in clients.items()}
    (tmp_path / "capacity.json").write_text(json.dumps(plain))
    for source in (put(tmp_path / "numpy", clients), put(tmp_path / "plain", plain, 2), tmp_path / "capacity.json"):
        args = ["capacity", str(source), "--sample-flops", "1 GFLOP", "-o", str(out), "--force"]
        assert tool.main(args) == 0
        fleet = read_fleet(out)
        assert fleet.fields["devices"] == {"phone-entry": "66.67%", "phone-flagship": "33.33%"}
        assert fleet.fields["links"] == {"lte": "100%"} and fleet.confidence == "estimated"
        assert all("3 clients" in each.quote for each in fleet.sources.values())


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_a_command_is_refused(tool: ModuleType, tmp_path: Path, capsys: Any, protocol: int) -> None:
    proof = tmp_path / "proof"
    for value in (Harm(proof), {1: {"computation": Harm(proof)}}):
        source = put(tmp_path / "harm", value, protocol)
        assert tool.main(["capacity", str(source), "--sample-flops", "1e9", "-o", str(tmp_path / "x.yaml")]) == 2
        said = capsys.readouterr().err
        assert "refused: it asks for" in said and "system" in said and said.count("\n") == 1
    assert not proof.exists() and not (tmp_path / "x.yaml").exists()


def test_other_ways_into_a_pickle_are_closed(tool: ModuleType, tmp_path: Path) -> None:
    by_stack = b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94."
    dotted = b"\x80\x04\x8c\x05numpy\x94\x8c\x10dtype.__init__.x\x94\x93\x94."
    outside = b"\x80\x04\x8c\x01x\x94Q."
    extension = b"\x80\x02\x82\x01."
    array = pickle.dumps({1: np.zeros(3)}, protocol=3)
    objects = pickle.dumps({1: np.dtype("O")}, protocol=3)
    for index, data in enumerate((by_stack, dotted, outside, extension, array, b"", b"nonsense", b"[1]", b"{}")):
        path = tmp_path / str(index)
        path.write_bytes(data)
        with pytest.raises(tool.DeviceError) as error:
            tool.load(path)
        assert "\n" not in str(error.value) and str(path) in str(error.value)
    path = tmp_path / "objects"
    path.write_bytes(objects)
    assert isinstance(tool.load(path)["1"], tool._Number)  # a stand-in, no dtype


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"finish_time": 100, "active": [50], "inactive": [40]}, "active at 50 s and inactive before"),
        ({"finish_time": 100, "active": [5], "inactive": []}, "equal length"),
        ({"finish_time": 0, "active": [], "inactive": []}, "finish_time must be a number above 0"),
        ({"finish_time": 100, "active": [-1], "inactive": [3]}, "0 s or more, not -1"),
        ({"active": [1], "inactive": [3]}, "expected a mapping with 'finish_time'"),
        ([], "expected a mapping"),
    ],
)
def test_times_that_make_no_sense_name_the_client(
    tool: ModuleType, tmp_path: Path, capsys: Any, entry: Any, said: str
) -> None:
    source = put(tmp_path / "behave", {"c7": entry})
    assert tool.main(["availability", str(source), "-o", str(tmp_path / "t.csv")]) == 2
    heard = capsys.readouterr().err
    assert said in heard and "client c7" in heard and not (tmp_path / "t.csv").exists()


def test_shares_sum_to_all_of_them(tool: ModuleType) -> None:
    found = tool.shares({"a": 1, "b": 1, "c": 1, "d": 0})
    assert found == {"a": "33.34%", "b": "33.33%", "c": "33.33%"}


def test_a_period_that_is_a_slip_of_a_unit_is_told(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slip = {1: {**TRACE[1], "finish_time": 1e-6, "active": [0], "inactive": [1e-6]}}
    output = tmp_path / "trace.csv"
    arguments = ["availability", str(put(tmp_path / "trace", slip)), "-o", str(output), "--horizon", "7d"]
    assert tool.main(arguments) == 2
    assert "use a shorter --horizon or fewer --clients" in capsys.readouterr().err and not output.exists()
