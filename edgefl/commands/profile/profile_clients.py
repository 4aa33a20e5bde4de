"""``edgefl profile --clients``: what each client of the fleet would do, at what cost, and whether it may take part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgefl.commands.profile.command import ProfileOptions, check_wanted, runnable
from edgefl.planning.eligibility import Verdict
from edgefl.planning.planner import Demand
from edgefl.planning.setup import Setup
from edgefl.planning.workload import LEFT_OUT, Workload, hardest, stage_of_works, workload_of
from edgefl.records.answer import AtHardest, Eligible, RoundVerdict, Turns
from edgefl.records.devices import ClientRow, ClientRows, FleetClient, FleetClients
from edgefl.records.record import UNSET
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.setup.compose import Given, compose, predictor_of, scenario_of
from edgefl.setup.progress import public_command


@public_command
def profile_clients(
    scenario: Given,
    overrides: Sequence[str] = (),
    *,
    stage: int | None = None,
    kind: str | None = None,
    on_progress: OnProgress = silent,
) -> FleetClients:
    """Predict for each client of the fleet what its round costs at its hardest stage, and whether it may take part.

    Nothing is trained.  Clients already hold all frozen parameters, and times are without jitter.  Clients of equal
    kind, variant and sample counts are predicted once.

    Args:
        scenario: A scenario file, the name of a shipped scenario, or a scenario as a dictionary.
        overrides: Changes of single fields, ``"training.batch=8"``.
        stage: Only this stage of the schedule (from 1), in place of the hardest for each client.
        kind: Only clients of this kind.
        on_progress: Called with the name of an event and its facts.

    Returns:
        A record: ``rows``, one for each client, and ``combinations`` with the rows of each combination by its label if
        the scenario compares, and ``refused``, why some can't be run, if there are such.

    Raises:
        ScenarioError: The scenario can't be run, or has no such stage.
        UnknownName: The kind is unknown.
    """
    whole = scenario_of(scenario, overrides)
    combinations = whole.combinations() if whole.compare else []
    on_message = messages(on_progress)
    setups = {whole.name: compose(whole, on_message, trains=False)}
    others, refused = runnable(combinations, lambda each: compose(each, on_message, trains=False))
    setups |= others
    named = [(whole.name, whole), *((label, each) for label, each in combinations if label in others)]
    check_wanted(ProfileOptions(stage=stage, kind=kind), list(setups.values()))
    rows = {}
    for index, (label, each) in enumerate(named):
        if index:
            on_progress("combination", {"label": label, "index": index - 1, "of": len(others)})
        workload = workload_of(setups[label], predictor_of(each))
        rows[label] = _rows(workload, stage, kind)
    return FleetClients(
        scenario=whole.name,
        rows=rows[whole.name],
        combinations={label: ClientRows(rows=rows[label]) for label in others} if combinations else UNSET,
        refused=refused or UNSET,
    )


def _rows(workload: Workload, stage: int | None, kind: str | None) -> list[ClientRow]:
    """The row of each client of the kind, in the order of their numbers."""
    setup = workload.setup
    fleet, everyone = setup.fleet, len(setup.clients.client_kind)
    clients = np.arange(everyone) if kind is None else setup.of_kind(kind)
    if not len(clients):
        return []
    priced = workload.prices.on(fleet.pairs, fleet.throttling)
    found = hardest(
        workload, priced, setup.client_group[clients], fleet.pair_index[clients],
        setup.budgets(clients), np.asarray(fleet.memory_of_device)[clients], setup.job_budget_mask(clients),
        stage=stage,
    )  # fmt: skip
    trained, samples = stage_of_works(workload), np.asarray(setup.clients.client_samples)
    costs = {work: at_hardest(setup, workload.demands[work], trained[work])
             for work in np.unique(found.work).tolist() if work != LEFT_OUT}  # fmt: skip
    rows: list[ClientRow] = []
    for index, client in enumerate(clients.tolist()):
        work = int(found.work[index])
        who = FleetClient(
            client=client,
            kind=setup.kind_of(client),
            variant=str(setup.variant_of(client)) if setup.method.varies else UNSET,
            samples=int(samples[client]),
            device=fleet.device(client).name,
            link=fleet.link(client).name,
        )
        turns = Turns(stages=int(found.turns[index]), eligible_stages=int(found.able[index]))
        if work == LEFT_OUT:
            out = Eligible(eligible=False, binding=None, reason="the method leaves this kind out")
            rows.append(ClientRow(**vars(who), **vars(turns), **vars(out)))
        else:
            verdict = round_verdict(found.verdicts[index])
            rows.append(ClientRow(**vars(who), **vars(costs[work]), **vars(verdict), **vars(turns)))
    return rows


def at_hardest(setup: Setup, demand: Demand, stage: int) -> AtHardest:
    """What a work costs on any device."""
    return AtHardest(
        stage=stage,
        part=setup.schedule.offered[stage - 1].label or UNSET,
        batch=next((p.batch for p in demand.form.passes if p.train), None),
        peak_memory_bytes=demand.compute.peak_memory_bytes,
        flops=demand.compute.forward_flops + demand.compute.backward_flops,
        download_bytes=demand.traffic.download_bytes,
        upload_bytes=demand.traffic.upload_bytes,
    )


def round_verdict(verdict: Verdict) -> RoundVerdict:
    """Seconds, joules and the verdict with its binding budget."""
    binding = verdict.binding
    return RoundVerdict(
        virtual_seconds=verdict.costs["seconds"],
        energy_joules=verdict.costs["joules"],
        eligible=verdict.eligible,
        binding=binding,
        memory_limit=verdict.memory_limit,
        margin=None if binding is None else verdict.margins[binding],
        budget=None if binding is None else verdict.budgets[binding],
        reason=verdict.reason,
    )
