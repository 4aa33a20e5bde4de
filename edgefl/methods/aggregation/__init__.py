"""Aggregation of updates at the server.

Means weighted by samples, robust rules (among them Krum), and server optimizers.
"""

from edgefl.methods.aggregation.senders import Cohort

__all__ = ["Cohort"]
