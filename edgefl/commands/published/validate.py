"""Predictions held against published measurements of training: the command ``edgefl devices validate``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgefl.commands.progress import OnProgress, silent
from edgefl.commands.published.factors import fitted
from edgefl.commands.published.held import factors_in_use, held, plain, summary
from edgefl.devices.measurements import measurements
from edgefl.devices.profile import device_names, load_device
from edgefl.errors import DeviceError, UnknownName
from edgefl.report import FIGURE_FORMS, check_figure
from edgefl.report.published import draw_published


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
        rows += [plain(one, factors_in_use()) for one in held([row])]
    result = {"rows": rows, "summary": summary(rows), "factors": factors_in_use(), "loss": fitted().loss}
    if plot is not None:
        draw_published(result, Path(plot))
    return result
