"""Training of several clients at once: their parameters are stacked, and each operator computes all of them."""

from edgefl.work.stacking.loop import Stacked, told_alone, why_alone
from edgefl.work.stacking.traced import CantStack

__all__ = ["CantStack", "Stacked", "told_alone", "why_alone"]
