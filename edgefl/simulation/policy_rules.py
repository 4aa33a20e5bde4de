"""The rules that a policy's process keeps in a round; a policy that breaks one is told so in one line."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import inf
from typing import Any

import simpy

from edgefl import registry
from edgefl.errors import PluginError
from edgefl.registry.faults import safe_repr
from edgefl.simulation.client import Flight
from edgefl.simulation.learning import Arrival
from edgefl.simulation.policies import Policy
from edgefl.simulation.run_state import SimulationRun
from edgefl.units import show_seconds

OUTCOMES = ("completed", "below quorum", "nobody eligible", "nobody available")
"""What ``play`` may return."""
MOST_WAITS = 1000
"""Waits in a row in which nothing happens, after which a round never ends.

That needs more than the number: either the clock has stood still, which no wait for a client does, or nobody is under
way and the round is late (``PolicyRules.late``).  So a policy may look every second whether somebody is back, or for as
long as it is patient, whether somebody is available.  A choice: more only delays the error.
"""
MOST_SENT = 100
"""Clients sent off for each place after a round is late.

edgefl's own policies send at most 21: the 20 flights per update after which a round gives up, and those under way.
"""


def policy_fault(policy: Policy, what: str) -> PluginError:
    """The error of a policy, as the line that the user reads: its name and file, its class, and what is wrong."""
    name = policy.options.name
    return PluginError(f"{registry.describe_part('round policy', name)}: {type(policy).__qualname__}.play() {what}")


class PolicyRules:
    """What a policy has in hand in a round: clients that it must receive, and updates that it may aggregate once.

    Each function raises PluginError if the policy breaks a rule.  ``late`` is the virtual time after which its round
    must come to an end: after ``round.patience``, or at the end that ``over`` gives it if that is later.
    """

    def __init__(self, run: SimulationRun, cohort: int):
        policy, options = run.parts.policy, run.parts.setup.round
        over = policy.over(run.now)
        self.late = max(run.now + options.patience, over if over < inf else -inf)
        self._run, self._policy = run, policy
        self._places = max(cohort, options.concurrency or 0, policy.updates_needed(cohort, cohort) or 0)
        self._version, self._sent, self._waits = run.at.version, 0, 0
        self._mark: tuple[object, float] | None = None
        self._handed: set[Flight] = set()
        self._held: list[Arrival] = []
        self._together = False

    def fault(self, what: str) -> PluginError:
        """The error of this round's policy."""
        return policy_fault(self._policy, what)

    # waiting ----------------------------------------------------------------------------------------------------------

    def waits(self, event: object) -> simpy.Event:
        """What the policy waits for, if it is an event, and if the round still moves."""
        if not isinstance(event, simpy.Event):
            raise self.fault(
                f"yielded {safe_repr(event)}, which is no event: what takes time is written "
                "`yield from server.next_landed(...)`, play_cohort(...) or pass_until(...)"
            )
        self._waits += 1
        if self._waits % MOST_WAITS == 0:
            self._look()
        return event

    def _look(self) -> None:
        run = self._run
        done, now = (run.at.dispatches, run.at.version, run.under_way()), run.now
        if self._mark is not None and self._mark[0] == done:
            flying = run.air is not None and len(run.air.flying) > 0
            if self._mark[1] == now or (now > self.late and not flying):
                raise self.fault(
                    f"waited {MOST_WAITS} times in a row, until {show_seconds(now)}, while no client was sent off or "
                    f"received and nothing aggregated{self._ends_by()}"
                )
        self._mark = done, now

    def sends(self, clients: int) -> None:
        """Count clients that are sent off."""
        if self._run.now > self.late:
            self._sent += clients
            if self._sent > MOST_SENT * self._places:
                raise self.fault(
                    f"sent off {self._sent} clients for {self._places} places after {show_seconds(self.late)}"
                    f"{self._ends_by()}"
                )

    def _ends_by(self) -> str:
        patience = show_seconds(self._run.parts.setup.round.patience)
        return f": a round ends soon after round.patience ({patience}), or after what over() gives if that is later"

    # clients and updates ----------------------------------------------------------------------------------------------

    def hands(self, flight: Flight) -> Flight:
        """A client that has landed, for the policy to receive."""
        self._handed.add(flight)
        return flight

    def receives(self, flight: Flight) -> None:
        """Note that a client is received."""
        if flight not in self._handed:
            raise self.fault(
                f"received {'a client twice' if isinstance(flight, Flight) else safe_repr(flight)}: server.receive() "
                "takes each client that server.next_landed() returned once; None is no client: the round gives up"
            )
        self._handed.remove(flight)

    def holds(self, update: Arrival) -> None:
        """Note an update, which may be aggregated once."""
        self._held.append(update)

    def holds_cohort(self, updates: Sequence[Arrival]) -> None:
        """Note the updates of a cohort, which are added up as they land, and so may only be aggregated together."""
        self._held, self._together = list(updates), True

    def aggregates(self, updates: Sequence[Arrival]) -> None:
        """Note that these updates are used."""
        updates = list(updates)
        if updates and updates == self._held:  # nearly always, and fast: they are compared by identity
            self._held = []
            return
        if not updates:
            raise self.fault("aggregated no update: server.aggregate() takes one or more")
        held = {(update.client, update.number): update for update in self._held}
        for update in updates:
            if not isinstance(update, Arrival) or held.pop((update.client, update.number), None) is None:
                what = f"the update of client {update.client}" if isinstance(update, Arrival) else safe_repr(update)
                raise self.fault(
                    f"aggregated {what}, which isn't there: server.aggregate() takes each update that server.receive() "
                    "or play_cohort() returned in this round once"
                )
        if held and self._together:
            raise self.fault(
                f"aggregated {len(updates)} of {len(self._held)} updates of a cohort: they are added up as they "
                "arrive, so server.aggregate() takes all that server.play_cohort() returned, or none"
            )
        self._held = list(held.values())

    def drops(self) -> list[Arrival]:
        """The updates that aren't used, which are held no longer."""
        dropped, self._held, self._together = self._held, [], False
        return dropped

    def ends(self, outcome: object) -> None:
        """Note that the round ends with this outcome."""
        if not (isinstance(outcome, str) and outcome in OUTCOMES):
            raise self.fault(f"returned {safe_repr(outcome)}, not the round's outcome: {', '.join(OUTCOMES)}")
        if self._handed:
            raise self.fault(
                f"didn't receive {len(self._handed)} of the clients that server.next_landed() returned: each goes to "
                "server.receive(), which records it"
            )
        if outcome == "completed" and self._run.at.version == self._version:
            raise self.fault(
                "returned 'completed' and aggregated nothing: a completed round calls server.aggregate() or "
                f"server.finish() with updates; others are {', '.join(OUTCOMES[1:])}"
            )


class PolicySteps(Generator[simpy.Event, Any, Any]):
    """A policy's process, which keeps the rules."""

    def __init__(self, rules: PolicyRules, steps: object):
        if not isinstance(steps, Generator):
            raise rules.fault(
                f"returned {safe_repr(steps)}, not a generator: play is a SimPy process, with `yield from` before what "
                "takes time, such as server.next_landed()"
            )
        self._rules, self._steps = rules, steps

    def send(self, value: Any) -> simpy.Event:
        """The next event that the policy waits for."""
        return self._rules.waits(self._steps.send(value))

    def throw(self, *error: Any) -> simpy.Event:
        """The next event, after one that has failed."""
        return self._rules.waits(self._steps.throw(*error))
