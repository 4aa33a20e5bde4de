"""Training of works, in this process or in worker processes, with optional measurement of memory and FLOPs."""

from edgefl import garbage

with garbage.pausing_collection():  # workers on Ray, and spawned ones, begin here
    from edgefl.training.assignment import Assignment, Kept
    from edgefl.training.attack import Attack
    from edgefl.training.executors import Executor, Inline, RememberingExecutor, make_executor
    from edgefl.training.node import Node, Sources
    from edgefl.training.options import ExecutorOptions
    from edgefl.training.processes import ProcessExecutor
    from edgefl.work.torch_device import device_of

__all__ = [
    "Attack", "Executor", "ExecutorOptions", "Inline", "Kept", "Node", "ProcessExecutor", "RememberingExecutor",
    "Sources", "Assignment", "device_of", "make_executor",
]  # fmt: skip
