"""What a client has: a device, a link and the budgets of its owner. Numbers come from the profile library."""

from edgefl.devices.fleet import BudgetOptions, Fleet, FleetOptions, apportion
from edgefl.devices.profile import (
    Device,
    Fact,
    Link,
    Source,
    device,
    device_names,
    library_folder,
    link,
    link_names,
    read_device,
    read_link,
)

__all__ = [
    "BudgetOptions",
    "Device",
    "Fact",
    "Fleet",
    "FleetOptions",
    "Link",
    "Source",
    "apportion",
    "device",
    "device_names",
    "library_folder",
    "link",
    "link_names",
    "read_device",
    "read_link",
]
