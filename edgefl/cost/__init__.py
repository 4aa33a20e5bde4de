"""The cost of a work: predicted on fake tensors, then converted to seconds and joules on a device and a link."""

from edgefl.cost.client import (
    TRAFFIC_PARTS,
    ClientCost,
    ComputeCost,
    Duration,
    Traffic,
    compute_cost,
    duration,
    energies,
    energy,
    traffic,
    transfer_seconds,
    watts_of,
)
from edgefl.cost.predict import Predictor, cost_key, metric_names, passes_key, predict, shortened, timeline, work_key
from edgefl.cost.scratch import ScratchTable

__all__ = [
    "TRAFFIC_PARTS",
    "ClientCost",
    "ComputeCost",
    "Duration",
    "Predictor",
    "ScratchTable",
    "Traffic",
    "compute_cost",
    "cost_key",
    "duration",
    "energies",
    "energy",
    "metric_names",
    "passes_key",
    "predict",
    "shortened",
    "timeline",
    "traffic",
    "transfer_seconds",
    "watts_of",
    "work_key",
]
