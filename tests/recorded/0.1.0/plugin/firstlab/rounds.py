from math import ceil
from typing import Literal

import numpy as np
from pydantic import Field

from edgefl.simulation import Selection
from edgefl.simulation.policies import Synchronous
from edgefl.simulation.selection import Chosen


class Smallest(Selection):
    """The clients with the fewest samples, without the first few."""

    class Options(Selection.Options):
        name: Literal["smallest"] = "smallest"
        spare: int = Field(0, ge=0, description="how many of the smallest are never asked")

    def pick(self, share):
        ready = share.clients[share.candidates.ready(share.clients)]
        order = ready[np.argsort(share.candidates.samples(ready), kind="stable")][self.own.spare :]
        return Chosen(order[: share.count], len(share.clients), len(share.clients) - len(ready))


class Half(Synchronous):
    """A round ends once half of those who were asked are back, or another share of them."""

    class Options(Synchronous.Options):
        name: Literal["half"] = "half"
        share: float = Field(0.5, gt=0, le=1, description="share of the clients asked that ends the round")

    def wanted(self, cohort, asked):
        return ceil(self.own.share * asked)
