"""``edgefl sweep --page --devices``: with which choices each device can train the scenario, as a page has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgefl.commands.sweep.answer import DeviceCheck, DeviceCheckRow
from edgefl.commands.sweep.on_devices import devices_named
from edgefl.commands.sweep.page.asked import PageRequest
from edgefl.commands.sweep.page.fleet_rows import named_devices
from edgefl.devices import Device, available_memory_bytes, with_runtime
from edgefl.drawing.sliders.page_data import CheckedCell, DeviceAnswer, DeviceChoices, DeviceLine
from edgefl.records.record import UNSET, copy_fields


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
