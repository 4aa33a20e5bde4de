"""Play a scenario with clients as processes under the kernel's limits, and hold it against the simulation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Literal

import numpy as np

from edgefl import registry, units
from edgefl.cells.needs import check
from edgefl.data import Federation
from edgefl.deployment.real_run import create_run, play
from edgefl.devices import Device
from edgefl.errors import RunError
from edgefl.machine import host
from edgefl.machine.microbenchmarks import calibrate_here
from edgefl.planning.planner import Planner, WorkKey
from edgefl.planning.setup import Setup
from edgefl.records.clients import FlightRecord
from edgefl.records.record import Record, part_of
from edgefl.runs import Run, read_run
from edgefl.runs.durable import replace_file
from edgefl.runs.folders import free_folder, json_text, new_folder
from edgefl.runs.progress import OnProgress, messages, silent
from edgefl.scenario import Scenario, load
from edgefl.setup.compose import Given, federation_of, predictor_of, scenario_of
from edgefl.simulation.closed_form import Flights, Landings
from edgefl.simulation.real_flights import land_real_flights
from edgefl.training import Executor
from tools.emulation.answer import ClientRound, EmulatedDevice, EmulatedFlight, Emulation, EmulationHost, PhaseError
from tools.emulation.client_process import Data
from tools.emulation.emulator import EmulatedRound, Emulator
from tools.emulation.kernel import check as check_kernel
from tools.emulation.machines import (
    at_share,
    check_scope,
    chosen_clients,
    cores_of,
    emulated_setup,
    line_of,
    machines_of,
    shares_of,
    with_measured_compute,
)
from tools.emulation.rates import TimedWork, fit_device, timed_works

CALIBRATION_SECONDS = 3.5
"""CPU seconds of a calibration by operators, which take longer by the quota: a device of a tenth of a core waits 35 s.

A choice, not measured: the works that are timed afterwards correct it, so that less would mostly do.
"""

REHEARSALS, WORKS_SECONDS = 3, 60.0
"""How often the works of each stage are timed under the quotas, and the wall seconds after which no more are.

