"""Methods of federated learning, each in one file, client and server halves together."""

from edgefl.methods.aggregation import Cohort, combine
from edgefl.methods.protocol import Method
from edgefl.methods.setting import Kind, Setting
from edgefl.methods.state import ServerState, Update

__all__ = ["Cohort", "Kind", "Method", "ServerState", "Setting", "Update", "combine"]
