"""The speed of fleet simulation, as ratios to bare SimPy and to a formula in NumPy.

    python tools/bench.py fleet [--rounds 20] [--scenario million] [--only speed,rounds,registered,start,formula]

Every run of edgefl has its own process, so that its peak memory can be measured; times are CPU seconds of that process.
Bare SimPy only waits for three timeouts in each client-round.  Absolute figures depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy
from measuring import paired, parser_of, several, table
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bench.contestants import Version
    from edgefl.devices import Device

SHARED = {"download": "10 Gbit/s", "upload": "2 Gbit/s"}
"""A server link that is the bottleneck of a cohort."""
FAILURES = {
    "before_download": 0.01, "download": 0.02, "training": 0.03, "upload": 0.02, "corrupted": 0.005,
    "truncated": 0.005, "slow_down": {"share": 0.1, "factor": 3},
}  # fmt: skip
TROUBLE = {"fleet.failures": FAILURES, "round.deadline": "20 min", "round.over_selection": 0.3}
MARKOV = {"fleet.availability": {"markov": {"on": "2 h", "off": "10 h"}}}
NIGHTS = {
    "fleet.availability": {
        "diurnal": {"hours": "6..8 h", "start": "21:00..1:00", "jitter": "30 min", "begins": "22:00"}
    },
    "fleet.budgets": {"memory": "12..48 MiB", "bytes_per_day": "200 MB", "energy_per_round": "2 kJ"},
    "fleet.battery": {"capacity": "10..20 Wh", "initial": "30..90%", "reserve": "20%", "charge_watts": "3 W"},
}
"""Phones that train at night, with caps and batteries."""
ONE_BY_ONE = {"round.policy": "asynchronous", "round.concurrency": 200, "round.cohort": 200}
VARIANTS: dict[str, dict[str, Any]] = {
    "contention off": {"fleet.server_link": None},
    "shared link": {"fleet.server_link": SHARED},
    "failures, deadline": {"fleet.server_link": None, **TROUBLE},
    "event by event": {"fleet.server_link": None, "executor.clock": "events"},
    "event by event, failures, deadline": {"fleet.server_link": None, "executor.clock": "events", **TROUBLE},
    "shared link, failures, deadline": {"fleet.server_link": SHARED, **TROUBLE},
    "behind relays": {"fleet.server_link": None, "fleet.relays": 1000},
    "behind relays, failures, deadline": {
        "fleet.server_link": None,
        **TROUBLE,
        "fleet.relays": {"count": 1000, "failures": 0.02},
    },
    "on and off by chance": MARKOV,
    "nights, caps and batteries": NIGHTS,
    "asynchronous, 200 under way": ONE_BY_ONE,
    "asynchronous, on and off by chance": {**ONE_BY_ONE, **MARKOV},
}
NEEDED = {
    "contention off": 50_000, "shared link": 10_000, "event by event, failures, deadline": 20_000,
    "behind relays": 50_000,
}  # fmt: skip
"""Required client-rounds per second on one core, for the scenario of a million clients."""
COHORT = 1000
"""Clients of a round of bare SimPy."""
PLAY = "import sys; from bench.fleet import main; main(sys.argv[1:])"


def bare(rounds: int, generators: bool) -> None:
    """Play rounds of three timeouts in a row for each client, with callbacks or with a generator for each."""
    env = simpy.Environment()
    seconds = np.random.default_rng(1).lognormal(2, 1, (rounds, COHORT, 3)).tolist()

    def upload(event: Any) -> None:
        env.timeout(event.value[2])

    def compute(event: Any) -> None:
        env.timeout(event.value[1], event.value).callbacks.append(upload)

    def client(phases: list[float]) -> Any:
        for phase in phases:
            yield env.timeout(phase)

    for round_seconds in seconds:
        for phases in round_seconds:
            if generators:
                env.process(client(phases))
            else:
                env.timeout(phases[0], phases).callbacks.append(compute)
        env.run()


# --- edgefl, in a process of its own ----------------------------------------------------------------------------------


def measured(
    name: str, changes: Mapping[str, Any], clients: int | None, keep: Path | None = None, version: Version | None = None
) -> dict[str, Any]:
    """Figures of one run in a new process; ``keep`` is a folder for its records.

    With a ``version`` it is that version's, with a cache of its own; raises Failed if the run fails.
    """
    task = {"scenario": name, "changes": dict(changes), "clients": clients, "keep": str(keep) if keep else None}
    if version is not None:
        told = version.run(["-c", PLAY, "--task", json.dumps(task)])[1]
        return dict(json.loads(told.splitlines()[-1]))
    program = [sys.executable, str(Path(__file__).parents[1] / "bench.py"), "fleet", "--task", json.dumps(task)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the run failed")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def play(task: Mapping[str, Any]) -> dict[str, Any]:
    """Run the task of ``measured`` in this process; returns seconds of its parts and peak memory."""
    from edgefl.commands.run.command import run
    from edgefl.scenario import load

    changes = dict(task["changes"])
    if task["clients"]:
        kinds = load(task["scenario"]).data.clients
        whole = sum(kinds.values())
        changes["data.clients"] = {kind: max(round(n * task["clients"] / whole), 1) for kind, n in kinds.items()}
    imported = _rss()
    marks: dict[str, float] = {}
    rounds: list[Mapping[str, Any]] = []

    def observe(event: str, facts: Mapping[str, Any]) -> None:
        if event == "round" and "first" not in marks:
            marks["first"], marks["wall"] = time.process_time(), time.perf_counter()
        if event == "record":
            marks["last"] = time.process_time()
            rounds.append(facts)

    began, wall = time.process_time(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"{path}={json.dumps(value)}" for path, value in changes.items()]
        output = task["keep"] or Path(folder) / "run"
        run(task["scenario"], out=output, overrides=overrides, on_progress=observe)
    selected = sum(r["selected"] for r in rounds)
    return {
        "start_seconds": marks["first"] - began,
        "start_wall_seconds": marks["wall"] - wall,
        "round_seconds": marks["last"] - marks["first"],
        "client_rounds": selected,
        "client_rounds_per_second": selected / (marks["last"] - marks["first"]),
        "imported_bytes": imported,
        "peak_bytes": _rss(),
    }


def _rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if sys.platform != "darwin" else 1)


# --- the formula ------------------------------------------------------------------------------------------------------


_LINK = ("latency_seconds", "download_bits_per_second", "upload_bits_per_second", "loss")


def formula(folder: Path) -> tuple[float, float]:
    """Largest relative error of a run's client records to start + download + compute + upload; rows/s of the formula.

    The formula reads profiles and the work's operators, and computes all rows of a device at once in NumPy.  Compared
    are the seconds of each phase and the time at which the client ended.
    """
    from edgefl.planning.planner import Planner
    from edgefl.runs import read_run
    from edgefl.scenario import load
    from edgefl.setup.compose import compose, predictor_of

    scenario = load(str(folder / "scenario.yaml"))
    setup = compose(scenario)
    planner = Planner(setup, predictor_of(scenario))
    records = list(read_run(folder).records("clients"))
    started = {r["round"]: r["started_virtual_seconds"] for r in read_run(folder).records("rounds")}
    clients = np.array([r["client"] for r in records])
    rounds = np.array([r["round"] for r in records])
    bits = 8.0 * np.array([[r["serialised_download_bytes"], r["serialised_upload_bytes"]] for r in records]).T
    loads = np.array([r["memory_bytes"]["parameters"] + r["memory_bytes"]["buffers"] for r in records], dtype=float)
    groups = np.asarray(setup.clients.client_group)[clients]
    operators = {}
    for group, row in zip(*np.unique(groups, return_index=True), strict=True):
        client, round = int(clients[row]), int(rounds[row])
        plan = planner.plan(
            int(group), int(setup.fleet.device_index[client]), int(setup.fleet.link_index[client]), round,
            setup.schedule.stage(round), (),
        )  # fmt: skip
        operators[int(group)] = plan.compute.operators
    dispatched = np.array([started[r] for r in rounds])
    jitter = np.empty((3, len(clients)))
    for round in np.unique(rounds):
        in_round = rounds == round
        jitter[:, in_round] = setup.fleet.jitter(setup.seed, int(round), clients[in_round])
    began = time.process_time()
    device = np.asarray(setup.fleet.device_index)[clients]
    link = {n: setup.fleet.of_links(n)[clients] for n in _LINK}
    busy = np.empty(len(clients))
    for group, index in set(zip(groups.tolist(), device.tolist(), strict=True)):
        busy[(groups == group) & (device == index)] = _seconds(operators[group], setup.fleet.devices[index])
    payload_share = 1 - link["loss"]
    down = link["latency_seconds"] + bits[0] / (link["download_bits_per_second"] * payload_share)
    up = link["latency_seconds"] + bits[1] / (link["upload_bits_per_second"] * payload_share)
    busy += loads / setup.fleet.of_devices("storage_bytes_per_second")[clients]
    phases = np.stack([down, busy, up]) * jitter
    ended = dispatched + phases.sum(0)
    spent = time.process_time() - began
    names = ("download_seconds", "compute_seconds", "upload_seconds", "ended_virtual_seconds")
    recorded = np.array([[r[name] for name in names] for r in records]).T
    return float(np.abs(np.vstack([phases, ended]) / recorded - 1).max()), len(records) / spent


def _seconds(operators: NDArray[np.float64], device: Device) -> float:
    """Seconds of ``operators`` `[n, 4]` in float32: sums on a CPU, the larger and the launches on a GPU, a roofline."""
    processor, fixed = device.processor, device.processor.launch * device.seconds_per_operator
    total = 0.0
    for flops, touched, times, kind in operators:
        computing = flops / (device.flops_per_second * processor.arithmetic[int(kind)])
        moving = touched / (device.memory_bytes_per_second * processor.memory[int(kind)])
        if processor.type == "cpu":
            total += times * (computing + moving + fixed)
        else:
            total += times * (max(computing, moving) + (processor.kernel_seconds if processor.type == "gpu" else fixed))
    return max(total, operators[:, 2].sum() * fixed) if processor.type == "gpu" else total


# --- what is printed --------------------------------------------------------------------------------------------------


def show_speed(name: str, rounds: int, repeat: int, variants: Iterable[str] = tuple(VARIANTS)) -> None:
    """Print client-rounds per second of each variant, with ratios to bare SimPy and the required number."""
    calls = {"callbacks": lambda: bare(rounds, False), "generators": lambda: bare(rounds, True)}
    rates = {how: COHORT * rounds / median(seconds) for how, seconds in paired(calls, repeat).items()}
    lines = [["bare SimPy, 3 timeouts a client-round", f"{rates['callbacks']:,.0f}", *[""] * 5]]
    lines.append(["bare SimPy, a generator a client-round", f"{rates['generators']:,.0f}", *[""] * 5])
    for label in variants:
        changes = VARIANTS[label]
        runs = [measured(name, {**changes, "schedule.rounds": rounds}, None) for _ in range(repeat)]
        rate = median(r["client_rounds_per_second"] for r in runs)
        ratios = [f"{rate / rates[how]:.2f}" for how in ("callbacks", "generators")]
        peak, start = max(r["peak_bytes"] for r in runs) / 1e6, median(r["start_seconds"] for r in runs)
        floor = f"{NEEDED[label]:,}" if label in NEEDED else ""
        lines.append([f"edgefl, {label}", f"{rate:,.0f}", *ratios, floor, f"{peak:,.0f}", f"{start:.1f}"])
    print(
        table(("records written", "client-rounds/s", "/ bare", "/ generators", "needed", "peak MB", "start s"), lines)
    )


def show_rounds(name: str, rounds: int, _: int) -> None:
    """Print seconds of one, two and four times ``rounds``; if linear, the differences are as 1 to 2."""
    lines = []
    for many in (rounds, 2 * rounds, 4 * rounds):
        seconds = measured(name, {"schedule.rounds": many}, None)["round_seconds"]
        lines.append([str(many), f"{seconds:.2f}", f"{seconds / many:.4f}"])
    print(table(("rounds", "CPU s of rounds", "s / round"), lines))


def show_registered(name: str, rounds: int, _: int) -> None:
    """Print seconds of equal rounds with growing numbers of clients that don't take part."""
    lines = []
    for clients in (10_000, 100_000, 1_000_000):
        run = measured(name, {"schedule.rounds": rounds, "round.cohort": 1000}, clients)
        seconds = [f"{run[f'{part}_seconds']:.2f}" for part in ("round", "start")]
        lines.append([f"{clients:,}", *seconds, f"{run['peak_bytes'] / 1e6:,.0f}"])
    print(table(("registered", "CPU s of rounds", "start s", "peak MB"), lines))


