"""Profiles, clients of a fleet, devices of the library, comparisons and cost differences as tables, CSV and figures."""

from edgefl.report.profile.clients import print_clients
from edgefl.report.profile.comparing import print_compared_profiles, print_cost_difference
from edgefl.report.profile.devices import draw_device_check, print_device_check
from edgefl.report.profile.opening import print_profile
from edgefl.report.profile.spreadsheet import flat, profile_csv

__all__ = [
    "draw_device_check",
    "flat",
    "print_clients",
    "print_compared_profiles",
    "print_cost_difference",
    "print_device_check",
    "print_profile",
    "profile_csv",
]