A choice, not measured: the clients of a stage wait for the slowest each time, so that a weak device would take minutes.
"""


def emulate(
    scenario: Given,
    overrides: Sequence[str] = (),
    *,
    clients: int | None = None,
    rounds: int | None = None,
    out: str | os.PathLike[str] | None = None,
    calibration: Literal["works", "operators"] = "works",
    on_progress: OnProgress = silent,
) -> Emulation:
    """Play a scenario with clients as processes under limits that this machine's kernel enforces.

    Each client has a network namespace with a shaped link, a share of one processor and a memory limit; it needs
    Linux and root.  The same scenario is simulated with this machine's rates under the same quotas, and both are held
    against each other.

    Args:
        scenario: A scenario file, the name of a shipped scenario, or a scenario as a dictionary.
        overrides: Changes of single fields, as the option ``--set`` takes them.
        clients: Emulate so many of the scenario's clients, of each kind its share; by default all.
        rounds: Play the first rounds only; by default all.
        out: A new or empty folder for the run folders ``emulated``, ``simulated`` and ``replayed`` (simulated with
            the measured seconds of computing); by default ``runs/NAME-emulated``, or the first of
            ``runs/NAME-emulated-2``, ... that is free.
        calibration: What the simulation's rates are measured with: ``"works"`` of the scenario, or ``"operators"``,
            the microbenchmarks of ``edgefl.calibrate``.
        on_progress: Called with the name of an event and its facts.

    Returns:
        ``folder``, ``machine``, ``devices`` (each with its share of a core and the rates measured under it),
        ``client_rounds`` (a row for each, simulated and emulated seconds) and ``errors`` (median and worst of
        |simulated / emulated - 1| by phase).

    Raises:
        EmulationError: This machine lacks something, doesn't bear so many clients, or the scenario has a part that
            isn't emulated.  Also what ``edgefl.run`` raises.
    """
    check_kernel()
    whole = scenario_of(scenario, overrides)
    if whole.fleet.server_link is not None:
        check_kernel(line=True)
    on_message = messages(on_progress)
    setup = check(whole, on_message, Path(out) if out is not None else Path("runs"))
    check_scope(whole, setup)
    if rounds is not None and not 1 <= rounds <= setup.schedule.rounds:
        raise RunError(f"--rounds {rounds}: the scenario has {setup.schedule.rounds} rounds")
    chosen = chosen_clients(setup, clients)
    on_message("measuring a core of this machine")
    here = calibrate_here(CALIBRATION_SECONDS)
    shares = shares_of(setup, chosen, here)
    predictor = predictor_of(whole)
    planner = Planner(setup, predictor)
    machines = machines_of(setup, cores_of(setup, chosen, shares, _peaks(setup, planner, chosen)), shares)
    federation = federation_of(whole, on_message)
    works = timed_works(setup, planner, chosen, federation, on_message) if calibration == "works" else {}
    data = Data(
        whole.data.model_dump_json(), whole.seed, whole.model.tokens, None, whole.evaluation.clients,
        registry.for_workers(),
    )  # fmt: skip
    new = new_folder(out) if out is not None else free_folder(f"{whole.name}-emulated")
    folder = new.path
    on_message(f"starting {len(chosen)} clients")
    with Emulator(federation, data, machines, *line_of(setup.fleet)) as emulator:
        if calibration == "works":
            rates = _by_works(setup, chosen, shares, emulator, here, works, on_message)
        else:
            rates = _by_operators(setup, chosen, shares, emulator, here, on_message)
        devices = {index: at_share(setup.fleet.devices[index], *rate) for index, rate in rates.items()}
        played = emulated_setup(setup, chosen, devices)
        on_message("simulating")
        untrained = load(whole.to_data(), ["training.mode=none"])
        simulated = _play(folder / "simulated", untrained, played, None, None, rounds, federation, silent)
        flown: list[tuple[int, EmulatedRound]] = []
        factors: dict[tuple[int, int], float] = {}
        landing = _landing(emulator, flown, factors, whole.round.deadline)
        on_progress("combination", {"label": "emulated", "index": 0, "of": 1})
        emulated = _play(folder / "emulated", whole, played, emulator, landing, rounds, federation, on_progress)
    timed = with_measured_compute(played, factors)
    replayed = _play(folder / "replayed", untrained, timed, None, None, rounds, federation, silent)
    fleet = setup.fleet
    who = {each.client: (fleet.device(each.client).name, fleet.link(each.client).name, each.share) for each in machines}
    processor = {(round, each.client): each.cpu_seconds for round, each in flown}
    rows = rows_of(*(run.read(PhasesOfFlight) for run in (simulated, emulated, replayed)), who=who, processor=processor)
    answer = Emulation(
        folder=str(folder),
        machine=EmulationHost(processor=host.model_name(), cores=os.cpu_count(), system=host.platform_name()),
        calibration=calibration,
        devices={devices[index].name: _device_told(shares[index], had, core) for index, (core, had) in rates.items()},
        client_rounds=rows,
        errors=errors_of(rows),
        flights=[_emulated_flight(round, each) for round, each in flown],
    )
    replace_file(folder / "emulation.json", json_text(answer.to_data()))
    new.close()
    on_progress("done", {"folder": str(folder)})
    return answer


def _peaks(setup: Setup, planner: Planner, clients: Sequence[int]) -> list[int]:
    """Predicted peak memory of each client's largest work, over all stages."""
    known: dict[tuple[int, int], int] = {}
    peaks = []
    for client in clients:
        group = int(setup.client_group[client])
        for stage in setup.schedule.stages:
            if (group, stage.index) not in known:
                demand = planner.demand(client, 1, stage)
                known[group, stage.index] = demand.compute.peak_memory_bytes
        peaks.append(max(known[group, stage.index] for stage in setup.schedule.stages))
    return peaks


