"""The server in one round: what the process of a policy asks of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic

from edgefl.arrays import Booleans, Integers
from edgefl.errors import RunError
from edgefl.planning.round_options import RoundOptions
from edgefl.schedules import Stage
from edgefl.simulation.client import Flight, flights_from, landings
from edgefl.simulation.clock import LAST, Steps
from edgefl.simulation.closed_form import AT_UPLOAD, FINISHED, Flights, Landings, land_flights
from edgefl.simulation.cohort import candidates, choose, dispatch_clients, dispatch_one
from edgefl.simulation.in_flight import InFlight
from edgefl.simulation.landings import land_cohort, land_flight, record_processed
from edgefl.simulation.learning import Arrival
from edgefl.simulation.policy_rules import PolicyRules, PolicySteps
from edgefl.simulation.run_state import SimulationRun
from edgefl.simulation.selection.base import Candidates, Chosen
from edgefl.simulation.tally import Tally
from edgefl.units import show_seconds

PAUSE = 10.0
"""Seconds of wall time between two signs of life of a round that waits.  A choice: a wait tries again every few virtual
minutes, thousands of times."""

FLIGHTS_PER_UPDATE = 20
"""Flights per wanted update after which a round gives up, so that it ends even if all clients fail.  A choice: a round
that needs ten updates nearly always gets them although 90 % of flights fail.  Another number changes such runs."""


@dataclass
class RoundServer:
    """The server in one round, as a policy's process asks it.  Functions that return ``Steps`` take virtual time: a
    process waits for them with ``yield from``.

    Each function raises PluginError for a policy that breaks a rule (``edgefl/simulation/policy_rules.py``).
    """

    run: SimulationRun
    """The run, which a policy seldom needs."""
    round: int
    """The round's number, from 1 on."""
    stage: Stage
    """The schedule's stage."""
    kinds: Sequence[str]
    """The kinds of clients that take part."""
    tally: Tally
    """What is counted and recorded of the round."""
    landed: int = 0
    """Clients that were received, since the round began or was patient."""
    arrived: int = 0
    """Updates that were received one by one."""
    began: float = field(init=False)
    """The virtual time at which the round began, in seconds."""
    _known: tuple[int, Candidates] | None = None
    _rules: PolicyRules = field(init=False)
    _size: int = field(init=False)
    _short: bool = False
    _most: float = inf
    _outcome: str = "completed"

    def __post_init__(self) -> None:
        self.began, self._size = self.now, sum(self.run.parts.setup.seats(self.round).values())
        self._quiet_until = 0.0
        self._rules = PolicyRules(self.run, self._size)

    @property
    def options(self) -> RoundOptions:
        """The scenario's ``round`` section."""
        return self.run.parts.setup.round

    @property
    def now(self) -> float:
        """The virtual time, in seconds."""
        return self.run.now

    @property
    def air(self) -> InFlight:
        """Clients under way, of a policy whose rounds overlap."""
        if self.run.air is None:
            raise self._rules.fault(
                "sends clients off one by one and isn't `overlapping = True`; a policy that isn't calls "
                "server.play_cohort(server.choose())"
            )
        return self.run.air

    def pass_until(self, until: float) -> Steps:
        """Let time pass, until this virtual time in seconds."""
        if not until < inf:
            raise self._rules.fault(f"lets time pass until {until}: server.pass_until() takes a finite virtual time")
        yield from self.run.pass_until(until)

    def tell(self, selected: int | None = None) -> None:
        """Report that the round has begun, with the number of ``selected`` clients; None: all that were chosen."""
        facts = {"round": self.round, "stage": self.stage.index, "now": self.now}
        facts["selected"] = self.tally.selected if selected is None else selected
        self.run.parts.on_progress("round", facts)

    # clients are sent off ---------------------------------------------------------------------------------------------

    @property
    def quorum(self) -> int:
        """Updates that the round needs: none with noise, because a round that is left out would tell who was drawn."""
        account = self.run.parts.account
        return 0 if account is not None and account.draws[self.round - 1].places else self.options.quorum

    def cohort(self) -> int:
        """Number of clients in a cohort, without over-selection."""
        return self._size

    def choose(self) -> Integers:
        """The clients of a cohort."""
        return self._choose().clients

    def _choose(self, count: int | None = None) -> Chosen:
        """Select the cohort's clients, or ``count`` clients, and count them in the tally."""
        changes = self.run.parts.roster.changes
        if self._known is None or self._known[0] != changes:
            self._known = changes, candidates(self.run, self.round, self.kinds)
        chosen = choose(self.run, self._known[1], self.round, self.kinds, count)
        self.tally.unavailable += chosen.unready
        self.tally.selected += len(chosen.clients)
        return chosen

    def fill(self) -> None:
        """Send clients off to all free places: ``round.concurrency``, or as many as a cohort has.

        A round that gives up sends nobody off any more.
        """
        run, air, options = self.run, self.air, self.options
        air.line_up()  # a client that has landed while the policy waited isn't sent off again
        busy = len(air.flying) + len(air.queue)
        free = (options.concurrency or self.cohort()) - busy
        self._short = False
        if free <= 0 or self.landed >= self._most:
            return
        if run.parts.roster.may_change:
            run.judge(self.round)  # landed clients hold newer copies, or have spent joules
        chosen = self._choose(free)
        if len(clients := chosen.clients):
            self._rules.sends(len(clients))
            dispatch = run.next_dispatch(self.round)
            until = inf if options.deadline is None else self.now + options.deadline
            if len(clients) == 1:
                flights = [dispatch_one(run, clients, dispatch, until)]
            else:
                flights = list(flights_from(dispatch_clients(run, clients, dispatch), until))
            sent = [(flight.client, flight.plan, flight.outcome == FINISHED) for flight in flights]
            run.parts.learning.send(sent, dispatch)
            air.launch(flights)
        self._short = len(chosen.clients) < free and chosen.unready > busy

    # clients land -----------------------------------------------------------------------------------------------------

    def next_landed(self, wanted: int) -> Steps:
        """The next client that lands.  Meanwhile clients that come back online fill free places.

        None if the round has so many flights that it gives up, or if nobody can be sent off for too long.
        """
        air, retry = self.air, self.options.retry
        self._most = FLIGHTS_PER_UPDATE * wanted
        while True:
            air.line_up()
            gives_up = self.landed >= self._most
            if air.queue and not gives_up:
                return self._rules.hands(air.queue.popitem(last=False)[1])
            if air.flying and not gives_up:
                landed = air.landing_event()
                yield from self.run.env.first(landed, self.now + retry if self._short else inf, LAST)
                if landed.triggered:
                    continue
            elif (gives_up and self.arrived >= self.options.quorum) or not self.is_patient(self.why_short(gives_up)):
                return None
            else:
                self.landed = 0
                yield from self.pass_until(self.now + retry)
            self.fill()

    def receive(self, flight: Flight) -> Arrival | None:
        """Record a client that has landed; return its update, or None if it hasn't arrived or is refused."""
        self._rules.receives(flight)
        return self._receive(flight)

    def _receive(self, flight: Flight) -> Arrival | None:
        self.landed += 1
        update = land_flight(self.run, flight, self.tally)
        if update is not None:
            self.arrived += 1
            self._rules.holds(update)
        return update

    def receive_all(self) -> list[Arrival]:
        """Record all clients that have landed; return their updates."""
        self.air.line_up()
        updates = [self._receive(flight) for flight in self.air.queue.values()]
        self.air.queue.clear()
        return [update for update in updates if update is not None]

    def play_cohort(self, clients: Integers) -> Steps:
        """Send a cohort off and wait for it, and for its relays' sums; return the updates that arrived.

        Updates of an earlier cohort that weren't aggregated are dropped.
        """
        run, parts = self.run, self.run.parts
        parts.learning.forget(self._rules.drops())
        if not len(clients):
            return []
        self._rules.sends(len(clients))
        dispatch = run.next_dispatch(self.round)
        flights = dispatch_clients(run, clients, dispatch)
        relayed = None if parts.tier is None else parts.tier.send(flights)
        kept: Booleans | bool = True
        if relayed is not None:
            flights, kept = replace(flights, begins=relayed.begins), relayed.alive_mask
        places = len(clients) if parts.selection.sampling == "poisson" else self.cohort()
        wanted, over = parts.policy.updates_needed(places, len(clients)), parts.policy.over(self.now)
        plans, go = list(flights.plans), (flights.ends.outcome == FINISHED) & kept
        closed_form, in_turn = parts.flown is None and run.air is None, plans[0].form.in_turn
        if closed_form or in_turn:
            landed = land_flights(flights, over, wanted)
            # one that trains the server's half in its turn has changed it, whatever becomes of its upload
            go = landed.phase >= AT_UPLOAD if in_turn else landed.finished_mask & kept
        parts.learning.send(list(zip(clients.tolist(), plans, go.tolist(), strict=True)), dispatch, in_order=True)
        if parts.flown is not None:
            landed = parts.flown(flights)
        elif not closed_form:
            landed, plans = yield from self._fly(flights, over, wanted)
        ended = float(landed.ended.max())
        if relayed is not None:
            landed, ended = relayed.land(landed, plans, self.tally)
        yield from run.pass_until(ended)
        updates = land_cohort(run, landed, plans, dispatch, self.tally)
        for kind, sent in Counter(plan.kind for plan in plans).items():
            if (secure := parts.setup.secure_sum(kind)) is not None:
                arrived = sum(update.plan.kind == kind for update in updates)
                masks = secure.server_masks(arrived, sent - arrived)
                self.tally.sums.update(unmasked_secrets=sent, unmasked_vectors=masks)
        self._rules.holds_cohort(updates)
        return updates

    def _fly(self, flights: Flights, over: float, wanted: int | None) -> Steps:
        """The cohort's processes, until enough updates have arrived or the round is over; the others are late."""
        air = self.air
        air.launch(flights_from(flights))
        enough = air.landing_event(len(flights), inf if wanted is None else wanted)
        yield from self.run.env.first(enough, over, LAST)
        if air.flying:
            yield from air.cut()
        flown = sorted(air.take(), key=lambda flight: flight.client)
        landed: Landings = landings(flown)
        return landed, [flight.plan for flight in flown]

    # the round ends ---------------------------------------------------------------------------------------------------

    def aggregate(self, updates: Sequence[Arrival], *, at_once: bool = False) -> None:
        """Aggregate these updates, each once; of a cohort all.  The round drops the others at its end."""
        if updates or self.quorum:
            self._rules.aggregates(updates)
        self.run.aggregate(updates, self.stage, at_once=at_once)

    def empty_outcome(self) -> str:
        """Outcome of a round in which no client was sent off."""
        parts = self.run.parts
        if parts.setup.round.gate == "eligible" and not any(len(parts.roster.able(kind)) for kind in self.kinds):
            return "nobody eligible"
        return "nobody available"

    def why_short(self, gives_up: bool = True) -> str:
        """Why the quorum isn't met."""
        return "below quorum" if gives_up and (self.landed or self.air.flying) else self.empty_outcome()

    def is_patient(self, why: str) -> bool:
        """Whether a round whose quorum isn't met goes on; else this is its outcome."""
        options = self.options
        patient = options.below_quorum == "wait" and self.now - self.began <= options.patience
        if patient and why != "nobody eligible":
            self._say_waiting(why, self.arrived)
            return True
        self._outcome = why
        return False

    def tries_again(self, outcome: str, arrived: int) -> Steps:
        """Wait before another cohort is chosen; False if the round ends without one.

        Raises RunError where ``below_quorum`` says so.
        """
        run, options = self.run, self.options
        # eligibility doesn't change while the round waits
        if options.below_quorum == "fail" or (options.below_quorum == "wait" and outcome == "nobody eligible"):
            raise self._below_quorum(outcome, arrived)
        if options.below_quorum == "wait" or outcome == "nobody available":
            yield from self.pass_until(self.now + options.retry)
        if options.below_quorum == "skip":
            return False
        if (waited := self.now - self.began) > options.patience:
            raise self._below_quorum(outcome, arrived, f", after {waited:g} s of waiting")
        if run.parts.roster.may_change:
            run.judge(self.round)  # the selected clients hold newer copies now, or have spent joules
        if options.below_quorum == "wait":
            self._say_waiting(outcome, arrived)
        return True

    def _say_waiting(self, why: str, arrived: int) -> None:
        """Tell of a wait for a quorum when it begins, and after each ``PAUSE`` of wall time in which it goes on."""
        if monotonic() < self._quiet_until:
            return
        self._quiet_until = monotonic() + PAUSE
        options = self.options
        text = (
            f"round {self.round} waits for a quorum of {options.quorum} since {show_seconds(self.began)} on the "
            f"virtual clock, now {show_seconds(self.now)}: {why}, {arrived} updates arrived; after "
            f"{show_seconds(options.patience)} the run ends (round.patience)"
        )
        self.run.parts.on_progress("prepare", {"what": text})

    def _below_quorum(self, outcome: str, arrived: int, after: str = "") -> RunError:
        count = f"{arrived} updates arrived of a quorum of {self.options.quorum}"
        sets = "round.below_quorum sets what happens then: skip, wait or fail"
        return RunError(f"round {self.round}: {outcome} ({count}); {sets}{after}")

    def finish(self, updates: Sequence[Arrival]) -> Steps:
        """End an overlapping round: aggregate its updates if the quorum is met; return its outcome.

        Raises RunError where ``below_quorum`` says so.
        """
        if self.arrived >= self.options.quorum:
            if updates:
                self.aggregate(updates)
            return "completed"
        if self.options.below_quorum != "skip":
            raise self._below_quorum(self._outcome, self.arrived)
        if self._outcome == "nobody available" and not self.run.parts.policy.is_time_bound:
            yield from self.pass_until(self.now + self.options.retry)
        return self._outcome


def play_round(server: RoundServer) -> Steps:
    """The process of the policy in one round; returns its outcome.  Raises PluginError if it breaks a rule."""
    run, rules = server.run, server._rules
    outcome = yield from PolicySteps(rules, run.parts.policy.play(server))
    record_processed(run, server.tally)
    rules.ends(outcome)
    run.parts.learning.forget(rules.drops())
    return outcome
