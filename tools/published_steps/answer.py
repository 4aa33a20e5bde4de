"""The answer of ``tools/published.py``: predictions beside published measurements of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from edgefl.records.answer import Answer
from edgefl.records.devices import Sourced
from edgefl.records.record import UNSET, Maybe, Record

Unseen = Literal["model", "device", "source", "class"]


class Estimate(Record):
    """A figure with the interval that holds it in 95 % of the bootstrap's draws of (device, source)."""

    value: float
    """The figure"""
    low: float | None
    """The 2.5th percentile; `null` with fewer than five (device, source), which say too little of an interval"""
    high: float | None
    """The 97.5th"""


class Agreement(Record):
    """How far predicted seconds are from measured ones."""

    rows: int
    """Rows of seconds"""
    devices: int
    """Devices that they are of"""
    median_error: Estimate
    """Median of |predicted / measured - 1|"""
    within_factor: Estimate
    """Share of rows whose predicted seconds are within a factor of 1.5"""
    mean_factor: float
    """exp of the mean |ln(predicted / measured)|, in which each (device, source) counts once"""
    share_factor: float
    """80 % of the rows lie within this factor, either way, if each (device, source) counts once"""
    worst_factor: float
    """The largest factor between predicted and measured seconds, either way"""
    tau: Estimate | None
    """Kendall's tau-b of the order of seconds; `null` for a single row, or where all are equal"""


class HeldOutAgreement(Agreement):
    """The agreement of predictions by fits that hadn't seen what is asked for."""

    unseen: str
    """What the fit hasn't seen: the device's models of the other half (`model`; only the held-out half is counted),
    the device, the source, or the class of processors"""


class PublishedGroup(Record):
    """Rows of seconds of a device, or of a source."""

    name: str
    """The device, or the address of the source"""
    rows: int
    """Rows of seconds"""
    shipped_error: float
    """Median of |predicted / measured - 1| with the shipped efficiencies, which were fitted to these rows, too"""
    unseen_model_error: float | None
    """The same by a fit to the other half of the device's models; `null` if a row is newer than the fit"""
    unseen_error: float | None
    """The same by a fit without the device, or without the source"""


class Foretold(Record):
    """What fits that haven't seen a row predict: seconds of its step, or joules."""

    unseen_model: float
    """By a fit to the other half of models by device"""
    unseen_device: float
    """By a fit without the device"""
    unseen_source: float
    """By a fit without the source"""
    unseen_class: float
    """By a fit without the class of processors"""


class JoulesAgreement(Agreement):
    """Agreement of joules of the steps of one device, with the seconds of fits without it."""

    name: str
    """The device"""
    watts_factor: float
    """exp of the mean |ln(predicted / measured)| of the watts alone"""


class PublishedRow(Record):
    """A published measurement beside its prediction."""

    device: str
    """Device of the library, or hardware that was measured beside it"""
    processor: str | None
    """Class of its processor"""
    model: str
    """Name of the network in its library"""
    trained: str
    """What trains: `all` or `last layer`"""
    batch: int
    """Samples of a step"""
    precision: str
    """Precision of products and convolutions"""
    runtime: str
    """What trained, by name and version"""
    quantity: str
    """What is compared: `seconds` of a step, `power` during it, `joules` of it, `peak_memory`, or `energy` of an
    epoch"""
    measured: float
    """The measured value in its base unit"""
    predicted: float | None
    """The predicted value, with efficiencies that were fitted to this row, too; `null` where the step has no cost"""
    ratio: float | None
    """Predicted / measured"""
    half: str
    """`fitted` or `held-out`: of the device's models"""
    includes: Sequence[str]
    """What was measured beside the steps"""
    reason: str | None
    """Why nothing is predicted"""
    foretold: Foretold | None
    """By fits that haven't seen the row; `null` for another quantity, or a row that is newer than the fit"""
    source: Sourced
    """Where the value is from"""


class PublishedAgreement(Answer):
    """Predictions beside published measurements."""

    rows: Sequence[PublishedRow]
    """A measurement"""
    questions: Sequence[HeldOutAgreement]
    """Agreement of seconds that fits without the rows predict"""
    shipped: Agreement | Maybe = UNSET
    """Agreement of seconds with the shipped efficiencies, which were fitted to these rows; absent without rows"""
    joules: Agreement | Maybe = UNSET
    """Agreement of joules of a step, with the seconds of fits without the device; absent without rows"""
    joules_by_device: Sequence[JoulesAgreement]
    """Joules of a step by device"""
    by_device: Sequence[PublishedGroup]
    """Rows of seconds by device"""
    by_source: Sequence[PublishedGroup]
    """Rows of seconds by source"""
