"""FedAvg: every client kind averages its own model (McMahan et al. 2017)."""

from __future__ import annotations

from typing import Literal

from edgefl.methods.protocol import Method


class FedAvg(Method):
    """Weighted by samples, one global model per client kind: the protocol's defaults, nothing more."""

    class Options(Method.Options):
        """``method: fedavg``."""

        name: Literal["fedavg"] = "fedavg"

    summary = "weighted mean of the models of each client kind"
