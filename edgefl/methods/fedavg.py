"""FedAvg: the models of each client kind are averaged separately (McMahan et al. 2017)."""

from __future__ import annotations

from typing import Literal

from edgefl.methods.protocol import Method


class FedAvg(Method):
    """One global model per client kind, weighted by samples: the defaults of ``Method``."""

    class Options(Method.Options):
        """``method: fedavg``."""

        name: Literal["fedavg"] = "fedavg"

    summary = "weighted mean of the models of each client kind"
    paper = "McMahan et al. 2017"