def show_start(name: str, _: int, __: int) -> None:
    """Print seconds until the first cohort of ten million clients is selected."""
    run = measured(name, {"schedule.rounds": 1, "round.cohort": 1000}, 10_000_000)
    print(
        f"10,000,000 registered: {run['start_seconds']:.1f} CPU s ({run['start_wall_seconds']:.1f} s) to the first "
        f"cohort (limit: 10), peak {run['peak_bytes'] / 1e6:,.0f} MB, imports {run['imported_bytes'] / 1e6:,.0f}"
    )


def show_formula(name: str, rounds: int, _: int) -> None:
    """Print the error of the records against the closed form, and the ratio of their speeds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        run = measured(name, {**VARIANTS["contention off"], "schedule.rounds": rounds}, None, path)
        error, rate = formula(path)
    print(
        f"NumPy formula against {run['client_rounds']:,} records: largest relative error {error:.1e} (limit: 1e-9); "
        f"the formula does {rate:,.0f} rows/s, {rate / run['client_rounds_per_second']:.0f} times the run"
    )


PARTS = {
    "speed": show_speed, "rounds": show_rounds, "registered": show_registered, "start": show_start,
    "formula": show_formula,
}  # fmt: skip


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = parser_of(__doc__, "bench.py fleet")
    parser.add_argument("--scenario", default="million", help="a scenario that trains nothing")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each run")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each variant; the median counts")
    parser.add_argument("--only", type=several(PARTS), default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--variant", choices=VARIANTS, help="show the speed of this one alone")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.task:
        print(json.dumps(play(json.loads(chosen.task))))
        return
    if chosen.variant is not None:
        show_speed(chosen.scenario, chosen.rounds, chosen.repeat, [chosen.variant])
        return
    for part in chosen.only:
        PARTS[part](chosen.scenario, chosen.rounds, chosen.repeat)
