"""Schedules: which part of a model is attached, trains and travels in which round.

A schedule knows names like ``image.blocks.3.attn.qkv.weight`` and never a method; ``Stage.restrict_work`` cuts the
work that a method wrote for the full model to one stage.
"""

from edgefl.schedules.elastic import Elastic
from edgefl.schedules.ending import Pace, PaceOptions, Patience, UntilOptions
from edgefl.schedules.flexlora import FlexLoRA
from edgefl.schedules.freezing import ProFL, SmartFreeze
from edgefl.schedules.frozen_prefix import KEEP, FrozenPrefix, keeps
from edgefl.schedules.heterofl import HeteroFL
from edgefl.schedules.split import Split
from edgefl.schedules.staged import EndToEnd, Layerwise, Progressive, allocate
from edgefl.schedules.stages import EARLY, PARTS, Aggregation, EndedRound, Ending, Schedule, Stage, part_of

__all__ = [
    "EARLY", "KEEP", "PARTS", "Aggregation", "Elastic", "EndToEnd", "Ending", "FlexLoRA", "FrozenPrefix", "HeteroFL",
    "Layerwise", "Pace", "PaceOptions", "Patience", "ProFL", "Progressive", "Schedule", "SmartFreeze", "EndedRound",
    "Split", "Stage", "UntilOptions", "allocate", "keeps", "part_of",
]  # fmt: skip
