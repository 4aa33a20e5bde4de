"""The trace is what the Trace Event Format documents, and holds the figures of the records."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import edgefl
from edgefl.errors import RunError
from edgefl.runs import Run

# "Trace Event Format" (catapult): the fields of each kind of event that edgefl writes
NEEDED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "M": {"name", "ph", "pid", "args"},
    "i": {"name", "ph", "ts", "pid", "tid", "s"},
}
ALLOWED = {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args", "s", "tts", "id", "cname"}
METADATA = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index",
            "thread_sort_index": "sort_index", "process_labels": "labels"}  # fmt: skip


@pytest.fixture(scope="module", params=["unequal", "asynchronous", "layerwise_run"])
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    run: Run = request.getfixturevalue(request.param)
    answer = edgefl.export(run, "perfetto", tmp_path_factory.mktemp("trace"))
    (file,) = answer.files
    whole = json.loads(Path(file).read_text())
    assert answer.notices[0].startswith(f"{len(whole['traceEvents']):,} events of ") and file in answer.notices[0]
    return run, whole


def test_events_have_the_documented_fields(traced: tuple[Run, dict[str, Any]]) -> None:
    _, whole = traced
    assert whole["displayTimeUnit"] in ("ms", "ns") and isinstance(whole["otherData"], dict)
    kinds = set()
    for event in whole["traceEvents"]:
        kinds.add(event["ph"])
        assert NEEDED[event["ph"]] <= set(event) <= ALLOWED
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event.get("ts", 0.0), int | float) and event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0
        assert isinstance(event.get("args", {}), dict)
        if event["ph"] == "C":
            assert event["args"] and all(type(value) in (int, float) for value in event["args"].values())
        if event["ph"] == "M":
            assert list(event["args"]) == [METADATA[event["name"]]]
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
    assert kinds >= {"X", "C", "M"}


def test_slices_of_a_track_nest(traced: tuple[Run, dict[str, Any]]) -> None:
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in traced[1]["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        open_: list[float] = []
        for start, end in sorted(slices, key=lambda slice: (slice[0], -slice[1])):
            slack = 1e-6 * max(end, 1.0)
            while open_ and open_[-1] <= start + slack:
                open_.pop()
            assert not open_ or end <= open_[-1] + slack
            open_.append(end)


def test_each_client_link_and_the_server_has_a_named_track(traced: tuple[Run, dict[str, Any]]) -> None:
    run, whole = traced
    events = whole["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = {(processes[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    flown = {f["client"]: f for f in run.records("clients")}
    assert tracks == {("server", "rounds"), ("server", "works")} | {
        (process, f"client {client}: {words}")
        for client, f in flown.items()
        for process, words in (("clients", f"{f['kind']}, {f['device']}"), ("links", f["link"]))
    }
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    assert used <= {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}


def test_flights_and_rounds_are_the_records(traced: tuple[Run, dict[str, Any]]) -> None:
    run, whole = traced
    slices = [event for event in whole["traceEvents"] if event["ph"] == "X"]
    flights = [(e["tid"] - 1, e["ts"] / 1e6, e["dur"] / 1e6) for e in slices if e["cat"] == "flight"]
    recorded = [(f["client"], f["dispatched_virtual_seconds"], f["ended_virtual_seconds"]) for f in run.each("clients")]
    assert len(flights) == len(recorded)
    for (client, at, lasted), (of, sent, ended) in zip(flights, recorded, strict=True):
        assert client == of and at == pytest.approx(sent) and lasted == pytest.approx(ended - sent, abs=1e-9)
    rounds = [(e["ts"] + e["dur"]) / 1e6 for e in slices if e["cat"] == "round"]
    assert rounds == pytest.approx(run.rounds["finished_virtual_seconds"].tolist())
    works = sum(e["dur"] for e in slices if e["cat"] == "server") / 1e6
    assert works == pytest.approx(sum(r["server_seconds"] for r in run.records("rounds")), rel=1e-6)


def test_counters_sum_to_bits_and_joules_and_end_at_zero(traced: tuple[Run, dict[str, Any]]) -> None:
    run, whole = traced
    sums: dict[str, float] = defaultdict(float)
    before: dict[str, dict[str, Any]] = {}
    for event in (e for e in whole["traceEvents"] if e["ph"] == "C"):
        if (last := before.get(event["name"])) is not None:
            assert event["ts"] >= last["ts"]
            for series, value in last["args"].items():
                sums[f"{event['name']}:{series}"] += value * (event["ts"] - last["ts"]) / 1e6
        before[event["name"]] = event
    assert all(value == 0 for event in before.values() for value in event["args"].values())
    flights = run.records("clients")
    for way in ("download", "upload"):
        bits = 8 * sum(flight[f"carried_{way}_bytes"] for flight in flights)
        assert sums[f"traffic, bits per second:{way}"] == pytest.approx(bits, rel=1e-6)
    for kind in {flight["kind"] for flight in flights}:
        joules = sum(f["energy_joules"] for f in flights if f["kind"] == kind)
        assert sums[f"power, watts:{kind}"] == pytest.approx(joules, rel=1e-6)
        held = sum(f["peak_memory_bytes"] * f["compute_seconds"] for f in flights if f["kind"] == kind)
        assert sums[f"memory, bytes:{kind}"] == pytest.approx(held, rel=1e-6)


def test_the_file_lies_in_the_runs_folder_unless_another_is_named(untrained: Any, tmp_path: Path) -> None:
    run = untrained()
    assert edgefl.export(run, "perfetto").files == [str(run.path / "perfetto" / "trace.json")]
    edgefl.read_run(run)  # the folder is still one of a run
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="can't write to .*file: it is a file, not a folder"):
        edgefl.export(run, "perfetto", tmp_path / "file")
    with pytest.raises(RunError, match=r"can't write .*trace\.json: Not a directory"):
        edgefl.export(run, "perfetto", tmp_path / "file" / "below")


def test_a_comparison_has_no_trace(tiny: Any, tmp_path: Path) -> None:
    run = edgefl.run(tiny(training={"mode": "none"}, compare={"seed": [1, 2]}), out=tmp_path / "run")
    with pytest.raises(RunError, match="is a comparison; give the folder of one of its runs"):
        edgefl.export(run, "perfetto")
    assert not (run.path / "perfetto").exists()
