"""Checkpoints of a simulation: tensors and plain data, from which a resumed run writes the same records.

SimPy's events can't be stored.  A client under way is stored as a row, from which its events are created again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict, cast

import numpy as np
import torch
from torch import Tensor

from edgefl.errors import RunError
from edgefl.methods import ServerState
from edgefl.planning.versions import Versions
from edgefl.records.reading import of_data
from edgefl.records.rounds import EarlyStop
from edgefl.runs.kept import FACTS, ROWS, KeptFacts
from edgefl.simulation.client import flight_of
from edgefl.simulation.clock import Clock
from edgefl.simulation.closed_form import Dispatch
from edgefl.simulation.in_flight import InFlight
from edgefl.simulation.learning import Learning, Training
from edgefl.simulation.run_state import RunMoment, RunParts, SimulationRun
from edgefl.simulation.watch import watched
from edgefl.work import TensorSpec

FLOWN, ARRAY = "flown:", "array:"
"""Prefixes of tensors: the states that clients under way started from, and arrays of the simulation."""


class TensorShape(TypedDict):
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: str


class FlightRow(TypedDict):
    """What a flight's row says beside the flight's own fields: its dispatch, what it trains, and how."""

    client: int
    dispatch: int
    at_stage: int
    old: list[str]
    state: NotRequired[int]
    metered: NotRequired[bool]
    trains: NotRequired[bool]


class DispatchRow(TypedDict):
    """A dispatch, whose versions are those of this number."""

    round: int
    number: int
    version: int
    at: float
    versions: int


class FlightRows(TypedDict):
    """Flights, of which the first ``flying`` are under way, and what they share."""

    rows: list[Mapping[str, object]]
    flying: int
    dispatches: list[DispatchRow]
    versions: list[dict[str, int]]
    states: list[dict[str, int]]


class State(TypedDict):
    """What the next round depends on, as plain data beside the tensors."""

    now: float
    dispatches: int
    version: int
    versions: dict[str, int]
    ledger: list[Versions]
    totals: dict[str, int]
    metrics: dict[str, dict[str, float | None]]
    diverged: str | None
    reached: NotRequired[list[int]]
    selection: Mapping[str, object]
    batteries: dict[str, list[float]] | None
    schedule: NotRequired[Mapping[str, object]]
    scored: NotRequired[list[Versions]]
    watch: NotRequired[object]
    asked_to_stop: NotRequired[object]
    flights: NotRequired[FlightRows]
    wires: NotRequired[list[Any]]
    metered: NotRequired[list[str]]
    kept: NotRequired[KeptFacts]
    shapes: NotRequired[dict[str, TensorShape]]


def checkpoint_of(run: SimulationRun) -> tuple[dict[str, Tensor], State]:
    """Everything that the next round depends on: tensors by name and plain JSON.

    What clients keep is written to files of its own, to which they refer.  Raises RunError if that can't be written.
    """
    at, parts, progress, air = run.at, run.parts, run.progress, run.air
    learning, roster = parts.learning, parts.roster
    tensors: dict[str, Tensor] = {}
    of, states = roster.client_versions.rows()
    state: State = {
        "now": run.now,
        "dispatches": at.dispatches,
        "version": at.version,
        "versions": dict(learning.state.versions),
        "ledger": [dict(held) for held in states],
        "totals": dict(progress.totals),
        "metrics": progress.metrics,
        "diverged": progress.diverged,
        "reached": sorted(progress.reached),
        "selection": parts.selection.rows(),
        "batteries": parts.batteries.rows() if parts.batteries is not None else None,
    }
    if parts.setup.schedule.adapts:
        state["schedule"] = parts.setup.schedule.written()
    arrays = {"ledger": of, "stage": roster.stage, "eligible": roster.eligible, "binding": roster.binding}
    if roster.spent is not None:
        arrays["spent"] = roster.spent
    if progress.scored_versions.keeping:
        arrays["scored"], scored = progress.scored_versions.rows()
        state["scored"] = [dict(held) for held in scored]
    for name, array in arrays.items():
        tensors[ARRAY + name] = torch.from_numpy(np.array(array))
    if progress.watch is not None:
        state["watch"] = progress.watch.state().as_json()
    if progress.asked_to_stop is not None:
        state["asked_to_stop"] = progress.asked_to_stop.as_json()
    if air is not None:
        state["flights"], started = _rows(air, learning)
        for number, held in enumerate(started):
            tensors |= {f"{FLOWN}{number}:{a}": t for a, t in held.tensors.items()}
        state["wires"] = air.rows()
    if isinstance(learning, Training):
        tensors |= learning.state.tensors
        state["metered"] = sorted(learning.metered)
        if (kept := learning.kept.commit(at.round, learning.under_way)) is not None:
            tensors[ROWS], state[FACTS] = kept
    else:
        # shapes without values, except for tensors that were created during the run
        specs = {a: TensorSpec.of(t) for a, t in learning.state.tensors.items()}
        state["shapes"] = {a: {"shape": spec.shape, "dtype": spec.dtype} for a, spec in specs.items()}
        tensors |= {a: t for a, t in learning.state.tensors.items() if not t.is_meta}
    return tensors, state


def _rows(air: InFlight, learning: Learning) -> tuple[FlightRows, list[ServerState]]:
    """Rows of flights, dispatches and versions, and the distinct states that the flights started from."""
    numbered: dict[int, tuple[int, Dispatch]] = {}
    versions: dict[int, tuple[int, Mapping[str, int]]] = {}
    states: dict[int, tuple[int, ServerState]] = {}
    rows: list[Mapping[str, object]] = []
    for flight in (*air.flying.values(), *air.queue.values()):
        number, _ = numbered.setdefault(id(flight.dispatch), (len(numbered), flight.dispatch))
        versions.setdefault(id(flight.dispatch.versions), (len(versions), flight.dispatch.versions))
        row = {**flight.row(), "dispatch": number, "at_stage": flight.plan.stage.index, "old": list(flight.plan.old)}
        if isinstance(learning, Training):
            training = learning.under_way[flight.client]
            row["state"] = states.setdefault(id(training.state), (len(states), training.state))[0]
            row["metered"] = training.task is not None and training.task.metered
            row["trains"] = training.task is not None
        rows.append(row)
    dispatches: list[DispatchRow] = [
        {"round": dispatch.round, "number": dispatch.number, "version": dispatch.version, "at": dispatch.at,
         "versions": versions[id(dispatch.versions)][0]}
        for _, dispatch in numbered.values()
    ]  # fmt: skip
    flight_rows: FlightRows = {
        "rows": rows,
        "flying": len(air.flying),
        "dispatches": dispatches,
        "versions": [dict(held) for _, held in versions.values()],
        "states": [dict(held.versions) for _, held in states.values()],
    }
    return flight_rows, [held for _, held in states.values()]


def restore(run: SimulationRun, round: int, tensors: Mapping[str, Tensor], state: State) -> None:
    """Restore a checkpoint in a new simulation.  Raises RunError if it belongs to another setup."""
    parts, progress = run.parts, run.progress
    learning, roster = parts.learning, parts.roster
    prefixes = (FLOWN, ARRAY)
    if isinstance(learning, Training):
        held = {a: t for a, t in tensors.items() if not a.startswith(prefixes)}
        learning.metered = set(state["metered"])
        if FACTS in state:
            learning.kept.load_data(tensors[ROWS], state[FACTS])
    else:
        with torch.device("meta"):
            held = {a: TensorSpec(tuple(s["shape"]), s["dtype"]).empty() for a, s in state["shapes"].items()}
        held |= {a: t for a, t in tensors.items() if not a.startswith(prefixes)}
    # tables may be created during a run
    if {a for a in held.keys() ^ learning.state.tensors.keys() if not a.startswith("table/")}:
        raise RunError("the checkpoint's tensors differ from those of this scenario's models")
    learning.state = ServerState(held, dict(state["versions"]))
    arrays = {name.removeprefix(ARRAY): t.numpy() for name, t in tensors.items() if name.startswith(ARRAY)}
    if len(arrays["stage"]) != len(roster.stage):
        raise RunError("the checkpoint has another number of clients than this scenario")
    roster.stage, roster.eligible, roster.binding = (
        arrays["stage"].copy(), arrays["eligible"].copy(), arrays["binding"].copy(),
    )  # fmt: skip
    if roster.spent is not None:
        roster.spent = arrays["spent"].copy()
    roster.client_versions.restore(arrays["ledger"], state["ledger"])
    if progress.scored_versions.keeping:
        progress.scored_versions.restore(arrays["scored"], state["scored"])
    run.at = RunMoment(round, state["version"], state["dispatches"])
    run.env = Clock(initial_time=state["now"])
    progress.totals, progress.metrics = Counter(state["totals"]), state["metrics"]
    progress.diverged = state["diverged"]
    progress.reached = set(state["reached"])
    if "asked_to_stop" in state:
        progress.asked_to_stop = of_data(EarlyStop, state["asked_to_stop"], "the checkpoint")
    if progress.watch is not None and (seen := watched(state)) is not None:
        progress.watch.restore(seen)
    parts.selection.restore(state["selection"])
    if parts.setup.schedule.adapts:
        parts.setup.schedule.restore(state["schedule"])
    if parts.batteries is not None:
        parts.batteries.restore(state["batteries"] or {})
    if run.air is not None:
        run.air = InFlight(run.env, parts.setup.fleet.server_link)
        if "flights" in state:  # else the run was played in closed form until now
            _restore_flights(parts, run.air, tensors, state)


def _restore_flights(parts: RunParts, air: InFlight, tensors: Mapping[str, Tensor], state: State) -> None:
    """Go on with the flights of a checkpoint; what their clients train begins again."""
    setup, rows = parts.setup, state["flights"]
    dispatches = [
        Dispatch(d["round"], d["number"], d["version"], d["at"], rows["versions"][d["versions"]])
        for d in rows["dispatches"]
    ]
    started = []
    for number, versions in enumerate(rows["states"]):
        prefix = f"{FLOWN}{number}:"
        held = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        started.append(ServerState(held, versions))
    stages = {stage.index: stage for stage in setup.schedule.offered}
    flights = []
    for row in rows["rows"]:
        place = cast(FlightRow, row)
        client, dispatch = place["client"], dispatches[place["dispatch"]]
        plan = parts.planner.plan(*setup.place(client), dispatch.round, stages[place["at_stage"]], tuple(place["old"]))
        flights.append(flight_of(row, plan, dispatch))
        if isinstance(parts.learning, Training):
            parts.learning.resume(client, plan, started[place["state"]], dispatch, place["metered"], place["trains"])
    air.restore(flights[: rows["flying"]], state["wires"])
    air.queue.update((flight.client, flight) for flight in flights[rows["flying"] :])
