"""Predictions held against published measurements of training."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp, log, prod
from pathlib import Path
from statistics import fmean, median
from typing import get_args

from edgefl.cost.client_cost import ComputeCost
from edgefl.devices.profile import Hardware, device_names, hardware, in_runtime, library_files, load_device
from edgefl.devices.written_facts import library_folder
from edgefl.drawing.figures import FIGURE_FORMS, check_figure, draw_figure
from edgefl.errors import DeviceError, EdgeflError, UnknownName
from edgefl.records.devices import Sourced
from edgefl.records.record import UNSET
from edgefl.runs.progress import OnProgress, silent
from tools.published_steps.agreement import agreement
from tools.published_steps.answer import (
    Agreement,
    Foretold,
    HeldOutAgreement,
    JoulesAgreement,
    PublishedAgreement,
    PublishedGroup,
    PublishedRow,
    Unseen,
)
from tools.published_steps.chart import agreement_chart
from tools.published_steps.measurements import Measurement, measurements
from tools.published_steps.step import step_cost


def validate_devices(
    *, devices: Sequence[str] = (), plot: str | os.PathLike[str] | None = None, on_progress: OnProgress = silent
) -> PublishedAgreement:
    """Hold predictions against the published measurements of the library's devices, or of these.

    The training step of each measurement is built on fake tensors, its operators are counted, and the profile of its
    device makes seconds, joules or watts of them as a simulation does, with the efficiencies of the row's runtime.
    Where a measurement includes the loading of data, so does the prediction; a validation that is included isn't
    predicted.  The shipped efficiencies are fitted to all rows; what fits without them predict is read from a file that
    ``tools/fit_rates.py`` writes.

    Returns:
        A record: a measurement beside its predictions, and the agreement of seconds.

    Raises:
        UnknownName: A device is unknown.
        DeviceError: A device has no published measurement, or a file is invalid.
        RunError: The drawing can't be written.
    """
    if plot is not None:
        check_figure(plot, FIGURE_FORMS)
    every = measurements()
    measured, names = {row.device for row in every}, sorted({*device_names(), *library_files("hardware")})
    for name in devices:
        if "@" in name:
            load_device(name)  # an unknown mode is said
            own = name.partition("@")[0]
            raise DeviceError(f"{name}: measurements are held against a device without a named mode: --device {own}")
        if name not in names:
            raise UnknownName("device", name, names)
        if name not in measured:
            raise DeviceError(f"{name}: nothing published was found, see tools/published.py")
    wanted = [row for row in every if not devices or row.device in devices]
    rows = []
    for index, row in enumerate(wanted):
        on_progress("combination", {"label": f"{row.device}, {row.model}", "index": index, "of": len(wanted)})
        rows += [published_row(one) for one in measured_quantities([row])]
    result = published_agreement(rows)
    if plot is not None:
        draw_figure(agreement_chart(result), Path(plot))
    return result


@dataclass(frozen=True)
class MeasuredQuantity:
    """What a measurement says of one quantity, with the cost of its step on its hardware.

    ``quantity`` is ``seconds`` of a step, ``power`` while it was timed, ``joules`` of a step, ``peak_memory``, or
    ``energy`` of an epoch; ``reason`` says why there is no cost.
    """

    row: Measurement
    device: Hardware
    cost: ComputeCost | None
    quantity: str
    reason: str | None = None

    @property
    def measured_value(self) -> float:
        """The measured value."""
        row = self.row
        if self.quantity == "power":
            return row.watts or row.value
        return {"seconds": row.seconds_per_step, "joules": row.joules_per_step}.get(self.quantity) or row.value

    @property
    def samples_loaded(self) -> int:
        """Samples of a batch, for a row that includes loading; else 0."""
        return self.row.batch if "data loading" in self.row.includes else 0

    @property
    def values_loaded(self) -> int:
        """Values of these samples."""
        return self.samples_loaded * prod(self.row.input)

    def predicted_value(self) -> float | None:
        """The predicted value; None if the step has no cost."""
        if self.cost is None:
            return None
        if self.quantity == "peak_memory":
            return float(self.cost.peak_memory_bytes)
        seconds, watts = self.seconds_and_watts(self.cost)
        epoch = -(-(self.row.samples or 0) // self.row.batch)
        return {
            "seconds": seconds, "power": watts, "joules": seconds * watts, "energy": seconds * watts * epoch,
        }[self.quantity]  # fmt: skip

    def seconds_and_watts(self, cost: ComputeCost) -> tuple[float, float]:
        """Predicted seconds of a step, with loading if the row includes it, and the mean power during them."""
        device, spent = self.device, cost.seconds_by_class(self.device)
        processor = device.processor
        loading = processor.loading_seconds * self.values_loaded + processor.sample_seconds * self.samples_loaded
        beside = processor.type == "gpu"
        seconds = max(spent.total, loading) if beside else spent.total + loading
        busy = (spent.busy + (0.0 if beside else loading)) / seconds
        return seconds, device.idle_watts + (device.compute_watts - device.idle_watts) * busy


def measured_quantities(rows: Iterable[Measurement]) -> list[MeasuredQuantity]:
    """The quantities of the measurements with the costs of their steps."""
    result = []
    for row in rows:
        device = in_runtime(hardware(row.device), row.software.key)
        cost, reason = None, None
        try:
            if row.measured == "energy" and row.samples is None:
                raise EdgeflError("the energy is of an epoch, and its samples aren't said")
            cost = step_cost(row, gpu=device.processor.type == "gpu", lists=device.processor.lists)
        except EdgeflError as error:
            reason = str(error)
        quantities: list[str] = ["seconds" if row.seconds_per_step is not None else row.measured]
        quantities += ["power", "joules"] if row.joules_per_step is not None else []
        result += [MeasuredQuantity(row, device, cost, quantity, reason) for quantity in quantities]
    return result


def repository_of(url: str) -> str:
    """By what rows of one source are told: the repository of an address on GitHub, else all of it."""
    repository = re.match(r"https://github\.com/[^/]+/[^/]+", url)
    return repository[0] if repository else url


def source_of(row: Measurement | PublishedRow) -> str:
    """The source of a row: its repository or address, or the title of one without."""
    return repository_of(row.source.url or row.source.title)


KEY = ("device", "model", "trained", "batch", "input", "precision", "framework", "seconds", "source")
"""Columns of ``profiles/processors/held_out.csv`` that tell its rows."""


def key_of(row: Measurement) -> tuple[str, ...]:
    """What tells a row of seconds: the values of ``KEY``."""
    shape = "x".join(map(str, row.input))
    return (row.device, row.model, row.trained, str(row.batch), shape, row.precision, row.framework,
            f"{row.seconds_per_step:.6g}", source_of(row))  # fmt: skip


@cache
def foretold() -> Mapping[tuple[str, ...], Foretold]:
    """Seconds of the library's rows by fits that haven't seen them, by ``key_of``."""
    with (library_folder() / "processors" / "held_out.csv").open(encoding="utf-8", newline="") as file:
        return {
            tuple(row[column] for column in KEY): Foretold(
                unseen_model=float(row["unseen_model"]), unseen_device=float(row["unseen_device"]),
                unseen_source=float(row["unseen_source"]), unseen_class=float(row["unseen_class"]),
            )
            for row in csv.DictReader(file)
        }  # fmt: skip


def published_row(one: MeasuredQuantity) -> PublishedRow:
    """A measured quantity beside its prediction."""
    row, predicted = one.row, one.predicted_value()
    seen = foretold().get(key_of(row)) if one.quantity in ("seconds", "joules") else None
    if seen is not None and one.cost is not None and one.quantity == "joules":
        _, watts = one.seconds_and_watts(one.cost)
        seen = Foretold(**{name: watts * seconds for name, seconds in vars(seen).items()})
    return PublishedRow(
        device=row.device, processor=one.device.processor_class, model=row.model, trained=row.trained, batch=row.batch,
        precision=row.precision, runtime=row.framework, quantity=one.quantity, measured=one.measured_value,
        predicted=predicted, ratio=None if predicted is None else predicted / one.measured_value, half=row.half,
        includes=row.includes, reason=one.reason,
        foretold=seen, source=Sourced(**row.source.model_dump(mode="json")),
    )  # fmt: skip


def published_agreement(rows: Sequence[PublishedRow]) -> PublishedAgreement:
    """These rows with what their seconds say: agreement by question, by device and by source."""
    seconds = [row for row in rows if row.quantity == "seconds" and row.ratio is not None]
    questions = []
    for unseen in get_args(Unseen):
        known = _agreement(*_foretold(seconds, unseen))
        if known is not None:
            questions.append(HeldOutAgreement(**vars(known), unseen=unseen))
    shipped = _agreement(seconds, [row.ratio * row.measured for row in seconds if row.ratio is not None])
    joules = [row for row in rows if row.quantity == "joules"]
    return PublishedAgreement(
        rows=rows, questions=questions, shipped=shipped or UNSET,
        joules=_agreement(*_foretold(joules, "device")) or UNSET, joules_by_device=list(_joules_by_device(rows)),
        by_device=_groups(seconds, lambda row: row.device, "device"),
        by_source=_groups(seconds, source_of, "source"),
    )  # fmt: skip


def _joules_by_device(rows: Sequence[PublishedRow]) -> Iterator[JoulesAgreement]:
    for name in dict.fromkeys(row.device for row in rows if row.quantity == "joules"):
        of = [row for row in rows if row.device == name]
        known = _agreement(*_foretold([row for row in of if row.quantity == "joules"], "device"))
        off = [abs(log(row.ratio)) for row in of if row.quantity == "power" and row.ratio]
        if known is not None and off:
            yield JoulesAgreement(**vars(known), name=name, watts_factor=exp(fmean(off)))


def _foretold(rows: Sequence[PublishedRow], unseen: Unseen) -> tuple[list[PublishedRow], list[float]]:
    """The rows that fits without them predict, of ``model`` those of the held-out half, and what they predict."""
    asked = [
        (row, float(getattr(row.foretold, f"unseen_{unseen}")))
        for row in rows
        if row.foretold is not None and (unseen != "model" or row.half == "held-out")
    ]
    return [row for row, _ in asked], [predicted for _, predicted in asked]


def _agreement(rows: Sequence[PublishedRow], predicted: Sequence[float]) -> Agreement | None:
    if not rows:
        return None
    clusters = [(row.device, source_of(row)) for row in rows]
    return agreement([row.measured for row in rows], predicted, clusters, len({row.device for row in rows}))


def _groups(rows: Sequence[PublishedRow], name: Callable[[PublishedRow], str], unseen: Unseen) -> list[PublishedGroup]:
    def error(of: Sequence[PublishedRow], by: Unseen) -> float | None:
        found = [
            abs(getattr(row.foretold, f"unseen_{by}") / row.measured - 1) for row in of if row.foretold is not None
        ]
        return median(found) if len(found) == len(of) else None

    groups = {each: [row for row in rows if name(row) == each] for each in dict.fromkeys(map(name, rows))}
    return [
        PublishedGroup(
            name=each, rows=len(of), shipped_error=median(abs(row.ratio - 1) for row in of if row.ratio is not None),
            unseen_model_error=error(of, "model"), unseen_error=error(of, unseen),
        )
        for each, of in groups.items()
    ]  # fmt: skip
