"""The virtual time of a run in the Trace Event Format, which Perfetto and Chrome show.

The format is published as "Trace Event Format" by Google's catapult project.  Times are virtual microseconds since the
run began.  Process 1 is the server (a track of rounds, one of works, and the counters), process 2 has a track for each
client, process 3 one for each client's link.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NotRequired, TypedDict

from edgefl.errors import RunError
from edgefl.files import output
from edgefl.records.clients import Executed, FlightRecord
from edgefl.records.metrics import Metrics, split_of
from edgefl.records.record import UNSET, ByKind, Maybe, part_of
from edgefl.records.rounds import Round
from edgefl.results.recorded_rounds import PlayedFlight, PlayedRound, one_run, phases_of, server_spans, window_of
from edgefl.runs import Run
from edgefl.runs.changed import raise_run_errors
from edgefl.runs.durable import writing


class Event(TypedDict):
    """An event of the format; which fields it has depends on its ``ph``."""

    name: str
    ph: Literal["X", "C", "i", "M"]
    pid: int
    tid: int
    args: Mapping[str, object]
    cat: NotRequired[str]
    ts: NotRequired[float]
    dur: NotRequired[float]
    s: NotRequired[str]


Steps = dict[str, dict[str, dict[float, float]]]
"""Changes of counters: ``{counter: {series: {time: change}}}``, times in microseconds."""

SERVER, CLIENTS, LINKS = 1, 2, 3
"""Processes of the trace."""
ROUNDS, WORKS = 1, 2
"""Tracks of the server."""

MICRO = 1e6
"""Microseconds of a second: the unit of the trace's format."""

FACTS = (
    "round", "base_round", "outcome", "phase", "stage", "part", "samples", "staleness", "weight_factor", "loss",
    "slow_down", "attack", "peak_memory_bytes", "executed_flops", "energy_joules",
)  # fmt: skip
"""Fields of a client's record that its flight shows."""


@part_of(Round)
class TracedRound(PlayedRound):
    """What a trace shows of a round."""

    finished: int
    late: int
    failed: int
    energy_joules: float | None
    losses: ByKind[float | None]
    metrics: Metrics


@part_of(FlightRecord)
class TracedFlight(PlayedFlight, Executed):
    """What a trace shows of a flight."""

    staleness: int
    weight_factor: float
    loss: float | None
    attack: str | Maybe | None = UNSET
    peak_memory_bytes: int

    def phase_bytes(self, phase: str) -> int | None:
        """Serialised bytes that crossed the link in the ``download`` or the ``upload``; None for another phase."""
        return {"download": self.carried_download_bytes, "upload": self.carried_upload_bytes}.get(phase)


@raise_run_errors
def write_trace(run: Run, folder: Path) -> tuple[list[str], str]:
    """Write ``trace.json`` into the folder; return the file, and how to show it.

    Raises RunError for a comparison, and if no round has ended or the file can't be written.
    """
    rounds = list(one_run(run.path).read(TracedRound))
    if not rounds:
        raise RunError(f"the run at {run.path} has no trace yet: no round has ended")
    counters: Steps = defaultdict(lambda: defaultdict(lambda: defaultdict(float)))
    clients: dict[int, TracedFlight] = {}
    count = 0
    path = folder / "trace.json"
    of = json.dumps({"scenario": run.name, "clock": "virtual time since the run began"})
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        with output(path) as file:
            file.write(f'{{"displayTimeUnit": "ms", "otherData": {of},\n"traceEvents": [\n'.encode())
            for event in _events(run, rounds, clients, counters):
                file.write((("" if count == 0 else ",\n") + json.dumps(event, allow_nan=False)).encode())
                count += 1
            file.write(b"\n]}\n")
    return [str(path)], f"{count:,} events of {len(clients)} clients: open {path} in ui.perfetto.dev"


def _events(run: Run, rounds: list[TracedRound], clients: dict[int, TracedFlight], counters: Steps) -> Iterator[Event]:
    last: dict[int, float] = {}
    for flight in run.read(TracedFlight):
        clients.setdefault(flight.client, flight)
        last[flight.round] = max(last.get(flight.round, 0.0), flight.ended_virtual_seconds)
        yield from flight_events(flight)
        count_flight(flight, counters)
    window = window_of(run)
    for record in rounds:
        yield from round_events(record, last.get(record.round), window)
    yield from counter_events(counters, rounds[-1].finished_virtual_seconds * MICRO)
    yield from names(clients)


def flight_events(flight: TracedFlight) -> Iterator[Event]:
    """Slices of a flight: the whole of it and its phases on the client's track, its transfers on the link's."""
    tid = flight.client + 1
    facts = {name: value for name in FACTS if (value := getattr(flight, name)) not in (None, UNSET)}
    begins, ends = flight.dispatched_virtual_seconds, flight.ended_virtual_seconds
    yield _slice(CLIENTS, tid, f"round {flight.base_round}: {flight.outcome}", "flight", begins, ends, facts)
    for span in phases_of(flight):
        yield _slice(CLIENTS, tid, span.name, "phase", span.start, min(span.end, ends), {})
        if (carried := flight.phase_bytes(span.name)) is not None:
            bits = {"carried_bytes": carried, "bits_per_second": 8 * carried / (span.end - span.start)}
            yield _slice(LINKS, tid, span.name, "transfer", span.start, min(span.end, ends), bits)


