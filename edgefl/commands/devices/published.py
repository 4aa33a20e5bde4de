"""Predictions held against published measurements of training: the command ``edgefl devices validate``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from edgefl.commands.devices.published_step import step_cost
from edgefl.commands.progress import OnProgress, silent
from edgefl.commands.sweep.sensitivity import tau_of_signs
from edgefl.cost import ComputeCost
from edgefl.devices.measurements import Measurement, measurements
from edgefl.devices.profile import Hardware, device_names, hardware, load_device
from edgefl.errors import DeviceError, EdgeflError, UnknownName
from edgefl.report import FIGURE_FORMS, check_figure, draw_figure
from edgefl.report.charts.devices import predicted_over_published


def validate_devices(
    *,
    devices: Sequence[str] = (),
    plot: str | os.PathLike[str] | None = None,
    on_progress: OnProgress = silent,
) -> dict[str, Any]:
    """Hold predictions against the published measurements of the library's devices, or of these.

    The training step of each measurement is built on fake tensors, its operators are counted, and the profile of its
    device makes seconds, joules or watts of them as a simulation does.  The loading of data and the validation that
    some measurements include aren't predicted.

    Returns:
        ``rows``: a measurement beside its prediction, by the profile's numbers and with the fitted factors; ``reason``
        where there is no prediction.  ``summary``: rows of seconds of each half, their median relative error and
        Kendall's tau-b.  ``factors``: by class of device and number.

    Raises:
        UnknownName: A device is unknown.
        DeviceError: A device has no published measurement, or a file is invalid.
        RunError: The drawing can't be written.
    """
    if plot is not None:
        check_figure(plot, FIGURE_FORMS)
    every = measurements()
    measured = sorted({row.device for row in every})
    for name in devices:
        if "@" in name:
            load_device(name)  # an unknown mode is said
            own = name.partition("@")[0]
            raise DeviceError(f"{name}: measurements are held against a device without a named mode: --device {own}")
        if name not in device_names():
            raise UnknownName("device", name, device_names())
        if name not in measured:
            raise DeviceError(f"{name}: nothing published was found, see edgefl devices validate")
    wanted = [row for row in every if not devices or row.device in devices]
    rows: list[dict[str, Any]] = []
    for index, row in enumerate(wanted):
        on_progress("combination", {"label": f"{row.device}, {row.model}", "index": index, "of": len(wanted)})
        rows += [plain(one) for one in held([row])]
    result = {"rows": rows, "summary": summary(rows)}
    if plot is not None:
        draw_figure(predicted_over_published(result), Path(plot))
    return result


@dataclass(frozen=True)
class Held:
    """A measurement with the cost of its step on its device; ``reason`` says why there is none."""

    row: Measurement
    device: Hardware
    cost: ComputeCost | None
    reason: str | None = None

    @property
    def quantity(self) -> str:
        """``seconds`` of a step, ``peak_memory``, ``power`` or ``energy``: what is compared."""
        return "seconds" if self.row.seconds_per_step is not None else self.row.measured

    @property
    def measured(self) -> float:
        """The measured value, of a duration the seconds of a step."""
        return self.row.seconds_per_step or self.row.value

    def predicted(self) -> float | None:
        """The predicted value; None if the step has no cost."""
        if self.cost is None:
            return None
        device = self.device
        if self.quantity == "peak_memory":
            return float(self.cost.peak_memory_bytes)
        if self.quantity == "power":
            return device.compute_watts
        seconds = self.cost.seconds(device)
        if self.quantity == "seconds":
            return seconds
        return seconds * device.compute_watts * -(-(self.row.samples or 0) // self.row.batch)


def held(rows: Iterable[Measurement]) -> list[Held]:
    """The measurements with their predicted costs."""
    result = []
    for row in rows:
        device = hardware(row.device)
        gpu = device.processor.kind == "gpu"
        try:
            if row.measured == "energy" and row.samples is None:
                raise EdgeflError("the energy is of an epoch, and its samples aren't said")
            result.append(Held(row, device, step_cost(row, gpu=gpu)))
        except EdgeflError as error:
            result.append(Held(row, device, None, str(error)))
    return result


def plain(one: Held) -> dict[str, Any]:
    """A row of ``edgefl devices validate``."""
    row, predicted = one.row, one.predicted()
    return {
        "device": row.device, "class": one.device.processor_class, "model": row.model, "trained": row.trained,
        "batch": row.batch, "precision": row.precision, "quantity": one.quantity, "measured": one.measured,
        "predicted": predicted, "ratio": predicted and predicted / one.measured, "half": row.half,
        "includes": list(row.includes), "reason": one.reason, "source": row.source.model_dump(mode="json"),
    }  # fmt: skip


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median relative error and Kendall's tau-b of the seconds of each half."""
    result = []
    for half in ("fitted", "held-out"):
        mine = [row for row in rows if row["half"] == half and row["quantity"] == "seconds" and row["ratio"]]
        errors = [abs(row["ratio"] - 1) for row in mine]
        measured, predicted = [r["measured"] for r in mine], [r["predicted"] for r in mine]
        result.append({
            "half": half, "rows": len(mine),
            "median_error": median(errors) if errors else None,
            "worst_error": max(errors, default=None),
            "tau": kendall_tau(measured, predicted) if len(mine) > 1 else None,
        })  # fmt: skip
    return result


def kendall_tau(first: ArrayLike, second: ArrayLike) -> float:
    """Kendall's tau-b of two lists of numbers."""
    arrays = (np.asarray(values, dtype=np.float64) for values in (first, second))
    return tau_of_signs(*(np.sign(each[:, None] - each[None, :]).astype(np.int8) for each in arrays))
