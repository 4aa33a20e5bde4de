"""FedNova: changes are divided by the client's number of local steps (Wang et al. 2020)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from edgefl.methods import Cohort, Method, ServerState, Update
from edgefl.work import Address


class FedNova(Method):
    """``w - tau_eff sum_i p_i d_i / tau_i``: tau_i updates of client i, ``tau_eff = sum_i p_i tau_i``."""

    class Options(Method.Options):
        """``method: fednova``."""

        name: Literal["fednova"] = "fednova"

    summary = "FedAvg of changes per local step"
    paper = "Wang et al. 2020"
    plain_sgd = True
    streams = True

    def update_weight(self, update: Update) -> float:
        """n_i / tau_i; a client without updates changed nothing."""
        return update.weight / max(update.updates, 1)

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """``sum_i n_i d_i / tau_i``, divided by ``sum_i n_i``, times tau_eff; buffers are statistics: their mean."""
        samples, steps = defaultdict[Address, float](float), defaultdict[Address, float](float)
        for update in sorted(updates, key=lambda update: update.client):
            for address in (item.source for payload in update.work.up for item in payload.items):
                samples[address] += update.weight
                steps[address] += update.weight * update.updates

        def mix(address: Address, cohort: Cohort) -> Mapping[Address, float]:
            if address in self.setting.buffers or not samples[address]:
                return {address: 1.0}
            return {address: cohort.by_address[address] * steps[address] / samples[address] ** 2}

        return state.with_tensors(self.combine(state, updates, mix))