def _by_operators(
    setup: Setup,
    clients: Sequence[int],
    shares: Mapping[int, float],
    emulator: Emulator,
    here: Device,
    on_message: Callable[[str], None],
) -> dict[int, tuple[Device, float]]:
    """Each device's core and the share of it that it has, by index: microbenchmarks in a client's own process."""
    found = {}
    for index, share in shares.items():
        on_message(f"measuring {setup.fleet.devices[index].name} under its quota, {share:.1%} of a core")
        client = next(c for c in clients if setup.fleet.device_index[c] == index)
        measured = emulator.calibrate(client, CALIBRATION_SECONDS)
        core = replace(
            here,
            flops_per_second=measured["flops_per_second"],
            memory_bytes_per_second=measured["memory_bytes_per_second"],
            seconds_per_operator=measured["seconds_per_operator"],
            processor=replace(
                here.processor, arithmetic=tuple(measured["arithmetic"]), memory=tuple(measured["memory"])
            ),
        )
        found[index] = core, measured["share"]
    return found


def _by_works(
    setup: Setup,
    clients: Sequence[int],
    shares: Mapping[int, float],
    emulator: Emulator,
    here: Device,
    works: Mapping[WorkKey, TimedWork],
    on_message: Callable[[str], None],
) -> dict[int, tuple[Device, float]]:
    """Each device's core and the share of it that it has, by index.

    The core's rates are fitted to the works of all kinds and stages at full speed.  The share is what remains of that
    speed where clients train as in a round: all begin together, each under its quota, and wait for the slowest.  They
    share the core's caches, and find them cold after a wait.
    """
    device_of = {client: int(setup.fleet.device_index[client]) for client in clients}
    remains: dict[int, list[float]] = {index: [] for index in shares}
    until = time.monotonic() + WORKS_SECONDS
    for stage in [*dict.fromkeys(stage for *_, stage in works)] * REHEARSALS:
        if time.monotonic() > until and all(remains.values()):
            break
        at_of = {client: (setup.kind_of(client), setup.variant_of(client), stage) for client in clients}
        mine = {client: timed for client, at in at_of.items() if (timed := works.get(at))}
        longest = max(timed.seconds / shares[device_of[client]] for client, timed in mine.items())
        on_message(f"timing the works of stage {stage} under the quotas, {units.show_seconds(longest)}")
        orders = {client: (" ".join(map(str, at_of[client])), timed.assignment) for client, timed in mine.items()}
        for client, seconds in emulator.time_works(orders).items():
            remains[device_of[client]].append(mine[client].seconds / seconds)
    core = fit_device(here, list(works.values()))
    return {index: (core, float(np.median(found))) for index, found in remains.items()}


def _landing(
    emulator: Emulator,
    flown: list[tuple[int, EmulatedRound]],
    factors: dict[tuple[int, int], float],
    deadline: float | None,
) -> Callable[[Flights], Landings]:
    """What lands the flights of a simulation: the emulator.

    Its flights are added to ``flown``, and to ``factors`` how many times as long as predicted each computed.
    """

    def land(flights: Flights) -> Landings:
        plans = dict(zip(flights.client.tolist(), flights.plans, strict=True))
        seen = emulator.fly(plans, inf if deadline is None else deadline)
        rows = [seen[client] for client in flights.client.tolist()]
        flown.extend((flights.dispatch.round, row) for row in rows)
        for row, predicted in zip(rows, flights.ends.compute_seconds.tolist(), strict=True):
            if row.ended_in in (None, "upload") and predicted > 0:  # computing is complete
                factors[flights.dispatch.number, row.client] = row.compute_seconds / predicted
        return land_real_flights(flights, rows)

    return land


def _device_told(quota: float, share: float, core: Device) -> EmulatedDevice:
    return EmulatedDevice(
        quota=quota,
        share=share,
        flops_per_second=core.flops_per_second,
        memory_bytes_per_second=core.memory_bytes_per_second,
        seconds_per_operator=core.seconds_per_operator,
    )


