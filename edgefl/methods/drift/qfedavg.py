"""q-FedAvg: clients with a higher loss weigh more (Li et al. 2020, "Fair resource allocation", algorithm 2)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from edgefl.methods import Cohort, Method, ServerState, Update
from edgefl.work import Address, Work, distinct


class QFedAvg(Method):
    """``w - sum_i F_i^q L (w - w_i) / sum_i (q F_i^(q-1) L^2 ||w - w_i||^2 + L F_i^q)``, L = 1 / learning rate."""

    class Options(Method.Options):
        """``method: {name: qfedavg, q: 1.0}``."""

        name: Literal["qfedavg"] = "qfedavg"
        q: float = Field(1.0, ge=0, description="exponent q of the loss; 0: FedAvg without weights by samples")

    summary = "FedAvg in which clients with a higher loss weigh more"
    paper = "Li, Sanjabi, Beirami and Smith 2020"

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work after a pass without training, whose metric ``loss`` is F_i: the received model's."""
        work = super().work(kind, round)
        return replace(work, passes=(*(replace(p, train=False) for p in distinct(work)), *work.passes))

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """Each client kind separately; F_i is at least 1e-10, and 1 without training."""
        weights, total, q = dict[int, float](), defaultdict[str, float](float), self.options.q
        for u in sorted(updates, key=lambda update: update.client):
            loss, step = max(u.metrics.get("loss", 1.0), 1e-10), 1 / u.work.number("lr")
            weights[u.client] = step * loss**q
            total[u.kind] += weights[u.client] + q * loss ** (q - 1) * step**2 * u.norm(self.setting.buffers) ** 2

        def mix(address: Address, cohort: Cohort) -> Mapping[Address, float]:
            share = cohort.by_address.get(address, 0.0) / (total[address.split("/")[0]] or 1.0)
            return {address: 1.0 if address in self.setting.buffers else share}

        return state.with_tensors(self.combine(state, updates, mix, weight=lambda update: weights[update.client]))