def round_events(record: TracedRound, landed: float | None, window: float | None) -> Iterator[Event]:
    """Slices of a round and of the server's works in it, and an instant with its metrics."""
    begins, ends = record.started_virtual_seconds, record.finished_virtual_seconds
    names = ("stage", "outcome", "selected", "finished", "late", "failed", "energy_joules")
    facts = {name: getattr(record, name) for name in names} | {"losses": record.losses, "metrics": record.metrics}
    yield _slice(SERVER, ROUNDS, f"round {record.round}", "round", begins, ends, facts)
    for span in server_spans(record, landed, window):
        yield _slice(SERVER, WORKS, span.name, "server", span.start, span.end, {})
    if record.metrics:
        split = split_of(work.when for work in record.server_works)
        yield {
            "name": f"metrics of round {record.round} on {split}", "cat": "metrics", "args": record.metrics, "ph": "i",
            "s": "p", "ts": ends * MICRO, "pid": SERVER, "tid": ROUNDS,
        }  # fmt: skip


def count_flight(flight: TracedFlight, counters: Steps) -> None:
    """Add a flight to the counters: its memory while it computes, its bits while it transfers, its mean power."""
    for span in phases_of(flight):
        start, end = span.start * MICRO, span.end * MICRO
        if end <= start:
            continue
        if span.name == "compute":
            _add(counters, "memory, bytes", flight.kind, start, end, flight.peak_memory_bytes)
        elif (carried := flight.phase_bytes(span.name)) is not None:
            rate = 8 * carried / (span.end - span.start)
            _add(counters, "traffic, bits per second", span.name, start, end, rate)
    begins, ends = flight.dispatched_virtual_seconds, flight.ended_virtual_seconds
    if ends > begins and flight.energy_joules is not None:
        watts = flight.energy_joules / (ends - begins)
        _add(counters, "power, watts", flight.kind, begins * MICRO, ends * MICRO, watts)


def _add(counters: Steps, counter: str, series: str, start: float, end: float, amount: float) -> None:
    counters[counter][series][start] += amount
    counters[counter][series][end] -= amount


def counter_events(counters: Steps, end: float) -> Iterator[Event]:
    """An event at each change of a counter, with the values of all its series; at ``end`` all are 0."""
    for counter, series in counters.items():
        values, largest = dict.fromkeys(series, 0.0), dict.fromkeys(series, 0.0)
        changes: dict[float, list[tuple[str, float]]] = defaultdict(list)
        for name, steps in series.items():
            for at, change in steps.items():
                changes[at].append((name, change))
        for at in sorted(changes):
            for name, change in changes[at]:
                values[name] += change
                largest[name] = max(largest[name], abs(values[name]))
                if abs(values[name]) < 1e-9 * largest[name]:
                    values[name] = 0.0  # rounding of a sum that is zero again
            yield _counter(counter, at, values)
        yield _counter(counter, max(end, *changes), dict.fromkeys(values, 0.0))


def _counter(name: str, at: float, values: Mapping[str, float]) -> Event:
    return {"name": name, "ph": "C", "ts": at, "pid": SERVER, "tid": 0, "args": dict(values)}


def names(clients: Mapping[int, TracedFlight]) -> Iterator[Event]:
    """Metadata: the names of processes and tracks, and their order."""
    for order, (pid, name) in enumerate(((SERVER, "server"), (CLIENTS, "clients"), (LINKS, "links"))):
        yield _metadata("process_name", pid, 0, {"name": name})
        yield _metadata("process_sort_index", pid, 0, {"sort_index": order})
    tracks: list[tuple[int, int, str]] = [(SERVER, ROUNDS, "rounds"), (SERVER, WORKS, "works")]
    for client, flight in sorted(clients.items()):
        tracks.append((CLIENTS, client + 1, f"client {client}: {flight.kind}, {flight.device}"))
        tracks.append((LINKS, client + 1, f"client {client}: {flight.link}"))
    for pid, tid, name in tracks:
        yield _metadata("thread_name", pid, tid, {"name": name})
        yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})


def _metadata(name: str, pid: int, tid: int, args: Mapping[str, object]) -> Event:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _slice(pid: int, tid: int, name: str, category: str, start: float, end: float, args: Mapping[str, object]) -> Event:
    return {
        "name": name, "cat": category, "ph": "X", "ts": start * MICRO, "dur": max(end - start, 0.0) * MICRO,
        "pid": pid, "tid": tid, "args": args,
    }  # fmt: skip
