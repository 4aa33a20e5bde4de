"""What pages call axes, their choices, budgets, devices and links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgefl.devices import Device, Link, available_memory_bytes
from edgefl.devices.budgets import budget_named, field_of
from edgefl.drawing.sliders.page_data import Choice, NamedDevice, NamedLink, SliderAxis, SliderBudget

SWITCHES = {"true": "on", "false": "off"}


@dataclass(frozen=True)
class Titled:
    """An axis and its choices in words, and what each choice is in a scenario."""

    title: str
    choices: Sequence[str]


def title_axes(axes: Sequence[SliderAxis]) -> list[Titled]:
    """An axis is called by the last part of its path, or by the whole where two end alike."""
    lasts = [_last(axis.path) for axis in axes]
    titles = [
        axis.path if lasts.count(last) > 1 else last.replace("_", " ") for axis, last in zip(axes, lasts, strict=True)
    ]
    return [
        Titled(title, [_choice(axis, choice) for choice in axis.choices])
        for title, axis in zip(titles, axes, strict=True)
    ]


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _choice(axis: SliderAxis, choice: Choice) -> str:
    """A choice's label without its axis' name before it: ``image 40, text 60`` of ``batch=image=40+text=60``."""
    label = choice.label
    for name in (axis.path, _last(axis.path)):
        label = label.removeprefix(f"{name}=")
    return SWITCHES.get(label) or label.replace("+", ", ").replace("=", " ")


def budget_of(name: str, least: float, most: float) -> SliderBudget:
    """A budget of which the cheapest and the most expensive client take this much."""
    budget = budget_named(name)
    return SliderBudget(
        name=name, path=f"fleet.budgets.{field_of(name)}", noun=budget.noun, unit=budget.quantity.unit,
        whole=budget.quantity.whole, least=least, most=most,
    )  # fmt: skip


def named_devices(devices: Sequence[Device]) -> list[NamedDevice]:
    """Devices with the memory that they have."""
    return [
        NamedDevice(
            name=device.name,
            title=device.title,
            ram_bytes=device.ram_bytes,
            runtime_overhead_bytes=device.runtime_overhead_bytes,
            available_memory_bytes=available_memory_bytes(device),
        )
        for device in devices
    ]


def named_links(links: Sequence[Link]) -> list[NamedLink]:
    """The links, each with the name by which a page and its command call it."""
    return [NamedLink(name=link.name, title=link.title, capped=link.capped) for link in links]
