"""Checks of a method under a schedule: one round of every stage, of server, clients, aggregation and evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle

from edgefl import seeds
from edgefl.errors import MethodError
from edgefl.methods import ServerState, Update
from edgefl.planning.rules import checked_rounds
from edgefl.schedules import Schedule, Stage
from edgefl.testing.findings import CheckRule, CheckScope
from edgefl.testing.one_assignment import (
    check_equal,
    check_kept,
    check_repeated,
    check_training,
    copies,
    differing,
    has_same_bits,
    run_assignment,
)
from edgefl.testing.tiny_federation import TinyFederation
from edgefl.testing.works import check_first_shapes, check_server_works, check_untrained_aggregation, check_work
from edgefl.training import Assignment
from edgefl.work import Work


def check_schedule(federation: TinyFederation, name: str, schedule: Schedule) -> None:
    """Check one round of every stage; each starts from the server's state after the one before."""
    findings, method, setup = federation.findings, federation.method, federation.setup
    for kind in setup.clients.kinds:
        with findings.attempt(CheckRule.ANSWERS, f"{kind}, {name}"):
            variants = method.variants[kind] if method.participates(kind, 1) else ()
            works_alone = all(isinstance(method.client_work(kind, 1, variant), Work) for variant in variants)
            findings.expect(CheckRule.ANSWERS, f"{kind}, {name}", works_alone)
    if any(failure.startswith(f"{CheckRule.ANSWERS}: ") for failure in findings.failures):
        return
    try:
        for stage, kind, round, variant in checked_rounds(method, schedule):
            stage.restrict_work(method.client_work(kind, round, variant))
    except MethodError as error:
        findings.refused[name] = str(error)
        return
    first_state = f"the first state, {name}"
    with findings.attempt(CheckRule.PLACES, first_state):
        state = method.initial(1)
        different = differing(state.tensors, federation.new_method().initial(1).tensors)
        findings.expect_none(CheckRule.SEED, first_state, different, "{} differs for a new instance of the method")
        check_first_shapes(federation, first_state, state)
        served = set[str]()
        for round in range(1, schedule.rounds + 1):
            stage = schedule.stage(round)
            if round > 1 and schedule.stage(round - 1) is stage:
                continue
            kinds = [kind for kind in setup.clients.kinds if method.participates(kind, round)]
            served |= set(kinds)
            if not kinds and any(p.train for work in method.before(state, round) for p in work.passes):
                served.add("the server")
            candidates = schedule.candidates(round)
            clients = min((len(setup.of_kind(kind)) for kind in kinds), default=1)
            for first in range(0, len(candidates), clients):  # more candidates than clients need further rounds
                order = (*candidates[first:], *candidates[:first])
                state = _check_round(federation, CheckScope(name, stage, round), kinds, state, order)
        fault = f"participates() is true for none of {', '.join(setup.clients.kinds)}, and before() trains nothing"
        findings.expect(CheckRule.SERVES, name, bool(served), fault)


def _check_round(
    federation: TinyFederation, place: CheckScope, kinds: Sequence[str], state: ServerState, candidates: Sequence[Stage]
) -> ServerState:
    """The state after a round: server, clients of these kinds, aggregation, server, evaluation."""
    state = check_server(federation, "before", place, state)
    updates: list[Update] = []
    for kind in kinds:
        for client, stage in zip(federation.setup.of_kind(kind).tolist(), cycle(candidates), strict=False):
            update = check_client(federation, client, kind, CheckScope(place.schedule, stage, place.round), state)
            updates += [update] if update else []
    if updates:
        with federation.findings.attempt(CheckRule.PURE, place.at("aggregate()")):
            state = check_aggregation(federation, place, state, updates)
        state = check_server(federation, "after", place, state)
    for kind in federation.setup.clients.kinds:
        check_evaluation(federation, kind, place, state)
    return state


