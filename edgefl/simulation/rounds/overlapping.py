"""Overlapping rounds: flights may last beyond the round in which they began."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
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
    at, policy, air = run.at, run.parts.policy, run.air
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
                run.aggregate([arrival], stage, at_once=True)
            else:
                tally.buffer.append(arrival)
        if policy.refills and not enough(tally, wanted):
            fill(run, round, kinds, tally)
            air.take()


def enough(tally: Tally, wanted: int | None) -> bool:
    """Whether a round has its updates, or so many flights that it gives up."""
    return wanted is not None and (tally.arrived >= wanted or tally.landed >= FLIGHTS_PER_UPDATE * wanted)


class Wait(Enum):
    """What an overlapping round waits for next."""

    UPDATES = "flights under way, one of which lands"
    PLACE = "a landing, or clients that come back online and fill a free place"
    TIME = "the end of the round's time"
    RETRY = "clients: nobody is under way, and nobody could be dispatched now"
    NOTHING = "nothing: nobody is under way, and time has passed since nobody could be dispatched"
    OVER = "nothing: the round has its updates, gives up, or its time is over"


def next_wait(run: Run, tally: Tally, wanted: int | None, over: float) -> Wait:
    """What a round waits for that wants so many updates and is ``over`` at this virtual time; nothing changes."""
    air, now = run.air, run.at.now
    assert air is not None
    if enough(tally, wanted) or now >= over:
        return Wait.OVER
    if air.engine.flying and run.parts.policy.refills:
        return Wait.PLACE if tally.short else Wait.UPDATES
    if over < inf:
        return Wait.TIME
    return Wait.NOTHING if tally.unfilled_at < now else Wait.RETRY


def wait(run: Run, env: Clock, awaited: Wait, over: float) -> Events:
    """Wait; return whether nobody has landed and places may be filled now."""
    air, retry = run.air, run.at.now + run.parts.setup.round.retry
    assert air is not None
    if awaited is Wait.UPDATES:
        air.engine.play()
    elif awaited is Wait.PLACE:
        yield air.engine.wait(inf, landings=1) | env.moment(retry)
        air.engine.stop_waiting()
        if not air.engine.landed:
            run.at.now = max(run.at.now, env.now)
            return True
    elif awaited is Wait.TIME:
        yield from run.pass_until(env, over)
    elif awaited is Wait.RETRY:
        yield from run.pass_until(env, retry)
    return awaited is Wait.NOTHING


def overlapping(run: Run, env: Clock, round: int, stage: Stage, kinds: Sequence[str], tally: Tally) -> Events:
    """Play an overlapping round; return its outcome.

    Raises RunError where ``below_quorum`` says so.
    """
    at, parts, air = run.at, run.parts, run.air
    assert air is not None
    if air.ahead is None and parts.policy.refills and not isinstance(parts.learning, Training):
        air.ahead = Ahead()
    options, began = parts.setup.round, at.now
    wanted, over = parts.policy.wanted(cohort(run, kinds), 0), parts.policy.over(began)
    if not parts.policy.refills:
        drain(run, round, stage, kinds, tally, wanted)
    air.take()
    fill(run, round, kinds, tally)
    parts.on_progress("round", {"round": round, "stage": stage.index, "selected": tally.selected, "now": at.now})
    outcome = "completed"
    while True:
        drain(run, round, stage, kinds, tally, wanted)
        awaited = next_wait(run, tally, wanted, over)
        if awaited is Wait.OVER and tally.arrived >= options.quorum:
            break
        if awaited in (Wait.OVER, Wait.RETRY):
            short = awaited is Wait.OVER and (tally.landed or air.engine.flying)
            why = "below quorum" if short else empty_outcome(run, kinds)
            patient = options.below_quorum == "wait" and at.now - began <= options.patience
            if not patient or why == "nobody eligible":
                outcome = why
                break
        if awaited is Wait.OVER:  # it begins anew, and keeps its updates
            tally.landed = 0
            if over == inf:
                yield from wait(run, env, Wait.RETRY, over)
            over = parts.policy.over(at.now)
            air.take()
            fill(run, round, kinds, tally)
        elif (yield from wait(run, env, awaited, over)):
            fill(run, round, kinds, tally)
    record_processed(run, round, tally)
    return (yield from finish_round(run, env, round, stage, tally, outcome))


def finish_round(run: Run, env: Clock, round: int, stage: Stage, tally: Tally, outcome: str) -> Events:
    """End an overlapping round: aggregate the buffer if the quorum is met."""
    options = run.parts.setup.round
    if tally.arrived >= options.quorum:
        if tally.buffer:
            run.aggregate(tally.buffer, stage)
        return "completed"
    run.parts.learning.forget(tally.buffer)
    if options.below_quorum != "skip":
        raise RunError(why_ended(run, round, outcome, tally.arrived))
    if outcome == "nobody available" and run.parts.policy.refills:
        yield from run.pass_until(env, run.at.now + options.retry)
    return outcome
