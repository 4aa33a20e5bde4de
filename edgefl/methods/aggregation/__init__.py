"""How the server makes one model of many updates.

Means weighted by samples, robust rules, and server optimizers.
"""

from edgefl.methods.aggregation.combine import Cohort, combine

__all__ = ["Cohort", "combine"]
