from typing import Literal

import torch
from pydantic import Field

from edgefl.methods import ByUpdate


class GeometricMedian(ByUpdate):
    """The point with the smallest sum of distances to all updates, each weighted by its samples."""

    class Options(ByUpdate.Options):
        name: Literal["geometric-median"] = "geometric-median"
        steps: int = Field(50, ge=1, description="iterations of Weiszfeld's algorithm")

    def shares(self, group):
        distances = group.squared_distances()
        weights = torch.tensor(group.weights, dtype=torch.float64)
        shares = weights / weights.sum()
        for _ in range(self.own.steps):
            # |x_i - sum_j s_j x_j|^2
            away = distances @ shares - shares @ distances @ shares / 2
            shares = weights / away.clamp_min(1e-12).sqrt()
            shares = shares / shares.sum()
        return shares
