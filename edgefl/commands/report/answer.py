"""The answer of ``edgefl report``."""

from __future__ import annotations

from edgefl.records.answer import Answer


class RunReport(Answer):
    """What ``edgefl report`` wrote."""

    file: str
    """The page"""


def file_of(answer: RunReport) -> str:
    """The page as a line."""
    return f"{answer.file}\n"