def _emulated_flight(round: int, row: EmulatedRound) -> EmulatedFlight:
    down, up = row.frame_bytes
    return EmulatedFlight(
        round=round,
        client=row.client,
        download_bytes=row.download_bytes,
        upload_bytes=row.upload_bytes,
        frame_download_bytes=down,
        frame_upload_bytes=up,
        processor_seconds=row.cpu_seconds,
        ended_in=row.ended_in,
        killed=row.killed,
    )


def _play(
    folder: Path,
    scenario: Scenario,
    setup: Setup,
    executor: Executor | None,
    flown: Callable[[Flights], Landings] | None,
    rounds: int | None,
    federation: Federation,
    on_progress: OnProgress,
) -> Run:
    """Play the rounds of a setup on the virtual clock, or on the clock of ``flown``, and write the run's folder."""
    with create_run(folder, scenario, setup) as directory:
        play(directory, scenario, setup, executor, flown, federation, on_progress, rounds)
    return read_run(folder)


PARTS = ("download", "compute", "upload")


@part_of(FlightRecord)
class PhasesOfFlight(Record):
    """What is compared of a flight."""

    round: int
    client: int
    stage: int
    kind: str
    outcome: str
    download_seconds: float
    compute_seconds: float
    upload_seconds: float

    @property
    def seconds(self) -> float:
        """The three phases together."""
        return self.download_seconds + self.compute_seconds + self.upload_seconds


def rows_of(
    simulated: Iterable[PhasesOfFlight],
    emulated: Iterable[PhasesOfFlight],
    replayed: Iterable[PhasesOfFlight],
    *,
    who: Mapping[int, tuple[str, str, float]],
    processor: Mapping[tuple[int, int], float],
) -> list[ClientRound]:
    """A row for each client-round that both finished; ``who`` has the device, the link and the share of each client.

    ``processor`` has the seconds of each round's and client's work; ``replayed`` is simulated with the emulation's
    seconds of computing.
    """
    known, again = (
        {(each.round, each.client): each for each in records if each.outcome == "finished"}
        for records in (simulated, replayed)
    )
    rows = []
    for each in emulated:
        key = each.round, each.client
        other, measured = known.get(key), again.get(key)
        if other is None or measured is None or each.outcome != "finished":
            continue
        device, link, share = who[each.client]
        rows.append(
            ClientRound(
                round=each.round,
                client=each.client,
                stage=each.stage,
                kind=each.kind,
                device=device,
                link=link,
                share=share,
                simulated_download_seconds=other.download_seconds,
                emulated_download_seconds=each.download_seconds,
                simulated_compute_seconds=other.compute_seconds,
                emulated_compute_seconds=each.compute_seconds,
                simulated_upload_seconds=other.upload_seconds,
                emulated_upload_seconds=each.upload_seconds,
                simulated_round_seconds=other.seconds,
                emulated_round_seconds=each.seconds,
                with_measured_compute_seconds=measured.seconds,
                processor_seconds_over_quota=processor[key] / share,
            )
        )
    return rows


def errors_of(rows: Sequence[ClientRound]) -> dict[str, PhaseError]:
    """Median and worst of |simulated / emulated - 1|, by phase, of the round, and with measured computing.

    A phase that takes no time in an emulation has no error.
    """
    pairs = {phase: (f"simulated_{phase}_seconds", f"emulated_{phase}_seconds") for phase in (*PARTS, "round")}
    pairs["compute as processor time over quota"] = ("processor_seconds_over_quota", "emulated_compute_seconds")
    pairs["round with measured compute"] = ("with_measured_compute_seconds", "emulated_round_seconds")
    errors = {}
    for name, (ours, theirs) in pairs.items():
        seconds = [(getattr(row, ours), getattr(row, theirs)) for row in rows]
        off = np.array([abs(one / other - 1) for one, other in seconds if other > 0])
        if len(off):
            errors[name] = PhaseError(median=float(np.median(off)), worst=float(off.max()), client_rounds=len(off))
    return errors
