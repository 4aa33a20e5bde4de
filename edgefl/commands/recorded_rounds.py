"""One round of a run, put together from its records: what the server did when, and the flights that landed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgefl import registry
from edgefl.errors import RunError
from edgefl.planning.round_options import RoundOptions
from edgefl.runs import Run, is_comparison, read_run

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Span:
    """Something the server does from ``start`` to ``end``, in virtual seconds since the run began."""

    name: str
    start: float
    end: float


def one_run(path: str | os.PathLike[str]) -> Run:
    """The run in this folder.  Raises RunError for a comparison, and where there is no run."""
    run = read_run(path)
    if is_comparison(path):
        folders = ", ".join(str(Path(path) / member.path.name) for member in run.runs.values())
        raise RunError(f"{path} is a comparison; give the folder of one of its runs: {folders or 'none has begun'}")
    return run


def round_of(run: Run, number: int) -> dict[str, Any]:
    """The record of a round.  Raises RunError, which says the rounds that there are."""
    last = 0
    for record in run.each("rounds"):
        if record["round"] == number:
            return record
        last = max(last, record["round"])
    there = f"its records have the rounds 1 to {last}" if last else "no round has ended yet"
    raise RunError(f"the run at {run.path} has no round {number}: {there}")


def finished_at(record: Record) -> float:
    """The virtual time at which a round ended, in seconds; runs of earlier versions record its length only."""
    ended = record.get("finished_virtual_seconds")
    return float(record["started_virtual_seconds"] + record["virtual_seconds"] if ended is None else ended)


def window_of(run: Run) -> float | None:
    """The seconds between two aggregations of a run whose rounds end by time; None for other policies."""
    # the selection of a plug-in isn't needed, and may not be there
    section = {name: value for name, value in (run.scenario.get("round") or {}).items() if name != "selection"}
    if not getattr(policy_of(section), "by_time", False):
        return None
    options = RoundOptions.model_validate(section)
    return float(registry.get("round policy", options.policy_name)(options).over(0.0))


def policy_of(section: Mapping[str, Any]) -> type[Any] | None:
    """The round policy (an ``edgefl.simulation.Policy``) of a run's ``round`` section; None if it isn't installed."""
    name = policy_name(section)
    return registry.get("round policy", name) if name in registry.names("round policy") else None


def policy_name(section: Mapping[str, Any]) -> str:
    """The name of the round policy in a run's ``round`` section."""
    policy = section.get("policy", "synchronous")
    return str(policy["name"] if isinstance(policy, Mapping) else policy)


def server_spans(record: Record, last_landing: float | None, window: float | None = None) -> list[Span]:
    """The server's works of a round in order, and the delivery of a finished stage, which has no record of its own.

    Works ``before`` the clients begin with the round.  The others begin after the last landing (with a ``window`` no
    sooner than at its end), and end with the round.
    """
    now, spans = float(record["started_virtual_seconds"]), []
    works = record["server_works"]
    for work in works:
        if work["when"] == "before":
            spans.append(Span(f"before the clients, {work['kind']}", now, now + work["seconds"]))
            now += work["seconds"]
    later = [work for work in works if work["when"] != "before"]
    ended = finished_at(record)
    begins = ended - sum(work["seconds"] for work in later)
    if record.get("final_delivery_bytes"):
        known = max(now, last_landing or now, now + window if window is not None else now)
        begins = min(begins, known)
    for work in later:
        name = work["when"] if work["when"].startswith("evaluate") else f"{work['when']} the clients"
        spans.append(Span(f"{name}, {work['kind']}", begins, begins + work["seconds"]))
        begins += work["seconds"]
    if record.get("final_delivery_bytes") and ended > begins:
        spans.append(Span("deliver the finished stage", begins, ended))
    return spans


def phases_of(flight: Record) -> list[Span]:
    """The phases of a flight that took time, in order, from its dispatch to its end."""
    now, spans = float(flight["dispatched_virtual_seconds"]), []
    for name in ("download", "compute", "upload"):
        seconds = flight[f"{name}_seconds"]
        if seconds > 0:
            spans.append(Span(name, now, now + seconds))
            now += seconds
    if spans:  # rounding: the last phase ends with the flight
        spans[-1] = Span(spans[-1].name, spans[-1].start, max(float(flight["ended_virtual_seconds"]), spans[-1].start))
    return spans


def landed_in(run: Run, number: int) -> list[dict[str, Any]]:
    """The flights that landed in a round, in the order in which they ended."""
    flights = [record for record in run.flights() if record["round"] == number]
    return sorted(flights, key=lambda flight: flight["ended_virtual_seconds"])


def check_client(run: Run, client: int, clients: int) -> None:
    """Raise RunError unless the run has this client."""
    if not 0 <= client < clients:
        raise RunError(f"the run at {run.path} has no client {client}: its clients are 0 to {clients - 1}")


def total_clients(verdicts: Sequence[Record], scenario: Mapping[str, Any]) -> int:
    """Number of the fleet's clients."""
    asked = sum((scenario["data"].get("clients") or {}).values())
    return max(asked, *(verdict["client"] + 1 for verdict in verdicts)) if verdicts else int(asked)
