"""Round policies: what the server does in a round, each a SimPy process in a file of its own."""

from edgefl.simulation.policies.asynchronous import FedAsync
from edgefl.simulation.policies.base import Policy
from edgefl.simulation.policies.buffered import FedBuff
from edgefl.simulation.policies.semi_synchronous import SemiSynchronous
from edgefl.simulation.policies.synchronous import Synchronous

__all__ = ["FedAsync", "FedBuff", "Policy", "SemiSynchronous", "Synchronous"]
