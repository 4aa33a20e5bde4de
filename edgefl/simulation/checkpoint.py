"""Checkpoints of a simulation: tensors and plain data, from which a resumed run writes the same records.

SimPy's events can't be stored.  A client under way is stored as its flight, from which its events are created again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgefl.errors import RunError
from edgefl.methods import ServerState
from edgefl.plain_data import from_data, load_data, to_data
from edgefl.planning.versions import ClientVersions
from edgefl.runs.kept import FACTS, ROWS
from edgefl.simulation.client import Flight
from edgefl.simulation.clock import Clock
from edgefl.simulation.closed_form import Dispatch
from edgefl.simulation.in_flight import InFlight
from edgefl.simulation.learning import Learning, Training
from edgefl.simulation.run_state import RunMoment, RunParts, SimulationRun
from edgefl.work import TensorSpec

FLOWN, ARRAY, SCHEDULE = "flown:", "array:", "schedule:"
"""Prefixes of tensors: the states that clients under way started from, arrays of the simulation, and the schedule's."""
OF_CLIENTS = ("stage", "eligible", "binding", "spent")
"""Arrays of the roster, some of which may be None."""


def checkpoint_of(run: SimulationRun) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Everything that the next round depends on: tensors by name and plain JSON.

    What clients keep is written to files of its own, to which they refer.  Raises RunError if that can't be written.
    """
    parts, progress, air, learning = run.parts, run.progress, run.air, run.parts.learning
    tensors: dict[str, Tensor] = {}
    state = {
        "now": run.now,
        "at": to_data(run.at),
        "versions": dict(learning.state.versions),
        "progress": progress.to_data(),
        "selection": parts.selection.to_data(),
    }
    if parts.batteries is not None:
        state["batteries"] = parts.batteries.to_data()
    if parts.setup.schedule.adapts:
        state["schedule"] = parts.setup.schedule.to_data()
        tensors |= {SCHEDULE + name: tensor for name, tensor in parts.setup.schedule.tensors().items()}
    if progress.watch is not None:
        state["watch"] = progress.watch.to_data()
    arrays = {name: getattr(parts.roster, name) for name in OF_CLIENTS}
    for name, versions in _versions_of_clients(run).items():
        arrays[name], state[name] = versions.to_data()
    for name, array in arrays.items():
        if array is not None:
            tensors[ARRAY + name] = torch.from_numpy(np.array(array))
    if air is not None:
        state["flights"], states = _flights_data(air, learning)
        for number, held in states.items():
            tensors |= {f"{FLOWN}{number}:{a}": t for a, t in held.tensors.items()}
    if isinstance(learning, Training):
        tensors |= learning.state.tensors
        state["metered"] = sorted(learning.metered)
        if (kept := learning.kept.commit(run.at.round, learning.under_way)) is not None:
            tensors[ROWS], state[FACTS] = kept
    else:
        # shapes without values, except for tensors that were created during the run
        state["shapes"] = to_data({a: TensorSpec.from_tensor(t) for a, t in learning.state.tensors.items()})
        tensors |= {a: t for a, t in learning.state.tensors.items() if not t.is_meta}
    return tensors, state


def _versions_of_clients(run: SimulationRun) -> dict[str, ClientVersions]:
    """Versions that clients hold of what they train, and of what they evaluate."""
    named = {"ledger": run.parts.roster.client_versions, "scored": run.progress.scored_versions}
    return {name: versions for name, versions in named.items() if versions.keeping}


def _flights_data(air: InFlight, learning: Learning) -> tuple[dict[str, Any], dict[int, ServerState]]:
    """Flights, of which the first are under way, with what they share; and by number the states they started from."""
    flights = (*air.flying.values(), *air.queue.values())  # which hold what is numbered by its id below
    dispatches = list({id(flight.dispatch): flight.dispatch for flight in flights}.values())
    versions = list({id(dispatch.versions): dispatch.versions for dispatch in dispatches}.values())
    number = {id(each): n for shared in (dispatches, versions) for n, each in enumerate(shared)}
    states: dict[int, ServerState] = {}
    rows = []
    for flight in flights:
        row = {
            "flight": flight.to_data(), "dispatch": number[id(flight.dispatch)],
            "stage": flight.plan.stage.index, "old": flight.plan.old,
        }  # fmt: skip
        if isinstance(learning, Training):
            started = learning.under_way[flight.client]
            row |= {
                "metered": started.assignment is not None and started.assignment.metered,
                "trains": started.assignment is not None,
            }
            states[number[id(flight.dispatch.versions)]] = started.state
        rows.append(row)
    return {
        "rows": rows,
        "flying": len(air.flying),
        "lines": air.to_data(),
        "dispatches": [{**vars(each), "versions": number[id(each.versions)]} for each in dispatches],
        "versions": list(map(dict, versions)),
    }, states


def load_checkpoint(run: SimulationRun, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Go on from a checkpoint in a new simulation.  Raises RunError if it belongs to another setup."""
    parts, progress = run.parts, run.progress
    learning, roster = parts.learning, parts.roster
    held = {a: t for a, t in tensors.items() if not a.startswith((FLOWN, ARRAY, SCHEDULE))}
    if isinstance(learning, Training):
        learning.metered = set(state["metered"])
        if FACTS in state:
            learning.kept.load_data(tensors[ROWS], state[FACTS])
    else:
        with torch.device("meta"):
            held = {a: spec.empty() for a, spec in from_data(dict[str, TensorSpec], state["shapes"]).items()} | held
    # tables may be created during a run
    own = learning.state.tensors
    if {a for a in held.keys() ^ own.keys() if not a.startswith("table/")} or any(
        (t.shape, t.dtype) != (own[a].shape, own[a].dtype) for a, t in held.items() if a in own
    ):
        raise RunError("the checkpoint's tensors differ from those of this scenario's models")
    learning.state = ServerState(held, from_data(dict[str, int], state["versions"], strict=True))
    arrays = {name.removeprefix(ARRAY): t.numpy() for name, t in tensors.items() if name.startswith(ARRAY)}
    for name in OF_CLIENTS:
        if (mine := getattr(roster, name)) is not None:
            if (arrays[name].shape, arrays[name].dtype) != (mine.shape, mine.dtype):
                raise RunError("the checkpoint has another number of clients than this scenario")
            setattr(roster, name, arrays[name].copy())
    for name, versions in _versions_of_clients(run).items():
        versions.load_data(arrays[name], state[name])
    run.at = from_data(RunMoment, state["at"], strict=True)
    run.env = Clock(initial_time=from_data(float, state["now"], strict=True))
    load_data(progress, state["progress"])
    if progress.watch is not None and "watch" in state:
        progress.watch.load_data(state["watch"])
    parts.selection.load_data(state["selection"])
    if parts.setup.schedule.adapts:
        parts.setup.schedule.load_data(state["schedule"])
        parts.setup.schedule.load_tensors(
            {name.removeprefix(SCHEDULE): t for name, t in tensors.items() if name.startswith(SCHEDULE)}
        )
    if parts.batteries is not None:
        parts.batteries.load_data(state["batteries"])
    if run.air is not None:
        run.air = InFlight(run.env, parts.setup.fleet.server_link)
        if "flights" in state:  # else the run was played in closed form until now
            _load_flights(parts, run.air, tensors, state["flights"])


