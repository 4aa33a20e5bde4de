"""Checkpoints of a simulation: tensors and plain state, from which it goes on to the same records.

SimPy's events can't be kept.  A client under way is a row, from which its events are made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgefl.errors import RunError
from edgefl.methods import ServerState
from edgefl.simulation.air import Flight, flight_of
from edgefl.simulation.course import Course
from edgefl.simulation.flights import Dispatch
from edgefl.simulation.learning import Training
from edgefl.simulation.network import SHARING
from edgefl.work import TensorSpec

KEPT, FLOWN, ARRAY = "kept:", "flown:", "array:"
"""Prefixes of tensors: what clients keep, the states that clients under way started from, arrays of the simulation.

The server's own have none."""


def snapshot(course: Course) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Everything that the next round depends on: tensors by name and plain JSON."""
    learning = course.learning
    tensors: dict[str, Tensor] = {}
    of, states = course.ledger.rows()
    state: dict[str, Any] = {
        "now": course.now,
        "dispatches": course.dispatches,
        "version": course.version,
        "versions": dict(learning.state.versions),
        "ledger": [dict(held) for held in states],
        "totals": dict(course.totals),
        "metrics": course.metrics,
        "selection": course.selection.rows(),
        "batteries": course.batteries.rows() if course.batteries is not None else None,
    }
    roster = course.roster
    for name, array in (("ledger", of), ("stage", roster.stage), ("eligible", roster.eligible),
                        ("binding", roster.binding)):  # fmt: skip
        tensors[ARRAY + name] = torch.from_numpy(np.array(array))
    if course.air is not None:
        state["flights"], started = _rows(course, [*course.air.flying.values(), *course.queue.values()])
        for number, held in enumerate(started):
            tensors |= {f"{FLOWN}{number}:{a}": t for a, t in held.tensors.items()}
        state["wires"] = course.air.rows()
    if isinstance(learning, Training):
        tensors |= learning.state.tensors
        state["metered"] = sorted(learning.metered)
        for client, kept in learning.kept.items():
            tensors |= {f"{KEPT}{client}:{name}": value for name, value in kept.items()}
    else:
        # shapes without values: what came into being while it ran
        state["shapes"] = {a: asdict(TensorSpec.of(t)) for a, t in learning.state.tensors.items()}
        tensors |= {a: t for a, t in learning.state.tensors.items() if not t.is_meta}
    return tensors, state


def _rows(course: Course, flights: list[Flight]) -> tuple[dict[str, Any], list[ServerState]]:
    """Rows of flights, of their dispatches and versions; the states that they started from, each once."""
    assert course.air is not None
    sent: dict[int, tuple[int, Dispatch]] = {}
    versions: dict[int, tuple[int, Mapping[str, int]]] = {}
    states: dict[int, tuple[int, ServerState]] = {}
    rows = []
    for flight in flights:
        number, _ = sent.setdefault(id(flight.sent), (len(sent), flight.sent))
        versions.setdefault(id(flight.sent.versions), (len(versions), flight.sent.versions))
        row = {**flight.row(), "dispatch": number, "at_stage": flight.plan.stage.index, "old": list(flight.plan.old)}
        learning = course.learning
        if isinstance(learning, Training):
            under_way = learning.sent[flight.client]
            row["state"] = states.setdefault(id(under_way.state), (len(states), under_way.state))[0]
            row["metered"], row["trains"] = under_way.metered, under_way.future is not None
        rows.append(row)
    dispatches = [
        {"round": one.round, "number": one.number, "version": one.version, "at": one.at,
         "versions": versions[id(one.versions)][0]}
        for _, one in sent.values()
    ]  # fmt: skip
    found = {
        "rows": rows,
        "flying": len(course.air.flying),
        "dispatches": dispatches,
        "versions": [dict(held) for _, held in versions.values()],
        "states": [dict(held.versions) for _, held in states.values()],
    }
    return found, [held for _, held in states.values()]


def restore(course: Course, round: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Bring a fresh simulation to where ``snapshot`` was taken.  Raises RunError if it is of another setup."""
    learning = course.learning
    prefixes = (KEPT, FLOWN, ARRAY)
    if isinstance(learning, Training):
        held = {a: t for a, t in tensors.items() if not a.startswith(prefixes)}
        learning.metered = set(state["metered"])
        for name in tensors:
            if name.startswith(KEPT):
                _, client, rest = name.split(":", 2)
                learning.kept.setdefault(int(client), {})[rest] = tensors[name]
    else:
        with torch.device("meta"):
            held = {a: TensorSpec(tuple(s["shape"]), s["dtype"]).empty() for a, s in state["shapes"].items()}
        held |= {a: t for a, t in tensors.items() if not a.startswith(prefixes)}
    # tables may come into being while a run goes on
    if {a for a in held.keys() ^ learning.state.tensors.keys() if not a.startswith("table/")}:
        raise RunError("the checkpoint holds other tensors than this scenario's models have")
    learning.state = ServerState(held, dict(state["versions"]))
    arrays = {name.removeprefix(ARRAY): t.numpy() for name, t in tensors.items() if name.startswith(ARRAY)}
    roster = course.roster
    if len(arrays["stage"]) != len(roster.stage):
        raise RunError("the checkpoint is of another number of clients than this scenario has")
    roster.stage, roster.eligible, roster.binding = (
        arrays["stage"].copy(), arrays["eligible"].copy(), arrays["binding"].copy(),
    )  # fmt: skip
    course.ledger.restore(arrays["ledger"], state["ledger"])
    course.round, course.now = round, state["now"]
    course.dispatches, course.version = state["dispatches"], state["version"]
    course.totals, course.metrics = Counter(state["totals"]), state["metrics"]
    course.selection.restore(state["selection"])
    if course.batteries is not None:
        course.batteries.restore(state["batteries"])
    if "flights" in state:
        _restore_flights(course, tensors, state)


def _restore_flights(course: Course, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    setup, rows = course.setup, state["flights"]
    server_link = setup.fleet.server_link
    if server_link is not None:
        make: Any = SHARING[server_link.sharing]
        down, up = (make.from_rows(wire) if wire is not None else None for wire in state["wires"])
        course.wires = (down, up)
    dispatches = [Dispatch(**{**one, "versions": rows["versions"][one["versions"]]}) for one in rows["dispatches"]]
    started = []
    for number, versions in enumerate(rows["states"]):
        prefix = f"{FLOWN}{number}:"
        held = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        started.append(ServerState(held, versions))
    stages = {stage.index: stage for stage in setup.schedule.offered}
    flights = []
    for row in rows["rows"]:
        row = dict(row)
        extra = {name: row.pop(name, None) for name in ("dispatch", "at_stage", "old", "state", "metered", "trains")}
        client, sent = row["client"], dispatches[extra["dispatch"]]
        plan = course.planner.plan(*setup.place(client), sent.round, stages[extra["at_stage"]], tuple(extra["old"]))
        flights.append(flight_of(row, plan, sent))
        if isinstance(course.learning, Training):
            course.learning.resume(client, plan, started[extra["state"]], sent, extra["metered"], extra["trains"])
    course.resumed = flights[: rows["flying"]]
    course.queue.update((flight.client, flight) for flight in flights[rows["flying"] :])
