"""Devices, links, budgets, availability and batteries of the clients. Numbers come from the profile library."""

from edgefl.devices.availability import Availability, availability_of
from edgefl.devices.availability_options import AvailabilityOptions
from edgefl.devices.battery import Batteries, BatteryOptions
from edgefl.devices.budgets import Budget, Price
from edgefl.devices.derived import derived_of_device, derived_of_link
from edgefl.devices.failures import FailureOptions, Failures, draw_failures
from edgefl.devices.fleet import Fleet, apportion
from edgefl.devices.fleet_profile import FleetProfile, fleet_names, fleet_profile, read_fleet
from edgefl.devices.options import BudgetOptions, FleetOptions, RelayOptions, ServerLinkOptions
from edgefl.devices.profile import (
    DEVICE_TYPES,
    PRECISIONS,
    Device,
    DeviceType,
    Hardware,
    Link,
    device_names,
    is_file_name,
    link_names,
    load_device,
    load_link,
    read_device,
    read_link,
)
from edgefl.devices.relays import Relays
from edgefl.devices.runtime import (
    PYTORCH,
    Runtime,
    RuntimeChoice,
    available_memory_bytes,
    free_memory_bytes,
    free_memory_range,
    load_runtime,
    read_runtime,
    runtime_names,
    runtime_range,
    show_overhead,
    show_runtime,
    with_runtime,
)
from edgefl.devices.written_facts import Fact, FactSource, library_folder, profile_keys

__all__ = [
    "Availability", "AvailabilityOptions", "Batteries", "BatteryOptions", "Budget", "BudgetOptions", "DEVICE_TYPES",
    "Device", "DeviceType", "Fact", "FailureOptions", "Failures", "Fleet", "FleetOptions", "FleetProfile", "Hardware",
    "Link", "PRECISIONS", "PYTORCH", "Price", "RelayOptions", "Relays", "Runtime", "RuntimeChoice",
    "ServerLinkOptions", "FactSource", "apportion",
    "availability_of", "available_memory_bytes", "derived_of_device", "derived_of_link", "load_device",
    "device_names", "draw_failures", "fleet_names", "fleet_profile", "free_memory_bytes",
    "free_memory_range", "is_file_name",
    "library_folder", "load_link", "load_runtime", "link_names", "profile_keys", "read_device", "read_fleet",
    "read_link", "read_runtime", "runtime_names", "runtime_range", "show_overhead", "show_runtime", "with_runtime",
]  # fmt: skip
