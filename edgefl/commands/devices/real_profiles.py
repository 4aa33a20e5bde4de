"""Profiles of the devices of a real run: those that its scenario names, at the pace that was measured on its nodes."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import median, stdev
from typing import cast

from edgefl import units
from edgefl.commands.devices.measured_machine import written_processor
from edgefl.devices import Device
from edgefl.devices.profile import DEVICE_NUMBERS, load_device
from edgefl.devices.runtime import with_runtime
from edgefl.devices.writing import ProfileNumber, profile_text
from edgefl.devices.written_facts import Confidence, Fact
from edgefl.errors import DeviceError
from edgefl.records.clients import FlightRecord
from edgefl.records.host import NodeFlight
from edgefl.records.record import UNSET, Record, part_of
from edgefl.results.recorded_rounds import one_run
from edgefl.runs import Run
from edgefl.scenario import load

UNEQUAL = 2.0
"""Nodes of one device whose paces differ by more than this factor are told.  A choice: published seconds of one device
differ by less."""
FEWEST = 3
"""Works of which a deviation is told: of two it would be their distance."""
NOT_MEASURED = (
    "no link: a transfer is the rest of a round trip, with the transport's own time; --address on a node measures one",
    "watts, RAM and storage are those of the scenario's devices, because no node has measured them",
)
Three = tuple[float, float, float]
"""A value, the lowest and the highest."""


@part_of(FlightRecord)
class PlacedFlight(Record):
    """What is read of a flight beside its node's times."""

    round: int
    client: int
    device: str
    forward_flops: int
    backward_flops: int


Task = tuple[PlacedFlight, NodeFlight]


def profiles_of(folder: Path) -> tuple[dict[str, str], list[str]]:
    """The text of a profile for each device of the real run in a folder, by its name, and notes.

    Raises RunError where there is no run, DeviceError for a simulated one and one without a measured work.
    """
    run = one_run(folder)
    if not (run.path / "nodes.jsonl").exists():
        raise DeviceError(f"{folder} is of a simulation: --from takes the folder of a run on real devices")
    tasks = _tasks(run)
    if not tasks:
        raise DeviceError(f"{folder} has no measured work, because no update of a node arrived")
    scenario = load(run.path / "scenario.yaml")
    named = [with_runtime(load_device(name), scenario.fleet.runtime) for name in scenario.fleet.devices]
    devices = {device.name: device for device in named}
    unequal = [note for name, own in tasks.items() for note in _unequal_nodes(name, own)]
    texts = {name: _text(devices[name], scenario.training.precision, own, run.name) for name, own in tasks.items()}
    return texts, [*NOT_MEASURED, *unequal]


def _tasks(run: Run) -> dict[str, list[Task]]:
    """The tasks whose update arrived, by device."""
    flights = {(each.round, each.client): each for each in run.read(PlacedFlight)}
    found: dict[str, list[Task]] = {}
    for node in run.read(NodeFlight):
        flight = flights.get((node.round, node.client))
        if flight is not None and node.compute_seconds is not UNSET and node.compute_seconds > 0:
            found.setdefault(flight.device, []).append((flight, node))
    return found


def _pace(task: Task) -> float:
    """How many times as fast as predicted a task's work was."""
    return cast(float, task[1].predicted_compute_seconds) / cast(float, task[1].compute_seconds)


def _unequal_nodes(device: str, tasks: Sequence[Task]) -> Iterator[str]:
    """A line if nodes of this device differ by more than ``UNEQUAL``."""
    paces: dict[int, list[float]] = {}
    for task in tasks:
        paces.setdefault(task[0].client, []).append(_pace(task))
    of = {client: median(own) for client, own in paces.items()}
    slowest, fastest = min(of, key=of.__getitem__), max(of, key=of.__getitem__)
    if (times := of[fastest] / of[slowest]) > UNEQUAL:
        yield (
            f"{device}: the node of client {fastest} is {times:.2g} times as fast as that of client {slowest}; name a "
            "device of its own for each in fleet.devices"
        )


