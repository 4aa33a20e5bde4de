"""pfl-research (package ``pfl``) as a contestant: its FederatedAveraging on its simulated backend.

    python -m bench.pfl_run JOB --rounds N
    torchrun --standalone --nproc_per_node 2 -m bench.pfl_run JOB --rounds N

Without evaluation after the first round and with weights by samples.  In two processes the first has the turns, and the
second waits for it before each round.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module, set_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F

from bench.jobs import LEARNING_RATE, Job, Turns, asked
from bench.plain import count, plain_model, samples_of


class WithLoss(nn.Module):
    """A module with the two methods that pfl asks for."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        """Cross entropy of a batch."""
        self.train(not eval)
        return F.cross_entropy(self.module(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict[str, Weighted]:
        """The summed loss of a batch."""
        return {"loss": Weighted(self.loss(x, y, True).item() * len(x), len(x))}


class Pause(TrainingProcessCallback):
    """Waits for the next turn after each round; of two processes the second waits for the first."""

    def __init__(self, turns: Turns | None, parameters: int, clients: int):
        self.turns, self.parameters, self.clients = turns, parameters, clients

    def after_central_iteration(self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int) -> Any:
        """End a round."""
        if self.turns is not None:
            self.turns.played(self.parameters, self.clients)
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        return False, Metrics()


def play(job: Job, rounds: int) -> None:
    """Play the rounds, and tell the end of each."""
    torch.set_num_threads(1)
    module = WithLoss(plain_model(job))
    model = PyTorchModel(
        module, partial(torch.optim.SGD, fused=True), torch.optim.SGD(module.parameters(), lr=1.0, fused=True)
    )
    distributed = get_framework_module().distributed
    turns = Turns() if distributed.global_rank == 0 else None
    samples = [samples_of(job, client) for client in range(job.clients)]

    def make(client: int) -> Dataset:
        x, y = samples[client]
        order = torch.randperm(len(x))
        return Dataset(raw_data=[x[order], y[order]], eval_kwargs={"eval": True})

    data = FederatedDataset(make, MinimizeReuseUserSampler(list(range(job.clients))))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(rounds, rounds + 1, job.cohort, 0),
        backend=SimulatedBackend(data, data, [WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=job.batch, local_num_epochs=1, local_learning_rate=LEARNING_RATE
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Pause(turns, count(module), job.cohort)],
    )


if __name__ == "__main__":
    from pfl.internal.ops import pytorch_ops

    set_framework_module(pytorch_ops)
    chosen_job, chosen = asked()
    play(chosen_job, chosen.rounds)
