"""Checks of what the server does: its own works, and the evaluation of the clients' models."""

from __future__ import annotations

import math

from edgefl import seeds
from edgefl.commands.check import rules
from edgefl.commands.check.federation import TinyFederation
from edgefl.commands.check.findings import Place
from edgefl.commands.check.state import check_next_state
from edgefl.commands.check.tasks import check_equal, check_training, run_task
from edgefl.commands.check.tensors import copies, differing
from edgefl.commands.check.untrained import check_server_works
from edgefl.commands.check.works import check_work
from edgefl.methods import ServerState
from edgefl.schedules import Stage
from edgefl.training import Task
from edgefl.work import Work


def check_server(federation: TinyFederation, when: str, place: Place, state: ServerState) -> ServerState:
    """The state after the works that the method gives the server ``before`` or ``after`` the clients' round."""
    findings = federation.findings
    with findings.attempt(rules.SERVER, place.at(f"{when}()")):
        works = getattr(federation.method, when)(state, place.round)
        check_server_works(federation, when, place, state, works)
        for index, work in enumerate(works):
            where = place.at(f"{when}(), work {index + 1}")
            seed = seeds.key(1, when, place.round, index)
            state = _check_server_work(federation, work, seed, where, place, state)
    return state


def _check_server_work(
    federation: TinyFederation, work: Work, seed: int, where: str, place: Place, state: ServerState
) -> ServerState:
    """The state after one work of the server; unchanged if the work can't be run."""
    findings = federation.findings
    stage, work = _stage_of(federation, work, place), federation.setup.staged(work, place.stage)
    if not check_work(findings, work, where, stage, state):
        return state
    task = Task(work.form, work.scalars, state.inputs(work), None, seed)
    report = run_task(federation, task, federation.setup.clients.server(), rules.SERVER, where)
    if report is None:
        return state
    with findings.attempt(rules.SEED, where):
        check_equal(findings, rules.SEED, report, federation.node.run(task), where)
    check_training(findings, task, report, where)
    tensors = copies(state.tensors)
    new = federation.method.absorb(state, work, report.result)
    changed = differing(tensors, state.tensors)
    findings.expect_none(rules.SERVER, where, changed, "absorb() changed {} in place")
    check_next_state(federation, place, where, state, new)
    return new


def check_evaluation(federation: TinyFederation, kind: str, place: Place, state: ServerState) -> None:
    """Check that the model of a kind gets finite metrics on the validation split."""
    findings, where = federation.findings, place.at(f"evaluate() of {kind}")
    with findings.attempt(rules.METRICS, where):
        work = federation.method.evaluate(kind, "validation")
        stage, work = _stage_of(federation, work, place), federation.setup.staged(work, place.stage)
        if not check_work(findings, work, where, stage, state):
            return
        task = Task(work.form, work.scalars, state.inputs(work), None, 1)
        report = run_task(federation, task, federation.setup.clients.server(), rules.METRICS, where)
        if report is not None:
            metrics = report.result.metrics
            findings.expect(rules.METRICS, where, bool(metrics), "it gives no metrics")
            infinite = {name: value for name, value in metrics.items() if not math.isfinite(value)}
            findings.expect(rules.METRICS, where, not infinite, str(infinite))


def _stage_of(federation: TinyFederation, work: Work, place: Place) -> Stage | None:
    """The stage that restricts the work; None for a model of the server's own."""
    return place.stage if work.kind in federation.setup.clients.kinds else None
