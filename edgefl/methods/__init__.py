"""Methods of federated learning, each in one file, client and server halves together."""

from edgefl.methods.aggregation import Cohort
from edgefl.methods.aggregation.rules import ByCoordinate, ByUpdate, ComparableUpdates
from edgefl.methods.aggregation.server_optimizers import ServerOptimizer
from edgefl.methods.protocol import Method
from edgefl.methods.setting import ClientFacts, Kind, Setting
from edgefl.methods.state import ServerState
from edgefl.work.update import Update

__all__ = [
    "ByCoordinate", "ByUpdate", "ClientFacts", "Cohort", "ComparableUpdates", "Kind", "Method", "ServerOptimizer",
    "ServerState", "Setting", "Update",
]  # fmt: skip
