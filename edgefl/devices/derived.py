"""Figures computed from a profile's numbers, for comparing devices and links."""

from __future__ import annotations

from math import inf

from edgefl.devices.profile import Device, Link
from edgefl.devices.runtime import available_memory_bytes

BITS_PER_MEGABYTE = 8e6
"""Of 10^6 bytes, as rates of links are decimal too."""


def derived_of_device(device: Device) -> dict[str, float]:
    """Figures computed from a device's numbers, in base units.

    ``flops_per_joule`` and ``bytes_per_flop`` use the sustained float32 rate; work with more bytes per FLOP is bound
    by memory bandwidth. ``battery_seconds`` is how long a full battery can power computing. Figures that a device
    doesn't have are left out, such as ``battery_seconds`` on mains power.
    """
    figures = {
        "flops_per_joule": device.flops_per_second / device.compute_watts,
        "bytes_per_flop": device.memory_bytes_per_second / device.flops_per_second,
        "sustained_share_of_peak": device.flops_per_second / device.peak_flops_per_second,
        "available_memory_bytes": float(available_memory_bytes(device)),
    }
    if device.storage_bytes_per_second < inf:
        figures["seconds_to_load_a_gigabyte"] = 1e9 / device.storage_bytes_per_second
    if device.throttle_after_seconds < inf:
        figures["flops_per_second_hot"] = device.flops_per_second * device.throttled_share
    if device.battery_joules is not None:
        figures["battery_seconds"] = device.battery_joules / device.compute_watts
    return figures


def derived_of_link(link: Link) -> dict[str, float]:
    """For download and upload: goodput in bits per second, and seconds and joules per megabyte (10^6 bytes)."""
    figures: dict[str, float] = {}
    for direction, goodput, watts in (
        ("download", link.download_goodput, link.download_watts),
        ("upload", link.upload_goodput, link.upload_watts),
    ):
        seconds = BITS_PER_MEGABYTE / goodput
        figures[f"{direction}_goodput_bits_per_second"] = goodput
        figures[f"{direction}_seconds_per_megabyte"] = seconds
        figures[f"{direction}_joules_per_megabyte"] = seconds * watts
    return figures
