"""FedPer: each client keeps the head of its model (Arivazhagan et al. 2019)."""

from typing import Literal

from pydantic import Field

from edgefl.methods.protocol import Method


class FedPer(Method):
    """FedAvg of all but the heads."""

    class Options(Method.Options):
        """``method: fedper``."""

        name: Literal["fedper"] = "fedper"
        personal: tuple[str, ...] = Field(("head",), description="parts of the model that stay on each client")

    summary = "FedAvg of all but the heads, which stay on the clients"
    paper = "Arivazhagan et al. 2019"
