"""The answers of ``edgefl devices calibrate`` and ``new``.

Those of ``list`` and ``show`` are in ``edgefl.records.devices``, because the library of profiles makes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgefl.records.answer import Answer
from edgefl.records.devices import Numbers
from edgefl.records.record import Record


class CalibratedProfile(Record):
    """A measured profile as edgefl reads it back."""

    name: str
    """Its name: that of its file"""
    title: str
    """What it is"""
    values: Numbers
    """A number of the profile"""


class Calibration(Answer):
    """What was measured of this machine, or of the nodes of a run, as profiles that a fleet can name."""

    devices: Sequence[CalibratedProfile]
    """This machine, or each device of the run"""
    links: Sequence[CalibratedProfile]
    """The link to another machine; none without an address"""
    files: Sequence[str]
    """The files that were written"""
    notes: Sequence[str]
    """What could not be measured, or not well"""


class NewProfile(Answer):
    """A profile that was derived from another."""

    profile: str
    """`device` or `link`"""
    file: str
    """Its file"""
    like: str
    """The profile that it is derived from"""
    sets: Sequence[str]
    """The fields that were set"""
    scaled: Sequence[str]
    """The numbers that were scaled with one of them"""


def lines_of(answer: NewProfile) -> str:
    """What was written, and what to do next."""
    but = f", but for {', '.join(answer.sets)}" if answer.sets else ""
    but += f", and scaled: {', '.join(answer.scaled)}" if answer.scaled else ""
    shown = answer.file if "/" in answer.file else f"./{answer.file}"
    return f"{answer.file}: a {answer.profile} as {answer.like}{but}\nnext: edgefl devices show {shown}\n"