def _text(device: Device, precision: str, tasks: Sequence[Task], run: str) -> str:
    """The profile of a device from the tasks of its nodes.

    All rates are multiplied by the pace and all fixed times divided by it, so that the profile predicts the seconds of
    the median task: the seconds of a few works can't tell rate, bandwidth and fixed times apart.
    """
    paces, processor = sorted(map(_pace, tasks)), device.processor
    low, pace, high = paces[0], median(paces), paces[-1]
    rates = sorted((f.forward_flops + f.backward_flops) / cast(float, node.compute_seconds) for f, node in tasks)
    title, today = f"edgefl devices calibrate --from, the run {run}", datetime.date.today()
    clients = {flight.client for flight, _ in tasks}
    works = f"{len(tasks)} works of {len(clients)} node{'s' if len(clients) > 1 else ''}"
    seen = (
        f"{works} ran at {pace:.3g} times the pace that is predicted for {device.name} ({low:.3g} to {high:.3g}), with "
        f"{units.show_rate(median(rates))} of all their operators ({units.show_rate(rates[0])} to "
        f"{units.show_rate(rates[-1])})."
    )

    def number(name: str, ends: Three, confidence: Confidence, quote: str) -> ProfileNumber:
        value, lowest, highest = (DEVICE_NUMBERS[name].write(end) for end in ends)
        return ProfileNumber(value, lowest, highest, confidence, title, today, quote)

    rate = f"{precision}_flops_per_second"
    rate = rate if rate in device.facts else "flops_per_second"
    entries: dict[str, ProfileNumber] = {}
    for name, fact in device.facts.items():
        told = f"{seen} There: {fact.source.quote}"
        if name == rate:
            entries[name] = number(name, (fact.value * pace, fact.value * low, fact.value * high), "measured", told)
        elif name.endswith("flops_per_second") or name == "memory_bytes_per_second":
            entries[name] = number(name, (fact.value * pace, fact.low * low, fact.high * high), "estimated", told)
        elif name == "seconds_per_operator":
            fixed = processor.launch
            ends = (fact.value * fixed / pace, fact.low * fixed / high, fact.high * fixed / low)
            entries[name] = number(name, ends, "estimated", told)
        else:
            entries[name] = _as_it_is(name, fact)
    if processor.type != "gpu":
        used = sorted(cast(int, node.rss_bytes) for _, node in tasks)
        if used[-1] > device.ram_bytes:
            raise DeviceError(
                f"a node of {device.name} used {units.show_bytes(used[-1])}, and it has "
                f"{units.show_bytes(device.ram_bytes)}: fleet.devices of the run names another device"
            )
        quote = f"Resident set of the nodes' processes after {works}, with what they keep for later tensors."
        ends = (median(used), used[0], used[-1])
        entries["runtime_overhead_bytes"] = number("runtime_overhead_bytes", ends, "measured", quote)
    if len(paces) >= FEWEST:
        sigma = stdev(map(log, paces))
        entries["jitter"] = number("jitter", (sigma,) * 3, "measured", f"Sigma of the log pace of {works}.")
    texts: dict[str, object] = {"title": f"{device.title}, measured in {run}", "type": device.type}
    if processor.type != "roofline":
        paced = replace(device, processor=replace(processor, kernel_seconds=processor.kernel_seconds / pace))
        texts["processor"] = written_processor(paced, device.peak_flops_per_second)
    return profile_text(texts, entries)


def _as_it_is(name: str, fact: Fact) -> ProfileNumber:
    """A number of the scenario's device as it is."""
    value, low, high = (DEVICE_NUMBERS[name].write(end) for end in (fact.value, fact.low, fact.high))
    confidence: Confidence = "estimated" if fact.confidence == "fitted" else fact.confidence
    source = fact.source
    return ProfileNumber(value, low, high, confidence, source.title, source.date, source.quote, source.url)
