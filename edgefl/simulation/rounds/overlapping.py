"""Overlapping rounds: flights may last beyond the round in which they began."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from edgefl.errors import RunError
from edgefl.schedules import Stage
from edgefl.simulation.arrivals import Tally, process_arrival, record_processed, why_ended
from edgefl.simulation.cohort import choose, cohort, dispatch_clients, empty_outcome
from edgefl.simulation.inflight.clock import Clock
from edgefl.simulation.inflight.dispatch import may_arrive
from edgefl.simulation.run_state import Events, RunState

FLIGHTS_PER_UPDATE = 20
"""Flights per wanted update after which a round gives up, so that it ends even if all clients fail."""


def take(run: RunState) -> None:
    """Queue landed uploads for processing."""
    if run.engine is not None:
        for flight in run.engine.take():
            run.queue[flight.client] = flight


def fill(run: RunState, round: int, kinds: Sequence[str], tally: Tally) -> None:
    """Dispatch clients to all free places."""
    assert run.engine is not None
    busy = len(run.engine.flying) + len(run.queue)
    free = (run.setup.round.concurrency or cohort(run, kinds)) - busy
    tally.short = False
    if free <= 0:
        return
    if run.roster.moving:
        run.judge(round)  # landed clients hold newer copies, or have spent joules
    deadline = run.setup.round.deadline
    until = inf if deadline is None else run.now + deadline
    if free == 1 and run.ahead is not None and (flight := run.ahead.dispatch(run, round, kinds, tally, until)):
        tally.unfilled_at = -inf
        run.engine.begin(flight)
        return
    chosen = choose(run, round, kinds, tally, free)
    tally.unfilled_at = -inf if len(chosen.clients) else run.now
    if len(chosen.clients):
        flights = dispatch_clients(run, chosen.clients, round)
        run.learning.send(flights, may_arrive(flights))
        run.engine.launch(flights, until)
    tally.short = len(chosen.clients) < free and chosen.unready > busy


def drain(run: RunState, round: int, stage: Stage, kinds: Sequence[str], tally: Tally, wanted: int | None) -> None:
    """Process landed flights in order, until ``wanted`` updates have arrived."""
    take(run)
    while run.queue and not enough(tally, wanted):
        _, flight = run.queue.popitem(last=False)
        run.now = max(run.now, flight.ended)
        tally.landed += 1
        arrival = process_arrival(run, flight, round, tally)
        if arrival is not None:
            tally.arrived += 1
            if run.policy.at_once:
                run.learning.aggregate([arrival], stage, at_once=True)
                run.version += 1
            else:
                tally.buffer.append(arrival)
        if run.policy.refills and not enough(tally, wanted):
            fill(run, round, kinds, tally)
            take(run)


def enough(tally: Tally, wanted: int | None) -> bool:
    """Whether a round has its updates, or so many flights that it gives up."""
    return wanted is not None and (tally.arrived >= wanted or tally.landed >= FLIGHTS_PER_UPDATE * wanted)


def overlapping(run: RunState, env: Clock, round: int, stage: Stage, kinds: Sequence[str], tally: Tally) -> Events:
    """Play an overlapping round; return its outcome.

    Raises RunError where ``below_quorum`` says so.
    """
    assert run.engine is not None
    options, began = run.setup.round, run.now
    waits, quorum = options.below_quorum == "wait", options.quorum
    wanted, over = run.policy.wanted(cohort(run, kinds), 0), run.policy.over(run.now)
    if not run.policy.refills:
        drain(run, round, stage, kinds, tally, wanted)
    take(run)
    fill(run, round, kinds, tally)
    run.on_progress("round", {"round": round, "stage": stage.index, "selected": tally.selected, "now": run.now})
    outcome = "completed"
    while True:
        drain(run, round, stage, kinds, tally, wanted)
        if enough(tally, wanted) or run.now >= over:
            if tally.arrived >= quorum:
                break
            outcome = "below quorum"
            if not (tally.landed or run.engine.flying):
                outcome = empty_outcome(run, kinds)
            if not waits or outcome == "nobody eligible" or run.now - began > options.patience:
                break
            outcome, tally.landed = "completed", 0
            if over == inf:
                yield from run.pass_until(env, run.now + options.retry)
            over = run.policy.over(run.now)
            take(run)
            fill(run, round, kinds, tally)
        elif run.engine.flying and run.policy.refills and not tally.short:
            run.engine.play()
        elif run.engine.flying and run.policy.refills:
            yield run.engine.wait(inf, landings=1) | env.moment(run.now + options.retry)
            run.engine.stop_waiting()
            if not run.engine.landed:
                run.now = max(run.now, env.now)
                fill(run, round, kinds, tally)
        elif over < inf:
            yield from run.pass_until(env, over)
        elif tally.unfilled_at < run.now:
            fill(run, round, kinds, tally)
        else:
            outcome = empty_outcome(run, kinds)
            if not waits or outcome == "nobody eligible" or run.now - began > options.patience:
                break
            outcome = "completed"
            yield from run.pass_until(env, run.now + options.retry)
    record_processed(run, round, tally)
    return (yield from finish_round(run, env, round, stage, tally, outcome))


def finish_round(run: RunState, env: Clock, round: int, stage: Stage, tally: Tally, outcome: str) -> Events:
    """End an overlapping round: aggregate the buffer if the quorum is met."""
    options = run.setup.round
    if tally.arrived >= options.quorum:
        if tally.buffer:
            run.learning.aggregate(tally.buffer, stage)
            run.version += 1
        return "completed"
    run.learning.forget(tally.buffer)
    if options.below_quorum != "skip":
        raise RunError(why_ended(run, round, outcome, tally.arrived))
    if outcome == "nobody available" and run.policy.refills:
        yield from run.pass_until(env, run.now + options.retry)
    return outcome
