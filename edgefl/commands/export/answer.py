"""The answer of ``edgefl export``."""

from __future__ import annotations

from collections.abc import Sequence

from edgefl.records.answer import Answer


class Exported(Answer):
    """What ``edgefl export`` wrote."""

    to: str
    """The form: `csv`, `parquet`, `tensorboard`, `mlflow`, `perfetto`, `figures`, `transformers` or `peft`"""
    output: str
    """The folder"""
    files: Sequence[str]
    """Its files"""
    runs: Sequence[str]
    """Labels of the runs"""
    note: str
    """How to show it; empty where many programs do"""

    @property
    def notices(self) -> list[str]:
        """How to show it."""
        return [self.note] if self.note else []


def files_of(answer: Exported) -> str:
    """The files, a line each."""
    return "\n".join(answer.files) + "\n"
