"""Training of clients and server beside the virtual clock: real training behind futures, or none.

Virtual time comes from predicted cost, so the clock never waits for real compute: a work is submitted when its client
is dispatched, and its future is awaited when its flight ends.  Without training only costs are computed: payloads and
records are the same, except for losses and metrics.
"""

from edgefl.simulation.learning.interface import Arrival, Learning
from edgefl.simulation.learning.training import Training
from edgefl.simulation.learning.untrained import NoTraining

__all__ = ["Arrival", "Learning", "NoTraining", "Training"]
