"""Checks of a client's round."""

from __future__ import annotations

from edgefl import seeds
from edgefl.commands.check import rules
from edgefl.commands.check.federation import TinyFederation
from edgefl.commands.check.findings import Place
from edgefl.commands.check.tasks import check_kept, check_repeated, check_training, run_task
from edgefl.commands.check.works import check_work
from edgefl.methods import ServerState, Update
from edgefl.training import Task


def check_client(federation: TinyFederation, client: int, kind: str, place: Place, state: ServerState) -> Update | None:
    """The update of one client's round at this stage; None if the round fails."""
    findings, where = federation.findings, place.at(kind)
    source = federation.setup.clients.client(client)
    with findings.attempt(rules.MEETS, where):
        variant, again = federation.method.variant_of(kind, client), federation.new_method()
        if federation.method.varies:
            same = again.variant_of(kind, client) == variant
            findings.expect(rules.BLIND, where, same, "two calls of variant() give different ones for a client")
        full = federation.method.client_work(kind, place.round, variant)
        equal = full.encode() == again.client_work(kind, place.round, variant).encode()
        findings.expect(rules.BLIND, where, equal, "two calls give different works")
        findings.expect(rules.BLIND, where, full.kind == kind, f"its kind is {full.kind!r}")
        work = place.stage.cut(full).fitted(source.size)
        if not check_work(findings, work, where, place.stage, state):
            return None
        task = Task(work.form, work.scalars, state.inputs(work), client, seeds.key(1, "check", client, place.round))
        report = run_task(federation, task, source, rules.TRAINS, where)
        if report is None:
            return None
        if client == federation.setup.of_kind(kind)[0]:
            check_repeated(federation, task, report, where)
            check_kept(federation, task, report, source, where)
            federation.tasks.append((where, task, report))
        check_training(findings, task, report, where)
        samples = {q: source.size(p) for p in work.passes if p.data == "private" for q in p.patterns}
        result = report.result
        return Update(
            client, kind, samples, work, result.payloads, state.base(work), place.round,
            loss=result.loss, metrics=result.metrics, updates=result.updates, variant=variant,
        )  # fmt: skip
    return None
