"""A synchronous round, which ends with the flights of its cohort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import RunError
from edgefl.schedules import Stage
from edgefl.simulation.cohort import choose, cohort, dispatch_clients, empty_outcome
from edgefl.simulation.inflight.clock import Clock
from edgefl.simulation.inflight.closed_form import Integers, closed
from edgefl.simulation.inflight.dispatch import may_arrive
from edgefl.simulation.inflight.events import landings
from edgefl.simulation.landings import land_cohort, why_ended
from edgefl.simulation.learning import Arrival
from edgefl.simulation.run_state import Events, Run
from edgefl.simulation.tally import Tally


def synchronous(run: Run, env: Clock, round: int, stage: Stage, kinds: Sequence[str], tally: Tally) -> Events:
    """Play a synchronous round; return its outcome.

    Raises RunError where ``below_quorum`` says so.
    """
    parts, began = run.parts, run.at.now
    options, learning = parts.setup.round, parts.learning
    while True:
        chosen = choose(run, round, kinds, tally)
        facts = {"round": round, "stage": stage.index, "selected": len(chosen.clients), "now": run.at.now}
        parts.on_progress("round", facts)
        arrivals: list[Arrival] = []
        if len(chosen.clients):
            arrivals = yield from play_cohort(run, env, chosen.clients, round, stage, kinds, tally)
        outcome = "completed"
        if not len(chosen.clients):
            outcome = empty_outcome(run, kinds)
        elif len(arrivals) < options.quorum:
            outcome = "below quorum"
        if outcome == "completed":
            run.aggregate(arrivals, stage)
            return outcome
        learning.forget(arrivals)
        # eligibility doesn't change while the round waits
        if options.below_quorum == "fail" or (options.below_quorum == "wait" and outcome == "nobody eligible"):
            raise RunError(why_ended(run, round, outcome, len(arrivals)))
        if options.below_quorum == "skip":
            if outcome == "nobody available":
                yield from run.pass_until(env, run.at.now + options.retry)
            return outcome
        yield from run.pass_until(env, run.at.now + options.retry)
        if (waited := run.at.now - began) > options.patience:
            raise RunError(why_ended(run, round, outcome, len(arrivals)) + f", after {waited:g} s of waiting")
        if parts.roster.moving:
            run.judge(round)  # the selected clients hold newer copies now, or have spent joules


def play_cohort(
    run: Run, env: Clock, clients: Integers, round: int, stage: Stage, kinds: Sequence[str], tally: Tally
) -> Events:
    """Dispatch a cohort and wait for its flights, and for its relays' sums; return the updates that arrived."""
    parts, flights = run.parts, dispatch_clients(run, clients, round)
    relayed = None if parts.tier is None else parts.tier.send(flights)
    kept: NDArray[np.bool_] | bool = True
    if relayed is not None:
        flights, kept = replace(flights, begins=relayed.begins), relayed.kept
    wanted = parts.policy.wanted(cohort(run, kinds), len(clients))
    over = parts.policy.over(run.at.now)
    if parts.flown is not None:
        parts.learning.send(flights, may_arrive(flights), in_order=True)
        landed, plans = parts.flown(flights), list(flights.plans)
    elif run.air is None:
        landed = closed(flights, over, wanted)
        plans = list(flights.plans)
        parts.learning.send(flights, landed.finished & kept, in_order=True)
    else:
        engine = run.air.engine
        parts.learning.send(flights, may_arrive(flights) & kept, in_order=True)
        engine.launch(flights)
        done = engine.wait(wanted if wanted is not None else len(clients))
        yield done if over == inf else done | env.moment(over)
        if engine.flying:
            enough = wanted is not None and engine.arrivals >= wanted
            engine.cut(max(f.ended for f in engine.landed) if enough else over)
        flown = sorted(engine.take(), key=lambda flight: flight.client)
        landed, plans = landings(flown), [flight.plan for flight in flown]
    ended = float(landed.ended.max())
    if relayed is not None:
        landed, did = relayed.land(landed, plans)
        ended, tally.last_relay = did.ended, (did.last, did.ended)
        tally.sums.update(
            relays=did.relays, relays_failed=did.lost,
            relay_download_bytes=did.download_bytes, relay_upload_bytes=did.upload_bytes,
        )  # fmt: skip
    yield from run.pass_until(env, ended)
    return land_cohort(run, landed, plans, flights.dispatch, round, stage, tally)
