"""The cost of a work: predicted on fake tensors, then converted to seconds and joules on a device and a link."""

from edgefl.cost.client_cost import (
    NO_COMPUTE,
    NO_TRAFFIC,
    TRAFFIC_PARTS,
    ComputeCost,
    Traffic,
    compute_cost,
    traffic,
)
from edgefl.cost.phases import Phases, carried_bits, joules_of, numbers_of
from edgefl.cost.predict import (
    Predictor,
    cost_key,
    metric_names,
    passes_key,
    predict,
    shorten_passes,
    storage_events,
    timeline,
    work_key,
)
from edgefl.cost.price import amounts_of, price_phases, price_rounds
from edgefl.cost.scratch import ScratchRow, ScratchTable
from edgefl.cost.traced_ahead import PriceRequest, PricingPool, ShapeSource

__all__ = [
    "NO_COMPUTE", "NO_TRAFFIC", "TRAFFIC_PARTS", "ComputeCost", "Phases", "Predictor", "PriceRequest",
    "PricingPool", "ScratchRow", "ScratchTable", "ShapeSource", "Traffic", "amounts_of", "carried_bits", "compute_cost",
    "cost_key", "joules_of", "metric_names", "numbers_of", "passes_key", "predict", "price_phases", "price_rounds",
    "shorten_passes", "storage_events", "timeline", "traffic", "work_key",
]  # fmt: skip
