"""The page that ``edgefl sweep --page`` writes: of the scenario's fleet, or with ``--devices`` of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from edgefl.cells.pricing import most_jobs
from edgefl.commands.sweep.answer import DeviceCheck, DeviceCheckRow
from edgefl.commands.sweep.on_devices import devices_named
from edgefl.commands.sweep.page.asked import PageRequest
from edgefl.commands.sweep.page.of_fleet import page_of_fleet
from edgefl.devices import Device, available_memory_bytes, with_runtime
from edgefl.drawing.sliders import page_of
from edgefl.drawing.sliders.page_data import CheckedCell, DeviceAnswer, DeviceChoices, DeviceLine, FleetSliders
from edgefl.drawing.sliders.words import named_devices
from edgefl.errors import RunError
from edgefl.records.record import UNSET, copy_fields
from edgefl.runs.durable import replace_file
from edgefl.runs.progress import OnProgress

MOST_BYTES = 32_000_000
"""Bytes of a page. A choice, not measured: a million clients take 2.6 MB, and a browser reads all before it draws."""


def write_page(
    asked: PageRequest,
    path: Path,
    refused: dict[str, str],
    checks: Mapping[str, DeviceCheck],
    devices: Sequence[str],
    jobs: int | None,
    on_progress: OnProgress,
) -> None:
    """Write the page of these devices, whose ``checks`` are by label, or else of the fleet, whole or not at all.

    ``refused`` gets why cells can't be run.  Raises RunError if the page is too large or can't be written.
    """
    page: FleetSliders | DeviceChoices
    if devices:
        page = page_of_devices(asked, checks, refused, devices)
        what = f"{len(page.lines):,} rows"
    else:
        page = page_of_fleet(asked, refused, most_jobs() if jobs is None else jobs, on_progress)
        what = f"{max(fleet.clients for fleet in page.fleets):,} clients"
    content = page_of(page).encode()
    if len(content) > MOST_BYTES:
        cells = len(page.cells)
        raise RunError(
            f"the page would have {len(content) / 1e6:,.0f} MB for {cells:,} cell{'s' if cells > 1 else ''} of {what}; "
            f"{MOST_BYTES / 1e6:,.0f} MB are the most: leave values out of --vary"
        )
    replace_file(path, content)


def page_of_devices(
    asked: PageRequest, checks: Mapping[str, DeviceCheck], refused: Mapping[str, str], names: Sequence[str]
) -> DeviceChoices:
    """The answers of each device under every combination of choices; ``checks`` and ``refused`` are by label."""
    answers = {label: {(row.device, row.whose): _answer(row) for row in check.rows} for label, check in checks.items()}
    known = {device.name: with_runtime(device, asked.whole.fleet.runtime) for device in devices_named(names)}
    order = {name: place for place, name in enumerate(sorted(known, key=lambda name: _size(known[name])))}
    lines = sorted({line for each in answers.values() for line in each}, key=lambda line: (order[line[0]], line[1]))
    shown = list(dict.fromkeys(name for name, _ in lines))
    return DeviceChoices(
        **vars(asked.head()),
        link=" or ".join(dict.fromkeys(check.link for check in checks.values())),
        devices=named_devices([known[name] for name in shown]),
        lines=[DeviceLine(device=shown.index(name), kind=kind) for name, kind in lines],
        cells=[
            CheckedCell(
                **vars(head),
                answers=[answers.get(head.label, {}).get(line) for line in lines],
                refused=refused.get(head.label, UNSET),
            )
            for head in asked.cells()
        ],
    )


def _size(device: Device) -> tuple[int, str]:
    return available_memory_bytes(device), device.name


def _answer(row: DeviceCheckRow) -> DeviceAnswer:
    return DeviceAnswer(**copy_fields(DeviceAnswer, row))
