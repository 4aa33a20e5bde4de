"""The answer of ``edgefl export``."""

from __future__ import annotations

from collections.abc import Sequence

from edgefl.records.answer import Answer, AtStage, OfKind
from edgefl.records.record import UNSET, Maybe, Share


class TrainingProgram(AtStage, OfKind):
    """A training step as a program of ExecuTorch: forward pass, loss and backward pass."""

    file: str
    """Path of the program, `KIND-stage-N.pte`"""
    arena_bytes: int
    """What ExecuTorch's planner lays out: parameters that train, gradients, activations and the batch"""
    constant_bytes: int
    """What the file holds beside it: frozen parameters, which a runtime may map from storage"""
    peak_memory_bytes: int
    """Predicted peak of the same step: without state of an optimizer, attention by products"""
    gradient_difference: Share
    """Largest difference of a gradient in ExecuTorch's runtime from torch's, over the gradient's largest number"""


class Exported(Answer):
    """What ``edgefl export`` wrote."""

    to: str
    """`csv`, `parquet`, `tensorboard`, `mlflow`, `perfetto`, `figures`, `transformers`, `peft`, `executorch`,
    `flower`"""
    output: str
    """The folder"""
    files: Sequence[str]
    """Its files"""
    runs: Sequence[str]
    """Labels of the runs; none for `executorch` and `flower`"""
    note: str
    """How to show it; empty where many programs do"""
    programs: Sequence[TrainingProgram] | Maybe = UNSET
    """What each program of `executorch` takes; absent for other forms"""

    @property
    def notices(self) -> list[str]:
        """How to show it."""
        return [self.note] if self.note else []


def print_files(answer: Exported) -> str:
    """Print what programs of ExecuTorch take; return the files, a line each."""
    if answer.programs is not UNSET:
        from edgefl.drawing.text_tables import mib, new_table, print_table, screen

        table = new_table("stage", "kind", "arena MiB", "constants MiB", "predicted MiB", "gradients off by", left=(1,))
        for row in answer.programs:
            sizes = map(mib, (row.arena_bytes, row.constant_bytes, row.peak_memory_bytes))
            table.add_row(str(row.stage), row.whose, *sizes, f"{row.gradient_difference:.0e}")
        print_table(screen(), table)
    return "\n".join(answer.files) + "\n"
