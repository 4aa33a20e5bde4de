"""What a worker process has of its parent; in a module of its own, which workers import."""

import gc
import os
import resource
import sys
from multiprocessing.connection import Connection

import torch


def answer(pipe: Connection) -> None:
    pipe.send(
        {
            "TOLD": os.environ.get("TOLD"),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
            "threads": torch.get_num_threads(),
            "folder": os.getcwd(),
            "path": [entry for entry in sys.path if entry == "/told"],
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "parent": os.getppid(),
            "collects": gc.isenabled(),
            "shared": gc.get_freeze_count(),
        }
    )
