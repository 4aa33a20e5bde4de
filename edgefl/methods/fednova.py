"""FedNova: changes are divided by the client's number of local steps (Wang et al. 2020)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from edgefl.methods.aggregation.combine import Cohort
from edgefl.methods.protocol import Method, Setting, needs_plain_sgd
from edgefl.methods.state import ServerState, Update
from edgefl.work import Address


class FedNova(Method):
    """``w - tau_eff sum_i p_i d_i / tau_i``: tau_i updates of client i, ``tau_eff = sum_i p_i tau_i``."""

    class Options(Method.Options):
        """``method: fednova``."""

        name: Literal["fednova"] = "fednova"

    summary = "FedAvg of changes per local step"
    needs: ClassVar = {"training": {"optimizer": "sgd"}}

    def __init__(self, options: Options, setting: Setting):
        super().__init__(options, setting)
        needs_plain_sgd("fednova", setting)

    def aggregate(self, state: ServerState, updates: Sequence[Update]) -> ServerState:
        """The mean of d_i / tau_i with weights n_i, times tau_eff; buffers are statistics, of which it is the mean."""
        samples, steps, ratios = (defaultdict[Address, float](float) for _ in range(3))
        for update in sorted(updates, key=lambda update: update.client):
            for address, _ in update.sent():
                samples[address] += update.weight
                steps[address] += update.weight * update.updates
                ratios[address] += update.weight / update.updates

        def mix(address: Address, cohort: Cohort) -> Mapping[Address, float]:
            if not samples[address] or address in self.setting.buffers:
                return {address: 1.0}
            return {address: steps[address] / samples[address] * ratios[address] / samples[address]}

        return state.changed(self.combine(state, updates, mix, weight=lambda u: u.weight / u.updates))
