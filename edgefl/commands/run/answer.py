"""The answer of ``edgefl run``."""

from __future__ import annotations

from edgefl.commands.compare.answer import ComparedRuns
from edgefl.commands.run.verified import Verified
from edgefl.records.record import UNSET, Maybe
from edgefl.records.summary import Summary


class RunAnswer(Summary, maybe=(Summary,)):
    """A run or a comparison; with `--verify` of a finished run `verified` alone."""

    over_seeds: ComparedRuns | Maybe = UNSET
    """With several seeds: the runs over their seeds; only of a finished comparison"""
    verified: Verified | Maybe = UNSET
    """With `--verify`: whether the records keep the conservation rules"""
