"""pfl-research (package ``pfl``): its FederatedAveraging, FedProx and SCAFFOLD on its simulated backend.

    python -m agreeing.pfl_rounds FOLDER METHOD | fedavg-as-is | scaffold-as-is

pfl writes the difference of a trained model to float32, also of a model in float64; here it stays in float64
(``Double``).  Its SCAFFOLD clients renew c_i with the other sign than the paper's, (y - x) / (K lr), and add c - c_i to
gradients as the paper does, so ``scaffold`` has a client in plain torch under pfl's own aggregation.  ``-as-is`` plays
what pfl has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.stats import MappedVectorStatistics
from torch import Tensor, nn
from torch.nn import functional as F

from agreeing.plain_client import CLIENTS, MU, RATE, Case, asked, renewed, trained, write, zeros


class WithLoss(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        """Cross entropy of a batch."""
        return F.cross_entropy(self.network(x), y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict[str, Any]:
        """None are asked for."""
        return {}


class Double(PyTorchModel):
    """pfl's model with differences in float64."""

    @torch.no_grad()
    def get_model_difference(self, other_parameters: Any, clone: bool = False) -> MappedVectorStatistics:
        """y - x by name."""
        return MappedVectorStatistics({n: v.detach() - other_parameters[n] for n, v in self.variable_map.items()})


class PaperScaffold(SCAFFOLD):
    """pfl's aggregation of SCAFFOLD, with the paper's client."""

    own: dict[str, list[Tensor]]

    def train_one_user(
        self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any
    ) -> tuple[MappedVectorStatistics, Metrics]:
        """y - x and c_i+ - c_i, under the names that pfl's server reads."""
        names, start = list(model.variable_map), [initial_model_state[n] for n in model.variable_map]
        control = [self._server_c[n] for n in names]
        before = self.own.setdefault(user_dataset.user_id, zeros(start))
        x, y = user_dataset.raw_data
        size = central_context.model_train_params.local_batch_size
        batches = list(zip(x.split(size), y.split(size), strict=True))
        end = trained(model.pytorch_model.network, start, batches, "scaffold", control, before)
        new = renewed(before, control, start, end, len(batches))
        self.own[user_dataset.user_id] = new
        sent = {f"model_update/{n}": e - s for n, e, s in zip(names, end, start, strict=True)}
        sent |= {f"c/{n}": a - b for n, a, b in zip(names, new, before, strict=True)}
        return MappedVectorStatistics(sent), Metrics()


class Kept(TrainingProcessCallback):
    """Keeps the server's parameters after each round."""

    def __init__(self) -> None:
        self.rounds: list[list[Tensor]] = []

    def after_central_iteration(self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int) -> Any:
        """Keep them."""
        self.rounds.append([p.detach().clone() for p in model.pytorch_model.parameters()])
        return False, Metrics()


def play(case: Case, method: str) -> list[list[Tensor]]:
    """The server's parameters after each round."""
    module = WithLoss(case.network())
    kind = PyTorchModel if method == "fedavg-as-is" else Double
    model = kind(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    cohort = len(case.client[0])
    flights: Iterator[int] = iter(range(len(case.client) * cohort))

    def make(number: int) -> Dataset:
        batches = case.flight(number // cohort, number % cohort)
        raw = [torch.cat([batch[side] for batch in batches]) for side in (0, 1)]
        return Dataset(raw_data=raw, user_id=str(case.client[number // cohort][number % cohort]))

    common = {
        "central_num_iterations": len(case.client), "evaluation_frequency": len(case.client) + 1,
        "train_cohort_size": cohort, "val_cohort_size": 0,
    }  # fmt: skip
    algorithm: Any = FederatedAveraging()
    parameters: Any = NNAlgorithmParams(**common)
    if method == "fedprox":
        algorithm, parameters = FedProx(), FedProxParams(**common, mu=MU)
    elif method.startswith("scaffold"):
        algorithm = SCAFFOLD() if method == "scaffold-as-is" else PaperScaffold()
        algorithm.own = {}
        parameters = SCAFFOLDParams(
            **common, population=CLIENTS, use_gradient_as_control_variate=False,
            user_state_storage=InMemoryUserStateStorage(),
        )  # fmt: skip
    data, kept = FederatedDataset(make, lambda: next(flights)), Kept()
    algorithm.run(
        algorithm_params=parameters,
        backend=SimulatedBackend(data, data, [WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=case.y.shape[-1], local_num_epochs=1, local_learning_rate=RATE
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[kept],
    )
    return kept.rounds


if __name__ == "__main__":
    set_framework_module(pytorch_ops)
    folder, chosen = asked()
    write(folder / f"pfl-{chosen}.npz", play(Case.read(folder), chosen))
