"""One round of a run, put together from its records: what the server did when, and the flights that landed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgefl import registry
from edgefl.errors import RunError
from edgefl.planning.round_options import RoundOptions
from edgefl.records.clients import Assigned, FlightCourse, FlightRecord
from edgefl.records.eligibility import ByBudget, VerdictRecord
from edgefl.records.epsilon import PrivacySpent
from edgefl.records.record import UNSET, Clients, Maybe, Record, part_of
from edgefl.records.relays import LastRelay
from edgefl.records.rounds import Round, RoundCourse, RoundTimes, ServerWorkRecord
from edgefl.runs import Run, is_comparison, read_run


@part_of(ServerWorkRecord)
class PlayedWork(Record):
    """When a work of the server ran."""

    when: str
    kind: str
    seconds: float


@part_of(Round)
class PlayedRound(LastRelay, RoundCourse, RoundTimes):
    """What is told of a round."""

    selected: int
    unavailable: int
    final_delivery_bytes: int
    server_works: Sequence[PlayedWork]
    privacy: PrivacySpent | Maybe = UNSET


@part_of(FlightRecord)
class PlayedFlight(FlightCourse, Assigned):
    """What is told of a flight."""

    slow_down: float
    energy_joules: float | None
    carried_download_bytes: int
    carried_upload_bytes: int


@part_of(VerdictRecord)
class PlayedVerdict(Assigned):
    """What is told of a verdict."""

    round: int
    client: int
    clients: Clients
    eligible: bool
    binding: str | None
    reason: str
    costs: ByBudget


@dataclass(frozen=True)
class ServerInterval:
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


def round_of(run: Run, number: int) -> PlayedRound:
    """The record of a round.  Raises RunError, which says the rounds that there are."""
    last = 0
    for record in run.read(PlayedRound):
        if record.round == number:
            return record
        last = max(last, record.round)
    there = f"its records have the rounds 1 to {last}" if last else "no round has ended yet"
    raise RunError(f"the run at {run.path} has no round {number}: {there}")


def window_of(run: Run) -> float | None:
    """The seconds between two aggregations of a run whose rounds end by time; None for other policies."""
    policy = policy_of(run)
    return float(policy.over(0.0)) if policy is not None and policy.is_time_bound else None


def policy_of(run: Run) -> Any:
    """The round policy (an ``edgefl.simulation.Policy``) of a run; None if it isn't installed."""
    name = run.settings.round.policy_name
    if name not in registry.names("round policy"):
        return None
    # the selection of a plug-in isn't needed, and may not be there
    section = {name: value for name, value in run.scenario["round"].items() if name != "selection"}
    return RoundOptions.model_validate(section).build_policy()


def server_spans(record: PlayedRound, last_landing: float | None, window: float | None = None) -> list[ServerInterval]:
    """The server's works of a round in order, and the delivery of a finished stage, which has no record of its own.

    Works ``before`` the clients begin with the round.  The others begin after the last landing, or the last relay's sum
    (with a ``window`` no sooner than at its end), and end with the round.
    """
    now, spans = record.started_virtual_seconds, []
    works = record.server_works
    for work in works:
        if work.when == "before":
            spans.append(ServerInterval(f"before the clients, {work.kind}", now, now + work.seconds))
            now += work.seconds
    later = [work for work in works if work.when != "before"]
    ended = record.finished_virtual_seconds
    begins = ended - sum(work.seconds for work in later)
    if record.final_delivery_bytes:
        known = max(now, last_landing or now, now + window if window is not None else now)
        known = max(known, record.last_sum_virtual_seconds or now)
        begins = min(begins, known)
    for work in later:
        name = work.when if work.when.startswith("evaluate") else f"{work.when} the clients"
        spans.append(ServerInterval(f"{name}, {work.kind}", begins, begins + work.seconds))
        begins += work.seconds
    if record.final_delivery_bytes and ended > begins:
        spans.append(ServerInterval("deliver the finished stage", begins, ended))
    return spans


def phases_of(flight: PlayedFlight) -> list[ServerInterval]:
    """The phases of a flight that took time, in order, from its dispatch to its end."""
    now, spans = flight.dispatched_virtual_seconds, []
    for name, seconds in flight.phase_seconds.items():
        if seconds > 0:
            spans.append(ServerInterval(name, now, now + seconds))
            now += seconds
    if spans:  # rounding: the last phase ends with the flight
        spans[-1] = ServerInterval(spans[-1].name, spans[-1].start, max(flight.ended_virtual_seconds, spans[-1].start))
    return spans


def landed_flights(run: Run, number: int) -> list[PlayedFlight]:
    """The flights that landed in a round, in the order in which they ended."""
    flights = [record for record in run.read(PlayedFlight) if record.round == number]
    return sorted(flights, key=lambda flight: flight.ended_virtual_seconds)


def check_client(run: Run, client: int, clients: int) -> None:
    """Raise RunError unless the run has this client."""
    if not 0 <= client < clients:
        raise RunError(f"the run at {run.path} has no client {client}: its clients are 0 to {clients - 1}")


def total_clients(verdicts: Sequence[PlayedVerdict], run: Run) -> int:
    """Number of the fleet's clients."""
    asked = sum((run.settings.data.clients or {}).values())
    return max(asked, *(verdict.client + 1 for verdict in verdicts)) if verdicts else asked
