"""FedPer: each client keeps the head of its model (Arivazhagan et al. 2019)."""

from __future__ import annotations

from typing import Literal

from edgefl.methods.protocol import Method


class FedPer(Method):
    """FedAvg of all but the heads."""

    class Options(Method.Options):
        """``method: fedper``."""

        name: Literal["fedper"] = "fedper"
        personal: tuple[str, ...] = ("head",)

    summary = "FedAvg of all but the heads, which stay on the clients"