def check_client(
    federation: TinyFederation, client: int, kind: str, place: CheckScope, state: ServerState
) -> Update | None:
    """The update of one client's round at this stage; None if the round fails."""
    findings, where = federation.findings, place.at(kind)
    source = federation.setup.clients.client(client)
    with findings.attempt(CheckRule.MEETS, where):
        variant, again = federation.method.variant_of(kind, client), federation.new_method()
        if federation.method.varies:
            same = again.variant_of(kind, client) == variant
            findings.expect(CheckRule.BLIND, where, same, "two calls of variant() give different ones for a client")
        full = federation.method.client_work(kind, place.round, variant)
        equal = full.encode() == again.client_work(kind, place.round, variant).encode()
        findings.expect(CheckRule.BLIND, where, equal, "two calls give different works")
        findings.expect(CheckRule.BLIND, where, full.kind == kind, f"its kind is {full.kind!r}")
        work = place.stage.restrict_work(full).limit_batches(source.size)
        if not check_work(findings, work, where, place.stage, state):
            return None
        assignment = Assignment(
            work.form, work.scalars, state.inputs(work), client, seeds.key(1, "check", client, place.round)
        )
        report = run_assignment(federation, assignment, source, CheckRule.TRAINS, where)
        if report is None:
            return None
        if client == federation.setup.of_kind(kind)[0]:
            check_repeated(federation, assignment, report, where)
            check_kept(federation, assignment, report, source, where)
            federation.assignments.append((where, assignment, report))
        check_training(findings, assignment, report, where)
        samples = {q: source.size(p) for p in work.passes if p.data == "private" for q in p.patterns}
        result = report
        return Update(
            client, kind, samples, work, result.payloads, state.base(work), place.round,
            loss=result.loss, metrics=result.metrics, updates=result.updates, variant=variant,
        )  # fmt: skip
    return None


def check_server(federation: TinyFederation, when: str, place: CheckScope, state: ServerState) -> ServerState:
    """The state after the works that the method gives the server ``before`` or ``after`` the clients' round."""
    findings = federation.findings
    with findings.attempt(CheckRule.SERVER, place.at(f"{when}()")):
        works = getattr(federation.method, when)(state, place.round)
        check_server_works(federation, when, place, state, works)
        for index, work in enumerate(works):
            where = place.at(f"{when}(), work {index + 1}")
            seed = seeds.key(1, when, place.round, index)
            state = _check_server_work(federation, work, seed, where, place, state)
    return state


def _check_server_work(
    federation: TinyFederation, work: Work, seed: int, where: str, place: CheckScope, state: ServerState
) -> ServerState:
    """The state after one work of the server; unchanged if the work can't be run."""
    findings = federation.findings
    stage, work = _stage_of(federation, work, place), federation.setup.restrict_to_stage(work, place.stage)
    if not check_work(findings, work, where, stage, state):
        return state
    assignment = Assignment(work.form, work.scalars, state.inputs(work), None, seed)
    report = run_assignment(federation, assignment, federation.setup.clients.server(), CheckRule.SERVER, where)
    if report is None:
        return state
    with findings.attempt(CheckRule.SEED, where):
        check_equal(findings, CheckRule.SEED, report, federation.node.run_assignment(assignment), where)
    check_training(findings, assignment, report, where)
    tensors = copies(state.tensors)
    new = federation.method.absorb(state, work, report)
    changed = differing(tensors, state.tensors)
    findings.expect_none(CheckRule.SERVER, where, changed, "absorb() changed {} in place")
    check_next_state(federation, place, where, state, new)
    return new


def check_evaluation(federation: TinyFederation, kind: str, place: CheckScope, state: ServerState) -> None:
    """Check that the model of a kind gets finite metrics on the validation split."""
    findings, where = federation.findings, place.at(f"evaluate() of {kind}")
    with findings.attempt(CheckRule.METRICS, where):
        work = federation.method.evaluate(kind, "validation")
        stage, work = _stage_of(federation, work, place), federation.setup.restrict_to_stage(work, place.stage)
        if not check_work(findings, work, where, stage, state):
            return
        assignment = Assignment(work.form, work.scalars, state.inputs(work), None, 1)
        report = run_assignment(federation, assignment, federation.setup.clients.server(), CheckRule.METRICS, where)
        if report is not None:
            metrics = report.metrics
            findings.expect(CheckRule.METRICS, where, bool(metrics), "it gives no metrics")
            infinite = {name: value for name, value in metrics.items() if not math.isfinite(value)}
            findings.expect(CheckRule.METRICS, where, not infinite, str(infinite))


def _stage_of(federation: TinyFederation, work: Work, place: CheckScope) -> Stage | None:
    """The stage that restricts the work; None for a model of the server's own."""
    return place.stage if work.kind in federation.setup.clients.kinds else None


