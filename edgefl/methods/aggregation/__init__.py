"""Aggregation of updates at the server.

Means weighted by samples, robust rules (among them Krum), and server optimizers.
"""

from edgefl.methods.aggregation.combine import Cohort, combine

__all__ = ["Cohort", "combine"]
