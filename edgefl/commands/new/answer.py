"""The answer of ``edgefl new``."""

from __future__ import annotations

from edgefl.records.answer import Answer


class NewScenario(Answer):
    """What ``edgefl new`` wrote."""

    scenario: str
    """The scenario's file"""
    schema: str
    """The file of the schema with which editors check it; one that was there already stays as it was"""
    like: str
    """The scenario that it is a copy of"""
    fleet: str | None
    """The fleet of the library that it has in place of the other's; `null`: the other's own"""


def lines_of(answer: NewScenario) -> str:
    """What was written, and what to do next."""
    has = f" with the fleet {answer.fleet}" if answer.fleet else ""
    return (
        f"{answer.scenario}: a copy of {answer.like}{has}, which {answer.schema} lets editors check\n"
        f"next: edgefl validate {answer.scenario}\n"
    )
