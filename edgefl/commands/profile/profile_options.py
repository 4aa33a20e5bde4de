"""What a profile is limited to, and what prices it."""

from __future__ import annotations

from dataclasses import dataclass

from edgefl.devices import Device, Link, load_device, load_link
from edgefl.devices.fleet import with_runtime_and_pace
from edgefl.planning.setup import Setup
from edgefl.schedules import Stage
from edgefl.setup.compose import commonest_device, commonest_link


@dataclass(frozen=True)
class ProfileOptions:
    """The device and link that price a profile, the stage and kind that it is limited to, and whether it has clients.

    None means the fleet's most common device or link, and every stage or kind.
    """

    device: str | None = None
    link: str | None = None
    stage: int | None = None
    kind: str | None = None
    clients: bool = False

    def kinds_of(self, setup: Setup) -> list[str]:
        """The kinds of clients that a profile shows."""
        return [kind for kind in setup.clients.kinds if self.kind in (None, kind)]

    def stages_of(self, setup: Setup) -> list[Stage]:
        """The stages that a profile shows."""
        return [stage for stage in setup.schedule.offered if self.stage in (None, stage.index)]

    def device_of(self, setup: Setup) -> Device:
        """The device, with the runtime of the fleet."""
        return (
            with_runtime_and_pace(load_device(self.device), setup.fleet.runtime, setup.fleet.pace_seed)
            if self.device
            else commonest_device(setup.fleet)
        )

    def link_of(self, setup: Setup) -> Link:
        """The link."""
        return load_link(self.link) if self.link else commonest_link(setup.fleet)
