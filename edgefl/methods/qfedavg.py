"""q-FedAvg: clients with a higher loss weigh more (Li et al. 2020, "Fair resource allocation", algorithm 2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from edgefl.methods.aggregation.combine import Cohort
from edgefl.methods.protocol import Method
from edgefl.methods.state import ServerState, Update
from edgefl.work import Address, Context, Pass, Work, Wrapper, distinct


class MeanLoss(Wrapper):
    """Writes the mean loss over the samples of all passes without training as the metric ``loss before``."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor | None:
        """The inner step's; a repeated sample, whose label is -1, doesn't count."""
        loss, samples = super().loss(ctx, batch, pattern, pass_), sum(map(ctx.source.size, scoring(ctx.work)))
        total = ctx.metrics.setdefault("loss before", torch.zeros((), device=ctx.device))
        total.add_(cast(Tensor, loss) * (batch["label"] >= 0).sum() / samples)
        return loss


def scoring(work: Work) -> list[Pass]:
    """The passes without training."""
    return [p for p in work.passes if not p.train]


class QFedAvg(Method):
    """``w - sum_i F_i^q L (w - w_i) / sum_i (q F_i^(q-1) L^2 ||w - w_i||^2 + L F_i^q)``, L = 1 / learning rate."""

    class Options(Method.Options):
        """``method: {name: qfedavg, q: 1.0}``."""

        name: Literal["qfedavg"] = "qfedavg"
        q: float = Field(1.0, ge=0, description="exponent q of the loss; 0: FedAvg without weights by samples")

    summary = "FedAvg in which clients with a higher loss weigh more"

    def work(self, kind: str, round: int) -> Work:
        """FedAvg's work after a pass for F_i, the loss of the model as received."""
        work = super().work(kind, round)
        scored = (replace(p, train=False, around=(*p.around, "mean-loss")) for p in distinct(work))
        return replace(work, passes=(*scored, *work.passes))

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """Each client kind separately; without training every F_i is 1."""
        weights, senders, total = dict[int, float](), Counter[Address](), Counter[str]()
        for u in sorted(updates, key=lambda update: update.client):
            loss, step, q = max(u.metrics.get("loss before", 1.0), TINY), 1 / u.work.scalars["lr"], self.options.q
            changes = [value - u.base[a] for a, value in u.sent() if a not in self.setting.buffers]
            squared = sum(0.0 if change.is_meta else float(change.square().sum()) for change in changes)
            weights[u.client] = step * loss**q
            total[u.kind] += q * loss ** (q - 1) * step**2 * squared + weights[u.client]
            senders.update({address: weights[u.client] for address, _ in u.sent()})

        def mix(address: Address, cohort: Cohort) -> Mapping[Address, float]:
            if address in self.setting.buffers or not senders[address]:
                return {address: 1.0}
            return {address: senders[address] / total[address.split("/")[0]]}

        return state.changed(self.combine(state, updates, mix, weight=lambda update: weights[update.client]))


TINY = 1e-10
"""Smallest loss that counts: a power of zero may be infinite."""
