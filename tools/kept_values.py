"""Time, memory and disk of a run whose clients keep values: 10,000 clients with 1 MB each, by default.

    python tools/kept_values.py FOLDER [--clients 10000] [--kilobytes 1000] [--rounds 12] [--cohort 0.1]

A real simulation with real checkpoints, but nothing is trained: each client adds 1 to what it kept, so that every value
is known.  Halfway the run goes on from its last checkpoint in a new process.  In the end every value is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from edgefl import registry
from edgefl.methods import ServerState
from edgefl.planning.setup import Setup
from edgefl.runs import RunDirectory, read_run
from edgefl.runs.environment import environment
from edgefl.scenario import load
from edgefl.setup.compose import compose, predictor_of
from edgefl.simulation import Simulation
from edgefl.training import Assignment
from edgefl.work import Item, Payload, Update, Work

OWN = "own"
"""What each client keeps."""


def method_of(setup: Setup, elements: int) -> Any:
    """FedAvg whose clients keep a table of so many float32 numbers, and send next to nothing."""
    base: Any = registry.get("method", "fedavg")

    class Keeping(base):  # type: ignore[misc]
        """FedAvg with a kept table."""

        def initial(self, seed: int) -> ServerState:
            """The table's first value is zero."""
            return ServerState.from_tensors({**super().initial(seed).tensors, f"table/{OWN}": torch.zeros(elements)})

        def work(self, kind: str, round: int) -> Work:
            """Keep the table; send the smallest parameter."""
            work: Work = super().work(kind, round)
            own = Payload(OWN, (Item(OWN, (elements,), "float32", f"table/{OWN}"),))
            least = min((i for p in work.up for i in p.items), key=lambda item: torch.Size(item.shape).numel())
            up = tuple(p.only(lambda item: item == least) for p in work.up)
            return replace(work, down=(*work.down, own), up=up, keep=(OWN,))

    return Keeping(setup.method.options, setup.method.setting)


class Adding:
    """An executor that trains nothing: it adds 1 to what the client kept, and sends zeros."""

    window = 0

    def submit(self, task: Assignment) -> Future[Update]:
        """A future with the report."""
        held: Mapping[str, Tensor] = getattr(task, "tensors", lambda: task.inputs)()
        kept = {name: held[name] + 1 for name in task.work.keep}
        payloads = {p.name: {i.name: i.spec.empty().zero_() for i in p.items} for p in task.work.up}
        future: Future[Update] = Future()
        host = {"wall_seconds": 0.0, "rss_bytes": psutil.Process().memory_info().rss, "process": os.getpid()}
        future.set_result(
            Update(task.client or 0, "", {}, task.work, payloads, {}, kept=kept, loss=1.0, seed=task.seed, host=host)
        )
        return future

    def close(self) -> None:
        """Do nothing."""


def play(folder: Path, options: argparse.Namespace, rounds: int) -> None:
    """Play up to round ``rounds``, from the last checkpoint on; prints the seconds of each round."""
    scenario = {
        "edgefl": 1, "name": "kept", "seed": 1, "method": "fedavg",
        "data": {"source": "declared", "clients": {"image": options.clients}, "samples": 4,
                 "shapes": {"image": {"channels": 1, "size": 8, "classes": 4}}},
        "model": {"image": {"tower": "vit", "width": 8, "blocks": 1, "heads": 1, "patch": 4}},
        "schedule": {"name": "end-to-end", "rounds": options.rounds}, "round": {"cohort": options.cohort},
        "evaluation": {"every": 1000}, "training": {"batch": 4},
    }  # fmt: skip
    loaded = load(scenario)
    setup = compose(loaded)
    setup = replace(setup, method=method_of(setup, options.kilobytes * 250))
    new = not (folder / "scenario.yaml").exists()
    models = {name: kind.model for name, kind in setup.method.setting.kinds.items()}
    made = {"scenario_yaml": loaded.to_yaml(), "environment": environment(), "models": models}
    with RunDirectory.create(folder, **made) if new else RunDirectory.open(folder) as directory:  # type: ignore[arg-type]
        began = time.perf_counter()
        latest = directory.latest()
        found = time.perf_counter() - began
        directory.rewind(latest[0] if latest else 0)
        simulation = Simulation(setup, Adding(), predictor_of(loaded), directory)  # type: ignore[arg-type]
        if latest:
            simulation.load_data(*latest[1:])
            print(f"resumed after round {latest[0]}: its checkpoint took {found:.1f} s to read and compare", flush=True)
        write, ended = simulation.checkpoint, [time.perf_counter()]

        def checkpoint() -> None:
            began = time.perf_counter()
            write()
            now = time.perf_counter()
            told = {"round": simulation.run.at.round, "seconds": round(now - ended[0], 2)}
            print(json.dumps({**told, "of_it_checkpoint": round(now - began, 2), **use(folder)}), flush=True)
            ended[0] = now
            if simulation.run.at.round == rounds < options.rounds:
                sys.exit(0)

        simulation.checkpoint = checkpoint  # type: ignore[method-assign]
        simulation.play()


def use(folder: Path) -> dict[str, float]:
    """Megabytes: resident memory now and at its peak, of which the peak has file pages too, and the run's folder."""
    memory = psutil.Process().memory_info()
    disk = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {name: round(value / 1e6) for name, value in (("rss", memory.rss), ("peak_rss", peak), ("disk", disk))}


def compare(folder: Path, elements: int) -> tuple[int, int]:
    """Clients whose values aren't what they did, and all that keep some."""
    run = read_run(folder)
    times = Counter(record["client"] for record in run.records("clients") if record["outcome"] == "finished")
    kept = run.client_tensors()
    wrong = sum(not torch.equal(kept[client][OWN], torch.full((elements,), float(n))) for client, n in times.items())
    return wrong + len(times.keys() ^ set(kept)), len(times)


def main() -> None:
    """Play both halves, each in a process of its own, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--kilobytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--cohort", type=float, default=0.1)
    parser.add_argument("--until", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.until is not None:
        play(options.folder, options, options.until)
        return
    for until in (options.rounds // 2, options.rounds):
        subprocess.run([sys.executable, *sys.argv, "--until", str(until)], check=True)
    wrong, clients = compare(options.folder, options.kilobytes * 250)
    print(f"{clients} clients keep values, {wrong} of them wrong ones")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
