"""Overlapping rounds: flights may last beyond the round in which they began."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from edgefl.errors import RunError
from edgefl.schedules import Stage
from edgefl.simulation.ahead import Ahead
from edgefl.simulation.cohort import choose, cohort, dispatch_clients, empty_outcome
from edgefl.simulation.inflight.clock import Clock
from edgefl.simulation.inflight.dispatch import may_arrive
from edgefl.simulation.landings import land_flight, record_processed, why_ended
from edgefl.simulation.learning import Training
from edgefl.simulation.run_state import Events, Run
from edgefl.simulation.tally import Tally

FLIGHTS_PER_UPDATE = 20
"""Flights per wanted update after which a round gives up, so that it ends even if all clients fail."""


def fill(run: Run, round: int, kinds: Sequence[str], tally: Tally) -> None:
    """Dispatch clients to all free places."""
    parts, air = run.parts, run.air
    assert air is not None
    options = parts.setup.round
    busy = len(air.engine.flying) + len(air.queue)
    free = (options.concurrency or cohort(run, kinds)) - busy
    tally.short = False
    if free <= 0:
        return
    if parts.roster.moving:
        run.judge(round)  # landed clients hold newer copies, or have spent joules
    until = inf if options.deadline is None else run.at.now + options.deadline
    if free == 1 and air.ahead is not None and (flight := air.ahead.dispatch(run, round, kinds, tally, until)):
        tally.unfilled_at = -inf
        air.engine.begin(flight)
        return
    chosen = choose(run, round, kinds, tally, free)
    tally.unfilled_at = -inf if len(chosen.clients) else run.at.now
    if len(chosen.clients):
        flights = dispatch_clients(run, chosen.clients, round)
        parts.learning.send(flights, may_arrive(flights))
        air.engine.launch(flights, until)
    tally.short = len(chosen.clients) < free and chosen.unready > busy


def drain(run: Run, round: int, stage: Stage, kinds: Sequence[str], tally: Tally, wanted: int | None) -> None:
    """Process landed flights in order, until ``wanted`` updates have arrived."""
    at, policy, learning, air = run.at, run.parts.policy, run.parts.learning, run.air
    assert air is not None
    air.take()
    while air.queue and not enough(tally, wanted):
        _, flight = air.queue.popitem(last=False)
        at.now = max(at.now, flight.ended)
        tally.landed += 1
        arrival = land_flight(run, flight, round, tally)
        if arrival is not None:
            tally.arrived += 1
            if policy.at_once:
                learning.aggregate([arrival], stage, at_once=True)
                at.version += 1
            else:
                tally.buffer.append(arrival)
        if policy.refills and not enough(tally, wanted):
            fill(run, round, kinds, tally)
            air.take()


def enough(tally: Tally, wanted: int | None) -> bool:
    """Whether a round has its updates, or so many flights that it gives up."""
    return wanted is not None and (tally.arrived >= wanted or tally.landed >= FLIGHTS_PER_UPDATE * wanted)


def overlapping(run: Run, env: Clock, round: int, stage: Stage, kinds: Sequence[str], tally: Tally) -> Events:
    """Play an overlapping round; return its outcome.

    Raises RunError where ``below_quorum`` says so.
    """
    parts, air = run.parts, run.air
    assert air is not None
    if air.ahead is None and parts.policy.refills and not isinstance(parts.learning, Training):
        air.ahead = Ahead()
    options, began = parts.setup.round, run.at.now
    waits, quorum = options.below_quorum == "wait", options.quorum
    wanted, over = parts.policy.wanted(cohort(run, kinds), 0), parts.policy.over(run.at.now)
    if not parts.policy.refills:
        drain(run, round, stage, kinds, tally, wanted)
    air.take()
    fill(run, round, kinds, tally)
    parts.on_progress("round", {"round": round, "stage": stage.index, "selected": tally.selected, "now": run.at.now})
    outcome = "completed"
    while True:
        drain(run, round, stage, kinds, tally, wanted)
        if enough(tally, wanted) or run.at.now >= over:
            if tally.arrived >= quorum:
                break
            outcome = "below quorum"
            if not (tally.landed or air.engine.flying):
                outcome = empty_outcome(run, kinds)
            if not waits or outcome == "nobody eligible" or run.at.now - began > options.patience:
                break
            outcome, tally.landed = "completed", 0
            if over == inf:
                yield from run.pass_until(env, run.at.now + options.retry)
            over = parts.policy.over(run.at.now)
            air.take()
            fill(run, round, kinds, tally)
        elif air.engine.flying and parts.policy.refills and not tally.short:
            air.engine.play()
        elif air.engine.flying and parts.policy.refills:
            yield air.engine.wait(inf, landings=1) | env.moment(run.at.now + options.retry)
            air.engine.stop_waiting()
            if not air.engine.landed:
                run.at.now = max(run.at.now, env.now)
                fill(run, round, kinds, tally)
        elif over < inf:
            yield from run.pass_until(env, over)
        elif tally.unfilled_at < run.at.now:
            fill(run, round, kinds, tally)
        else:
            outcome = empty_outcome(run, kinds)
            if not waits or outcome == "nobody eligible" or run.at.now - began > options.patience:
                break
            outcome = "completed"
            yield from run.pass_until(env, run.at.now + options.retry)
    record_processed(run, round, tally)
    return (yield from finish_round(run, env, round, stage, tally, outcome))


def finish_round(run: Run, env: Clock, round: int, stage: Stage, tally: Tally, outcome: str) -> Events:
    """End an overlapping round: aggregate the buffer if the quorum is met."""
    options = run.parts.setup.round
    if tally.arrived >= options.quorum:
        if tally.buffer:
            run.parts.learning.aggregate(tally.buffer, stage)
            run.at.version += 1
        return "completed"
    run.parts.learning.forget(tally.buffer)
    if options.below_quorum != "skip":
        raise RunError(why_ended(run, round, outcome, tally.arrived))
    if outcome == "nobody available" and run.parts.policy.refills:
        yield from run.pass_until(env, run.at.now + options.retry)
    return outcome
