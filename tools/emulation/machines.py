"""The machines of an emulation: what can be emulated, which clients, and the cores, lines and limits that they get."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf, isfinite

import numpy as np
import psutil
from numpy.typing import ArrayLike

from edgefl import units
from edgefl.arrays import Booleans, Floats
from edgefl.devices import Device, FailureOptions, Fleet
from edgefl.devices.availability import Always
from edgefl.devices.fleet import apportion
from edgefl.planning.setup import Setup
from edgefl.scenario import Scenario
from tools.emulation.emulator import EmulatedClient
from tools.emulation.kernel import EmulationError
from tools.emulation.limits import LEAST_SHARE
from tools.emulation.links import MOST_OTHERS, UNLIMITED, Rates

SCHEDULES = ("end-to-end", "layerwise", "progressive")
SELECTIONS = ("random", "round-robin")


def check_scope(scenario: Scenario, setup: Setup) -> None:
    """Raise EmulationError for a scenario with something that only the simulation plays."""
    if refused := next(_refusal_reasons(scenario, setup), None):
        raise EmulationError(f"{scenario.name}: {refused}")


def _refusal_reasons(scenario: Scenario, setup: Setup) -> Iterator[str]:
    fleet = scenario.fleet
    if scenario.compare:
        yield "an emulation plays one scenario, and this one compares several: --set compare=null"
    if scenario.training.mode != "real":
        yield "an emulation trains: leave out training.mode"
    if not scenario.round.build_policy().waits_for_all:
        yield f"only synchronous rounds are emulated, not round.policy: {scenario.round.policy_name}"
    if scenario.round.over_selection:
        yield "round.over_selection isn't emulated: leave it out"
    if scenario.schedule_name not in SCHEDULES:
        yield f"schedule {scenario.schedule_name} isn't emulated: {', '.join(SCHEDULES)} are"
    if scenario.round.selection_name not in SELECTIONS:
        yield f"selection {scenario.round.selection_name} isn't emulated: {', '.join(SELECTIONS)} are"
    if scenario.executor.device_type == "cuda":
        yield "clients are emulated on processors, not on GPUs: --set executor.device=cpu"
    if scenario.evaluation.clients:
        yield "evaluation.clients isn't emulated: leave it out"
    if fleet.availability != "always" or fleet.battery is not None or fleet.throttling:
        yield "availability, battery and throttling aren't emulated: leave them out"
    if fleet.failures != FailureOptions():
        yield "fleet.failures aren't emulated: leave them out"
    if fleet.relays is not None:
        yield "fleet.relays aren't emulated: leave them out"
    if fleet.server_link is not None and fleet.server_link.sharing != "fair":
        yield "a server's link is emulated with sharing: fair only"
    if fleet.server_link is not None and fleet.server_link.others[0] > MOST_OTHERS:
        yield f"fleet.server_link.background: {MOST_OTHERS} flows at most are emulated"
    if scenario.payload.codecs() != (None, None):
        yield "encoded payloads aren't emulated: leave out payload"
    if any(not isfinite(link.download_goodput + link.upload_goodput) for link in setup.fleet.links):
        yield "a link without a finite rate isn't emulated"


MOST_SHARE = 0.95
"""The largest share of a core that clients get: the rest is the server's, and the kernel's for their links.

A choice, not measured: with all of a core clients wait for the server, and emulated seconds exceed the simulated ones.
"""
PROCESS_BYTES = 500 << 20
"""Memory of a client's process before its work: Python and torch (220 MiB), and an allowance for the data.

