"""Processing of landed flights: versions held, batteries, training reports and records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from edgefl.planning.planner import Plan
from edgefl.planning.versions import activations_address
from edgefl.records.host import HostWork
from edgefl.simulation.client import Flight, landings
from edgefl.simulation.closed_form import EMPTY, FINISHED, REJECTED, Dispatch, Landings
from edgefl.simulation.learning import Arrival, Training
from edgefl.simulation.records import outcomes, sums
from edgefl.simulation.run_state import SimulationRun
from edgefl.simulation.tally import Tally
from edgefl.work.update import Update


def land_cohort(
    run: SimulationRun, landed: Landings, plans: Sequence[Plan], dispatch: Dispatch, tally: Tally
) -> list[Arrival]:
    """Land a dispatch (versions, batteries, reports, records); return its updates."""
    learning, needs_loss = run.parts.learning, run.parts.selection.needs_loss
    update_clients(run, landed, plans, [dispatch] * len(plans))
    of = zip(landed.client.tolist(), plans, strict=True)
    flown = [Arrival(client, plan, dispatch.round, dispatch.number) for client, plan in of]
    finished = landed.finished_mask.tolist()
    arrivals = [arrival for arrival, there in zip(flown, finished, strict=True) if there]
    learning.expect(arrivals, tally.stage)
    updates: list[Update | None] = [None] * len(flown)
    if isinstance(learning, Training):
        outcome = landed.outcome.copy()
        for index, (arrival, arrived) in enumerate(zip(flown, finished, strict=True)):
            updates[index] = update = receive(run, arrival, arrived, tally)
            if arrived and update is not None and update.refused is not None:
                outcome[index] = REJECTED
        landed = replace(landed, outcome=outcome)
        arrivals = [arrival for arrival, there in zip(flown, landed.finished_mask.tolist(), strict=True) if there]
    if needs_loss:
        columns = zip(flown, landed.finished_mask.tolist(), landed.virtual_seconds.tolist(), updates, strict=True)
        for arrival, arrived, seconds, update in columns:
            if arrived:
                learn(arrival, seconds, update, tally)
    record_landings(run, landed, flown, updates, tally)
    return arrivals


def land_flight(run: SimulationRun, flight: Flight, tally: Tally) -> Arrival | None:
    """Land one flight of an overlapping policy, except for its record; return its update, if it arrived."""
    parts, factors = run.parts, run.progress.weight_factors
    stale = run.at.version - flight.dispatch.version
    factor = factors.get(stale)
    if factor is None:
        factor = factors[stale] = parts.policy.weight(stale)
    if parts.roster.may_change or parts.roster.spent is not None or parts.batteries is not None:
        update_clients(run, landings([flight]), [flight.plan], [flight.dispatch])
    arrived, update = flight.outcome == FINISHED, None
    arrival = Arrival(flight.client, flight.plan, flight.dispatch.round, flight.dispatch.number, stale, factor)
    if isinstance(parts.learning, Training):
        update = receive(run, arrival, arrived, tally)
        if arrived and update is not None and update.refused is not None:
            arrived, flight.outcome = False, REJECTED
    tally.processed.append((flight, arrival, update))
    if arrived and parts.selection.needs_loss:
        learn(arrival, sum(flight.seconds), update, tally)
    return arrival if arrived else None


def record_processed(run: SimulationRun, tally: Tally) -> None:
    """Write the records of all processed flights at once, which is faster than one by one."""
    if tally.processed:
        flights, arrivals, updates = zip(*tally.processed, strict=True)
        record_landings(run, landings(flights), arrivals, updates, tally)
        tally.processed = []


def record_landings(
    run: SimulationRun, landed: Landings, flown: Sequence[Arrival], updates: Sequence[Update | None], tally: Tally
) -> None:
    """Add the records of landings and their sums to the tally."""
    tally.lines += run.progress.lines.lines(landed, flown, updates, tally.round)
    tally.sums.update(sums(run.parts.setup, landed, [arrival.plan for arrival in flown]))
    tally.outcomes.update(outcomes(landed))


def update_clients(run: SimulationRun, landed: Landings, plans: Sequence[Plan], dispatches: Sequence[Dispatch]) -> None:
    """Update the versions, the battery charges and what was spent of their caps of clients after their flights."""
    roster, batteries = run.parts.roster, run.parts.batteries
    moved = (landed.carried_download_bytes + landed.carried_upload_bytes).astype(np.float64)
    roster.spend(landed.client, {"bytes": moved, "joules": landed.energy_joules}, landed.ended)
    if roster.client_versions.keeping:
        # plans that differ in devices or samples share their downloads
        versions, groups = roster.client_versions, dict[tuple[int, int, str | None], list[int]]()
        for row in np.flatnonzero(landed.downloaded_mask).tolist():
            computed = activations_address(plans[row].form) if landed.outcome[row] == FINISHED else None
            # by identity, as ``plans`` and ``dispatches`` hold the objects: two equal ones would only be two calls
            groups.setdefault((id(plans[row].down), id(dispatches[row].versions), computed), []).append(row)
        for (_, _, computed), rows in groups.items():
            versions.record_download(landed.client[rows], plans[rows[0]].down, dispatches[rows[0]].versions, computed)
    if batteries is not None:
        # an empty battery has spent its whole charge: a rest by rounding would let the next dispatch choose the client
        spent = np.where(landed.outcome == EMPTY, inf, landed.energy_joules)
        batteries.spend(landed.client, spent, landed.ended, landed.virtual_seconds)


def receive(run: SimulationRun, arrival: Arrival, arrived: bool, tally: Tally) -> Update | None:
    """Receive a client's update, as far as it has ``arrived`` or was measured, and note what is known of it.

    A refused one is listed in ``rejected`` and counted by its reason; its loss doesn't enter the round's mean.
    """
    update, plan = run.parts.learning.receive(arrival, tally.stage, arrived=arrived), arrival.plan
    if update is None:
        return None
    tally.hosts.append(HostWork(round=tally.round, client=arrival.client, **update.host))
    run.parts.on_progress("client", {"round": tally.round, "client": arrival.client, "loss": update.loss})
    if update.loss is not None:
        tally.all_losses.setdefault(plan.kind, []).append(update.loss)
    if update.refused is not None:
        tally.rejected.append(arrival.client)
        tally.rejections[update.refused] += 1
    elif update.loss is not None:
        tally.losses.setdefault(plan.kind, []).append((update.loss, plan.samples))
    return update


def learn(arrival: Arrival, seconds: float, update: Update | None, tally: Tally) -> None:
    """Note the loss and duration of an arrived update for the selection."""
    loss = float("nan") if update is None or update.loss is None else update.loss
    tally.learnt.append((arrival.client, loss, seconds, arrival.plan.samples))
