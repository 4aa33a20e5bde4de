"""Poisson sampling, for which accountants of differential privacy know the tightest bounds."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from edgefl.planning.privacy import Sampling
from edgefl.simulation.selection.base import Chosen, GroupDraw, Selection


class Poisson(Selection):
    """Each client by itself, at a rate that fills the places of its group on average; a cohort's size varies.

    Drawn clients that aren't ready stay out, and no others take their places.
    """

    class Options(Selection.Options):
        """Fields of ``selection: {name: poisson}``."""

        name: Literal["poisson"] = "poisson"

    sampling: ClassVar[Sampling | None] = "poisson"

    def pick(self, share: GroupDraw) -> Chosen:
        """The ready ones of the clients that are drawn."""
        size = len(share.clients)
        drawn = share.clients[share.generator().random(size) * size < share.count]
        ready = np.asarray(share.candidates.ready(drawn), dtype=bool)
        return Chosen(drawn[ready], len(drawn), int((~ready).sum()))
