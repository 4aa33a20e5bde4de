"""Flower's own aggregation of clients in plain torch: ``flwr.server.strategy`` FedAvg and FedProx, ``aggregate_fit``.

    python -m agreeing.flower_rounds FOLDER METHOD

Flower has no SCAFFOLD: models and changes of control variates are averaged by its FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import FedAvg, FedProx
from torch import Tensor

from agreeing.plain_client import CLIENTS, MU, Case, asked, renewed, trained, write, zeros


def mean(strategy: FedAvg, round: int, sent: Sequence[Sequence[Tensor]], samples: int) -> list[Tensor]:
    """The strategy's mean of what clients with ``samples`` each have sent."""
    results: list[tuple[Any, FitRes]] = [
        (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([v.numpy() for v in values]), samples, {}))
        for values in sent
    ]
    parameters, _ = strategy.aggregate_fit(round, results, [])
    assert parameters is not None
    return [torch.from_numpy(array) for array in parameters_to_ndarrays(parameters)]


def play(case: Case, method: str) -> list[list[Tensor]]:
    """The server's parameters after each round."""
    strategy = FedProx(proximal_mu=MU) if method == "fedprox" else FedAvg()
    module, server = case.network(), case.first
    control = zeros(server)
    own = {client: zeros(server) for client in range(CLIENTS)}
    rounds = []
    for round, cohort in enumerate(case.client):
        sent, changes = [], []
        for place, client in enumerate(cohort):
            batches = case.flight(round, place)
            sent.append(trained(module, server, batches, method, control, own[client]))
            new = renewed(own[client], control, server, sent[-1], len(batches))
            changes.append([n - o for n, o in zip(new, own[client], strict=True)])
            own[client] = new
        samples = case.y[0].numel()
        server = mean(strategy, round + 1, sent, samples)
        if method == "scaffold":
            share = len(cohort) / CLIENTS
            control = [c + share * m for c, m in zip(control, mean(strategy, round + 1, changes, samples), strict=True)]
        rounds.append(server)
    return rounds


if __name__ == "__main__":
    folder, chosen = asked()
    write(folder / f"flower-{chosen}.npz", play(Case.read(folder), chosen))
