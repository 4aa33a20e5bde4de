"""A run on real devices beside the simulation of the same scenario: what was predicted of each device, and measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from edgefl.commands.compare.answer import RealDevice
from edgefl.records.clients import FlightRecord
from edgefl.records.host import NodeFlight
from edgefl.records.record import UNSET, Record, part_of
from edgefl.runs import Run


@part_of(FlightRecord)
class TimedFlight(Record):
    """What is compared of a flight."""

    round: int
    client: int
    kind: str
    device: str
    stage: int
    outcome: str
    download_seconds: float
    compute_seconds: float
    upload_seconds: float
    peak_memory_bytes: int
    measured_peak_memory_bytes: int | None


def real_devices(runs: Iterable[Run]) -> Iterator[RealDevice]:
    """A row for each device, kind and stage of each run on real devices, for each simulation of its scenario and seed.

    The simulation may have other devices, such as those that were calibrated from the run.  Tasks count that finished
    in both.
    """
    everyone = [(run, {(each.round, each.client): each for each in run.read(NodeFlight)}) for run in runs]
    pairs = [
        (simulated, real, nodes)
        for real, nodes in everyone for simulated, own in everyone
        if nodes and not own and _without_devices(simulated) == _without_devices(real)
    ]  # fmt: skip
    for simulated, real, nodes in pairs:
        predicted = {(f.round, f.client): f for f in simulated.read(TimedFlight) if f.outcome == "finished"}
        groups: dict[tuple[str, str, int], list[tuple[TimedFlight, TimedFlight, NodeFlight]]] = {}
        for flight in real.read(TimedFlight):
            key = flight.round, flight.client
            if flight.outcome == "finished" and key in predicted:
                place = flight.device, flight.kind, flight.stage
                groups.setdefault(place, []).append((predicted[key], flight, nodes[key]))
        for (device, kind, stage), tasks in groups.items():
            yield _row(simulated, real, device, kind, stage, tasks)


def _without_devices(run: Run) -> dict[str, Any]:
    return {**run.scenario, "fleet": {**run.scenario["fleet"], "devices": None}}


def _row(
    simulated: Run, real: Run, device: str, kind: str, stage: int,
    tasks: Sequence[tuple[TimedFlight, TimedFlight, NodeFlight]],
) -> RealDevice:  # fmt: skip
    peaks = [p for _, flight, _ in tasks if (p := flight.measured_peak_memory_bytes) is not None]

    def mean(name: str) -> float:
        return fmean(value for *_, node in tasks if (value := getattr(node, name)) is not UNSET)

    return RealDevice(
        run=str(real.path), simulated=str(simulated.path), device=device, kind=kind, stage=stage, tasks=len(tasks),
        predicted_compute_seconds=fmean(flight.compute_seconds for flight, *_ in tasks),
        compute_seconds=mean("compute_seconds"),
        predicted_transfer_seconds=fmean(flight.download_seconds + flight.upload_seconds for flight, *_ in tasks),
        transfer_seconds=mean("transfer_seconds"),
        start_up_seconds=mean("start_up_seconds"),
        peak_memory_bytes=max(flight.peak_memory_bytes for flight, *_ in tasks),
        measured_peak_memory_bytes=max(peaks, default=None),
    )  # fmt: skip
