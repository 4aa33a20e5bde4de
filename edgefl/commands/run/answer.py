"""The answer of ``edgefl run``."""

from __future__ import annotations

from edgefl.commands.compare.answer import ComparedRuns
from edgefl.records.answer import Answer
from edgefl.records.record import UNSET, Maybe, Record
from edgefl.records.summary import Summary
from edgefl.records.verified import Verified

FAILED = 1
"""Exit code if a run breaks a conservation rule or diverges, or if no client could train in any of the runs."""


class ShardOfRuns(Record):
    """What a shard has left of a comparison."""

    folder: str
    """Folder of the comparison"""
    runs: int
    """Its runs"""
    left: int
    """Those that aren't finished"""


class RunAnswer(Summary, Answer, maybe=(Summary,)):
    """A run or a comparison; `verified` alone with `--verify` of a finished run, `shard` alone of an unfinished one."""

    over_seeds: ComparedRuns | Maybe = UNSET
    """With several seeds: the runs over their seeds; only of a finished comparison"""
    verified: Verified | Maybe = UNSET
    """With `--verify`: whether the records keep the conservation rules"""
    shard: ShardOfRuns | Maybe = UNSET
    """With `--shard`: what other shards have left; absent if all runs are finished"""

    @property
    def has_runs(self) -> bool:
        """Whether it sums up runs."""
        return vars(self)["runs"] is not UNSET

    @property
    def exit_code(self) -> int:
        """1 if a rule is broken, a run has ended before its end, or nobody could train."""
        if self.verified and not self.verified.valid:
            return FAILED
        if not self.has_runs:
            return 0
        from edgefl.results.fitting import fitting_of

        fitting = [cell for facts in self.runs.values() for cell in fitting_of(facts)]
        return FAILED if not self.finished or (fitting and not any(cell.eligible for cell in fitting)) else 0

    @property
    def notices(self) -> list[str]:
        """Where all of it is, how it goes on, and who could train nowhere or not in a stage."""
        if self.shard:
            of = self.shard
            return [
                f"this shard has ended; {of.left} of {of.runs} runs of {of.folder} aren't done yet",
                f"when they are: edgefl run --resume {of.folder}",
            ]
        if not self.has_runs:
            return []
        from edgefl.results.fitting import fitting_of, nobody_fits
        from edgefl.results.sentences import some_names

        again = f"edgefl run --resume {self.folder}"
        lines = [f"every run: {again} --full; at equal costs: edgefl compare {self.folder}"] if self.over_seeds else []
        lines.append(f"records, weights and figures: {self.folder}")
        texts = [(text, label) for label, facts in self.runs.items() for text in nobody_fits(fitting_of(facts))]
        for text in dict.fromkeys(text for text, _ in texts):
            labels = [label for each, label in texts if each == text]
            lines.append(text if len(labels) == len(self.runs) else f"{some_names(labels)}: {text}")
        if not self.finished:
            lines.append(f"to go on all the same: {again} --set training.on_divergence=continue")
        return lines