def check_aggregation(
    federation: TinyFederation, place: CheckScope, state: ServerState, updates: Sequence[Update]
) -> ServerState:
    """The aggregated state, compared with that of a second call, a new method, reversed and single updates."""
    expect_none, where = federation.findings.expect_none, place.at("aggregate()")
    tensors, versions = copies(state.tensors), dict(state.versions)
    sent = [copies(dict(update.uploaded_tensors())) for update in updates]
    new = federation.method.aggregate(state, updates)
    expect_none(CheckRule.PURE, where, differing(tensors, state.tensors), "{} was changed in place")
    fault = "the versions of the given state were changed"
    federation.findings.expect(CheckRule.PURE, where, versions == dict(state.versions), fault)
    changed = [
        n for update, old in zip(updates, sent, strict=True) for n in differing(old, dict(update.uploaded_tensors()))
    ]
    expect_none(CheckRule.PURE, where, changed, "{} of an update was changed")
    repeated = federation.method.aggregate(state, updates).tensors
    expect_none(CheckRule.PURE, where, differing(new.tensors, repeated), "{} differs in a second call")
    fresh_state = federation.new_method().aggregate(state, updates)
    fresh = fresh_state.tensors
    fault = "{} differs for a new instance of the method: what a round leaves behind belongs in the state"
    expect_none(CheckRule.PURE, where, differing(new.tensors, fresh), fault)
    reverse = federation.new_method().aggregate(state, list(reversed(updates))).tensors
    expect_none(CheckRule.ORDER, where, differing(fresh, reverse), "{} differs: sort the updates by client")
    check_next_state(federation, place, where, state, new)
    check_untrained_aggregation(federation, where, state, updates, fresh_state)
    for update in updates:
        with federation.findings.attempt(CheckRule.SPARSE, where):
            alone = federation.method.aggregate(state, [update])
            client_where = f"{where} of one {update.kind} client alone"
            check_next_state(federation, place, client_where, state, alone, CheckRule.SPARSE)
    return new


def check_next_state(
    federation: TinyFederation,
    place: CheckScope,
    where: str,
    old: ServerState,
    new: ServerState,
    rule: str = CheckRule.PLACES,
) -> None:
    """Check the new state against the old one; failures without a rule of their own are reported under ``rule``."""
    expect_none = federation.findings.expect_none
    lost = old.tensors.keys() - new.tensors.keys()
    expect_none(rule, where, lost, "{} is gone")
    added = {address for address in new.tensors.keys() - old.tensors.keys() if not address.startswith("table/")}
    expect_none(rule, where, added, "{} is new; addresses that are added later must begin with table/")
    unversioned = new.tensors.keys() ^ new.versions.keys()
    expect_none(CheckRule.VERSIONS, where, unversioned, "{} has no version")
    changed, reshaped = set[str](), set[str]()
    for address, value in new.tensors.items():
        before = old.tensors.get(address)
        if before is None or before is value:
            continue
        if (before.shape, before.dtype) != (value.shape, value.dtype):
            reshaped.add(f"{address} ({value.dtype} {tuple(value.shape)} for {before.dtype} {tuple(before.shape)})")
        if not has_same_bits(before, value):
            changed.add(address)
    expect_none(rule, where, reshaped, "{} has another shape or precision than before")
    stale = {address for address in changed if new.versions.get(address, 0) <= old.versions.get(address, 0)}
    expect_none(CheckRule.VERSIONS, where, stale, "{} changed without a new version; use state.with_tensors()")
    infinite = {
        address
        for address in changed
        if new.tensors[address].is_floating_point() and not new.tensors[address].isfinite().all()
    }
    expect_none(rule, where, infinite, "{} isn't finite")
    kinds = federation.setup.clients.kinds
    idle = {
        address
        for address in changed
        if _is_client_parameter(address, kinds) and not place.stage.is_active(address.split("/", 1)[1])
    }
    expect_none(CheckRule.INACTIVE, where, idle, "{} changed")


def _is_client_parameter(address: str, kinds: tuple[str, ...]) -> bool:
    """Whether an address is a parameter of a client kind's model, which the schedule restricts."""
    return not address.startswith("table/") and address.split("/", 1)[0] in kinds
