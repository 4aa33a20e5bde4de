"""``edgefl explore --devices``: the library's devices, and with which choices each can train the scenario."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from edgefl.commands.sweep.on_devices import check_devices
from edgefl.commands.sweep.page.asked import prepare_request, write_page
from edgefl.commands.sweep.page.fleet_rows import named_devices
from edgefl.devices import Device, available_memory_bytes, device_names, load_device, with_runtime
from edgefl.drawing.sliders import page_of
from edgefl.drawing.sliders.page_data import CheckedCell, DeviceAnswer, DeviceLine, ExploredDevices
from edgefl.records.record import UNSET
from edgefl.runs.progress import OnProgress, silent
from edgefl.scenario import Scenario
from edgefl.setup.compose import Given
from edgefl.setup.progress import public_command


@public_command
def explore_devices(
    scenario: Given,
    axes: Sequence[str] = (),
    *,
    overrides: Sequence[str] = (),
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = silent,
    progress: bool = False,
) -> ExploredDevices:
    """Check every device of the library under every combination of choices, as ``edgefl.check_devices`` does.

    Args:
        scenario: A scenario file, the name of a shipped scenario, or a scenario as a dictionary.
        axes: Fields with the values to choose from, as for ``edgefl.explore``.
        overrides: Changes of single fields, ``"training.lr=1e-3"``.
        out: The page, a file that ends in .html; by default none is written.
        jobs: How many combinations are priced side by side, each in a process; by default one for each core, as far as
            there is memory.
        on_progress: Called with the name of an event and its facts.
        progress: Whether to show a bar, by tqdm or rich, whichever is installed.

    Returns:
        A record: ``lines``, a device and a kind each, and ``cells`` with an answer for each line.

    Raises:
        ScenarioError: The scenario or a value is invalid, or there are too many combinations; or none can be run.
        DeviceError: A profile is invalid.
        RunError: The page can't be written, or would be too large.
    """
    asked = prepare_request(scenario, axes, overrides, out, jobs, on_progress)
    found = list(asked.outcomes(_check_cell))
    answers = [{} if isinstance(each, str) else each.answers for each in found]
    link = next(each.link for each in found if not isinstance(each, str))
    devices = {device.name: device for device in (with_runtime(load_device(name), asked.whole.fleet.runtime)
                                                  for name in device_names())}  # fmt: skip
    order = {name: place for place, name in enumerate(sorted(devices, key=lambda name: _size(devices[name])))}
    lines = sorted({line for each in answers for line in each}, key=lambda line: (order[line[0]], line[1]))
    shown = list(dict.fromkeys(name for name, _ in lines))
    result = ExploredDevices(
        **vars(asked.head()),
        link=link,
        devices=named_devices([devices[name] for name in shown]),
        lines=[DeviceLine(device=shown.index(name), kind=kind) for name, kind in lines],
        cells=[
            CheckedCell(
                **vars(head),
                answers=[each.get(line) for line in lines],
                refused=cell if isinstance(cell, str) else UNSET,
            )
            for head, cell, each in zip(asked.cells(), found, answers, strict=True)
        ],
    )
    if out is not None:
        write_page(page_of(result), Path(out), asked.cell_count_text(f"{len(lines):,} rows"))
        on_progress("done", {"folder": str(out)})
    return result


def _size(device: Device) -> tuple[int, str]:
    return available_memory_bytes(device), device.name


# --- in a worker -----------------------------------------------------------------------------------------------------


class _Checked(NamedTuple):
    """The answers of a cell, by device and kind, and the link."""

    answers: dict[tuple[str, str], DeviceAnswer]
    link: str


def _check_cell(scenario: Scenario, on_progress: OnProgress) -> _Checked:
    """The answers for a cell's scenario; in a worker process, or in this one."""
    check = check_devices(scenario, jobs=1)
    answers = {
        (row.device, row.whose): DeviceAnswer(
            answer=row.answer,
            reason=row.reason,
            binding=row.binding,
            peak_memory_bytes=row.peak_memory_bytes,
            virtual_seconds=row.virtual_seconds,
            energy_joules=row.energy_joules,
            stages=row.stages,
            eligible_stages=row.eligible_stages,
        )
        for row in check.rows
    }
    return _Checked(answers, check.link)
