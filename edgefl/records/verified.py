"""The answer of ``edgefl run --verify``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from edgefl.records.answer import Answer
from edgefl.records.record import Keys, Record, Rounds


class BrokenRule(Record):
    """The first record that breaks a rule."""

    where: str
    """Its file and line"""
    values: Annotated[Mapping[str, object], Keys("FIELD")]
    """The values that break it"""


class CheckedRule(Record):
    """A rule on one run."""

    name: str
    """Its name"""
    says: str
    """What it says"""
    records: int
    """Records that were checked"""
    broken: int
    """Those that break it"""
    first: BrokenRule | None
    """The first of these"""
    note: str | None
    """Why it was not checked, or not whole"""


class VerifiedRun(Record):
    """One run."""

    folder: str
    """Its folder"""
    finished: bool
    """Whether it is finished"""
    valid: bool
    """Whether no rule is broken"""
    rounds: Rounds
    """Rounds that were checked"""
    checks: Sequence[CheckedRule]
    """The rules"""


class Verified(Answer):
    """A run, or all of a comparison."""

    folder: str
    """Its folder"""
    valid: bool
    """Whether no rule is broken in any run"""
    runs: Annotated[Mapping[str, VerifiedRun], Keys("RUN")]
    """The runs by label"""
