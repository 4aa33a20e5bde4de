"""Checks of a method under a schedule: one round of every stage, in the order of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from edgefl.commands.check import rules
from edgefl.commands.check.aggregation import check_aggregation
from edgefl.commands.check.clients import check_client
from edgefl.commands.check.federation import TinyFederation
from edgefl.commands.check.findings import Place
from edgefl.commands.check.server import check_evaluation, check_server
from edgefl.commands.check.tensors import differing
from edgefl.commands.check.untrained import check_first_shapes
from edgefl.errors import MethodError
from edgefl.methods import ServerState, Update
from edgefl.planning.rules import works
from edgefl.schedules import Schedule, Stage
from edgefl.work import Work


def check_schedule(federation: TinyFederation, name: str, schedule: Schedule) -> None:
    """Check one round of every stage; each starts from the server's state after the one before."""
    findings, method, setup = federation.findings, federation.method, federation.setup
    for kind in setup.clients.kinds:
        with findings.attempt(rules.ANSWERS, f"{kind}, {name}"):
            variants = method.variants[kind] if method.participates(kind, 1) else ()
            works_alone = all(isinstance(method.client_work(kind, 1, variant), Work) for variant in variants)
            findings.expect(rules.ANSWERS, f"{kind}, {name}", works_alone)
    if any(failure.startswith(f"{rules.ANSWERS}: ") for failure in findings.failures):
        return
    try:
        for work, stage, *_ in works(method, schedule):
            stage.cut(work)
    except MethodError as error:
        findings.refused[name] = str(error)
        return
    first_state = f"the first state, {name}"
    with findings.attempt(rules.PLACES, first_state):
        state = method.initial(1)
        different = differing(state.tensors, federation.new_method().initial(1).tensors)
        findings.expect_none(rules.SEED, first_state, different, "{} differs for a new instance of the method")
        check_first_shapes(federation, first_state, state)
        served = set[str]()
        for round in range(1, schedule.rounds + 1):
            stage = schedule.stage(round)
            if round > 1 and schedule.stage(round - 1) is stage:
                continue
            kinds = [kind for kind in setup.clients.kinds if method.participates(kind, round)]
            served |= set(kinds)
            candidates = schedule.candidates(round)
            clients = min((len(setup.of_kind(kind)) for kind in kinds), default=1)
            for first in range(0, len(candidates), clients):  # more candidates than clients need further rounds
                order = (*candidates[first:], *candidates[:first])
                state = _check_round(federation, Place(name, stage, round), kinds, state, order)
        fault = "participates() is true for none of " + ", ".join(setup.clients.kinds)
        findings.expect(rules.SERVES, name, bool(served), fault)


def _check_round(
    federation: TinyFederation, place: Place, kinds: Sequence[str], state: ServerState, candidates: Sequence[Stage]
) -> ServerState:
    """The state after a round: server, clients of these kinds, aggregation, server, evaluation."""
    state = check_server(federation, "before", place, state)
    updates: list[Update] = []
    for kind in kinds:
        for client, stage in zip(federation.setup.of_kind(kind).tolist(), cycle(candidates), strict=False):
            update = check_client(federation, client, kind, Place(place.schedule, stage, place.round), state)
            updates += [update] if update else []
    if updates:
        with federation.findings.attempt(rules.PURE, place.at("aggregate()")):
            state = check_aggregation(federation, place, state, updates)
        state = check_server(federation, "after", place, state)
    for kind in federation.setup.clients.kinds:
        check_evaluation(federation, kind, place, state)
    return state
