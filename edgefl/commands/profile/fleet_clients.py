"""``--clients``: what each client of the fleet would do, at what cost, and whether it may take part."""

from __future__ import annotations

import numpy as np

from edgefl.commands.profile.answer import ClientRow, FleetClient
from edgefl.planning.eligibility import round_verdict
from edgefl.planning.planner import Planner
from edgefl.planning.workload import LEFT_OUT, at_hardest, hardest, stage_of_works, workload_of
from edgefl.records.answer import Eligible, Turns
from edgefl.records.record import UNSET, Maybe


def client_rows(planner: Planner, stage: int | None, kind: str | None) -> list[ClientRow]:
    """For each client of the kind what its round costs at its hardest stage, and whether it may take part.

    Clients already hold all frozen parameters, and times are without jitter.  Clients of equal kind, variant and sample
    counts are predicted once.
    """
    workload = workload_of(planner.setup, planner.predictor)
    setup = planner.setup
    fleet, everyone = setup.fleet, len(setup.clients.client_kind)
    clients = np.arange(everyone) if kind is None else setup.of_kind(kind)
    if not len(clients):
        return []
    priced = workload.prices.on(fleet.pairs, fleet.throttling)
    found = hardest(
        workload, priced, setup.client_group[clients], fleet.pair_index[clients],
        setup.budgets(clients), np.asarray(fleet.memory_of_device)[clients], setup.cap_limits(clients),
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
            variant=str(setup.variant_of(client)) if setup.method.client_variant is not None else UNSET,
            samples=int(samples[client]),
            device=fleet.device(client).name,
            link=fleet.link(client).name,
        )
        turns = Turns(stages=int(found.turns[index]), eligible_stages=int(found.able[index]))
        if work == LEFT_OUT:
            out = Eligible(eligible=False, binding=None, reason="the method leaves this kind out")
            rows.append(ClientRow(**vars(who), **vars(turns), **vars(out)))
        else:
            verdict = found.verdicts[index]
            within: dict[str, int] | Maybe = UNSET if fleet.caps is None else fleet.caps.rounds(client, verdict.costs)
            priced_row = {**vars(costs[work]), **vars(round_verdict(verdict)), **vars(turns)}
            rows.append(ClientRow(**vars(who), **priced_row, rounds_within=within))
    return rows