Nothing is limited by it: with less, clients are begun for which the machine has no memory.
"""


class Only(Always):
    """An availability in which only these clients ever take part, `[clients]` ascending."""

    def __init__(self, chosen: tuple[int, ...]):
        super().__init__()
        self.chosen = chosen

    def available(self, clients: object, at: object) -> Booleans:
        """Whether each client is one of the chosen ones: `[clients]`."""
        return np.isin(np.asarray(clients), self.chosen)


@dataclass(frozen=True)
class SlowedFleet(Fleet):
    """A fleet on which computing takes ``factors`` times as long as predicted, by dispatch and client."""

    factors: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def jitter(self, seed: int, round: int, clients: ArrayLike) -> Floats:
        """The factors of computing in this dispatch, 1 where none is known; transfers take what they take."""
        rows = np.asarray(clients, dtype=np.int64)
        ones = np.ones(len(rows))
        return np.stack([ones, np.array([self.factors.get((round, row), 1.0) for row in rows.tolist()]), ones])


def with_measured_compute(setup: Setup, factors: Mapping[tuple[int, int], float]) -> Setup:
    """The setup with a fleet whose computing takes what was measured: these factors on what is predicted."""
    fleet = setup.fleet
    known = {each.name: getattr(fleet, each.name) for each in fields(Fleet)}
    return replace(setup, fleet=SlowedFleet(**known, factors=factors))


def chosen_clients(setup: Setup, count: int | None) -> tuple[int, ...]:
    """The first clients of each kind, ``count`` in all and of each kind its share; all where it is None.

    Raises EmulationError for more than there are.
    """
    members = {kind: setup.of_kind(kind) for kind in setup.clients.kinds}
    total = sum(map(len, members.values()))
    if count is None or count == total:
        return tuple(range(total))
    if not 1 <= count <= total:
        raise EmulationError(f"--clients {count}: the scenario has {total} clients; give 1 to {total}")
    counts = apportion({kind: len(clients) / total for kind, clients in members.items()}, count)
    return tuple(sorted(int(client) for kind, n in counts.items() for client in members[kind][:n]))


def shares_of(setup: Setup, clients: Sequence[int], here: Device) -> dict[int, float]:
    """Shares of one processor by index of the device: a client's sustained rate over that of this machine's core.

    Raises EmulationError for a device that is faster than a core, or too slow to be emulated.
    """
    shares = {}
    for index in sorted({int(setup.fleet.device_index[client]) for client in clients}):
        device = setup.fleet.devices[index]
        share = device.flops_per_second / here.flops_per_second
        rate, own = units.show_rate(device.flops_per_second), units.show_rate(here.flops_per_second)
        if share > MOST_SHARE:
            raise EmulationError(
                f"{device.name} computes at {rate}, a core of this machine at {own}: a client gets at most "
                f"{units.show_share(MOST_SHARE)} of a core; choose slower devices (--set fleet.devices=...)"
            )
        if share < LEAST_SHARE:
            raise EmulationError(
                f"{device.name} computes at {rate}, a core of this machine at {own}: the kernel gives no less than "
                f"{units.show_share(LEAST_SHARE)} of a core; choose faster devices (--set fleet.devices=...)"
            )
        shares[index] = share
    return shares


def cores_of(setup: Setup, clients: Sequence[int], shares: Mapping[int, float], peaks: Sequence[int]) -> dict[int, int]:
    """The core of each client; ``peaks`` are the predicted bytes of their works at their peaks.

    Raises EmulationError if this machine doesn't bear all these clients at work at the same time.
    """
    wanted = [shares[int(setup.fleet.device_index[client])] for client in clients]
    free = dict.fromkeys(sorted(os.sched_getaffinity(0)), MOST_SHARE)
    placed: dict[int, int] = {}
    # first fit, largest first
    for client, share in sorted(zip(clients, wanted, strict=True), key=lambda each: (-each[1], each[0])):
        core = next((core for core, left in free.items() if share <= left + 1e-9), None)
        if core is None:
            raise EmulationError(
                f"{len(clients)} clients need {sum(wanted):.2f} cores at the same time, and this machine has "
                f"{len(free)}, of each of which they may use {units.show_share(MOST_SHARE)}: it bears about "
                f"{len(placed)} of them (--clients)"
            )
        free[core] -= share
        placed[client] = core
    needed = np.cumsum([PROCESS_BYTES + peak for peak in peaks])
    available = psutil.virtual_memory().available
    if needed[-1] > available:
        raise EmulationError(
            f"{len(clients)} clients need {units.show_bytes(int(needed[-1]))} of memory, and "
            f"{units.show_bytes(available)} are free: this machine bears about "
            f"{int(np.searchsorted(needed, available, side='right'))} of them (--clients)"
        )
    return placed


def machines_of(setup: Setup, cores: Mapping[int, int], shares: Mapping[int, float]) -> list[EmulatedClient]:
    """What each client gets: its device's share of its core, its memory budget and its link.

    Raises EmulationError for a device whose memory its runtime takes whole.
    """
    fleet = setup.fleet
    for client in sorted(cores):
        if fleet.budgets["memory"][client] <= 0:
            raise EmulationError(
                f"{fleet.device(client).name} has no memory left for tensors beside its runtime: choose other devices "
                "(--set fleet.devices=...) or give a budget (--set fleet.budgets.memory=..., "
                "fleet.budgets.within_device=false)"
            )
    return [
        EmulatedClient(
            client,
            core,
            shares[int(fleet.device_index[client])],
            float(fleet.budgets["memory"][client]),
            Rates(fleet.link(client).download_goodput, fleet.link(client).upload_goodput),
            fleet.link(client).latency_seconds,
        )
        for client, core in sorted(cores.items())
    ]


def line_of(fleet: Fleet) -> tuple[Rates, tuple[int, float]]:
    """The rates of the server's own line, and the number and highest rate of others' transfers on it."""
    line = fleet.server_link
    return (UNLIMITED, (0, inf)) if line is None else (Rates(line.download, line.upload), line.others)


def at_share(device: Device, core: Device, share: float) -> Device:
    """A device as this machine emulates it: its memory and name, and the rates of ``core`` as far as its share goes.

    Its watts are the profile's, because joules can't be measured so; models are in memory already.
    """
    return replace(
        device,
        flops_per_second=core.flops_per_second * share,
        peak_flops_per_second=core.peak_flops_per_second * share,
        memory_bytes_per_second=core.memory_bytes_per_second * share,
        seconds_per_operator=core.seconds_per_operator / share,
        processor=core.processor,
        processor_class=None,
        tf32_flops_per_second=None,
        float16_flops_per_second=None,
        bfloat16_flops_per_second=None,
        storage_bytes_per_second=inf,
        jitter=0.0,
    )


def emulated_setup(setup: Setup, clients: Sequence[int], devices: Mapping[int, Device]) -> Setup:
    """The setup of which both the simulation and the emulation play ``clients``: these devices, links without jitter.

    No work is metered, as the meter takes longer than the step that it measures.
    """
    fleet = setup.fleet
    links = tuple(replace(link, jitter=0.0) for link in fleet.links)
    known = tuple(devices.get(index, device) for index, device in enumerate(fleet.devices))
    fleet = replace(fleet, devices=known, links=links, availability=Only(tuple(clients)))
    return replace(setup, fleet=fleet, measure="none")