def _load_flights(parts: RunParts, air: InFlight, tensors: Mapping[str, Tensor], raw: Mapping[str, Any]) -> None:
    """Go on with the flights of a checkpoint; what their clients train begins again."""
    setup, states = parts.setup, []
    for number, versions in enumerate(raw["versions"]):
        prefix = f"{FLOWN}{number}:"
        held = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        states.append(ServerState(held, versions))
    dispatches = [
        (Dispatch(**{**its, "versions": raw["versions"][its["versions"]]}), states[its["versions"]])
        for its in raw["dispatches"]
    ]
    stages = {stage.index: stage for stage in setup.schedule.offered}
    flights = []
    for row in raw["rows"]:
        client, (dispatch, state) = row["flight"]["client"], dispatches[row["dispatch"]]
        plan = parts.planner.plan(*setup.cell_indices(client), dispatch.round, stages[row["stage"]], tuple(row["old"]))
        flights.append(Flight.from_data(row["flight"], plan, dispatch, setup.fleet.changing))
        if isinstance(parts.learning, Training):
            parts.learning.resume(client, plan, state, dispatch, row["metered"], row["trains"])
    air.load_data(raw["lines"], flights[: raw["flying"]])
    air.queue.update((flight.client, flight) for flight in flights[raw["flying"] :])
