"""Predicted against measured seconds of a training step on this machine, of networks and of works that it never saw.

    python tools/bench.py steps [--steps 5] [--only TEXT] [--works] [--profile FILE [--threads N]]

The machine is calibrated with steps of single layers, without any of these networks.  Then all predictions are printed,
and only then twelve networks of timm and transformers are measured: a bare loop of PyTorch (``networks.py``), the
median step, in CPU seconds of one thread, which other processes disturb less.  Beside them stand the errors of the
roofline of three numbers that calibration measured before, and after them those of a second calibration: machines
drift.  With ``--profile FILE`` (of ``edgefl devices calibrate``) wall seconds are held against that profile, on all
cores or ``--threads``; with ``--works`` works of edgefl are measured instead of networks, the best step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measuring import parser_of, table

from bench.networks import NETWORKS, operators_of, seconds_of_steps
from bench.roofline import roofline
from edgefl import models
from edgefl.cost.predict import predict
from edgefl.cost.step_seconds import step_seconds
from edgefl.devices import Device, read_device
from edgefl.machine import host
from edgefl.machine.microbenchmarks import calibrate_here
from edgefl.machine.observed_work import RandomBatches
from edgefl.machine.observed_work import step_seconds as seconds_of_work
from edgefl.operator_classes import OPERATOR_CLASSES
from edgefl.scenario import load
from edgefl.setup.compose import compose
from edgefl.work import Source, Work, execute

CALIBRATION = 10.0
"""CPU seconds of a calibration."""


def tower(blocks: int, width: int, heads: int | None = None, **more: Any) -> dict[str, Any]:
    """Options of a tower, with heads of dimension 32 by default."""
    return {"blocks": blocks, "width": width, "heads": heads or width // 32, **more}


def scenario(kinds: Sequence[str], model: dict[str, Any], size: int = 32, **sections: Any) -> dict[str, Any]:
    """A scenario of declared data; ``sections`` are further sections by name."""
    shapes = {"image": {"size": size, "classes": 100}, "text": {"vocabulary": sections.pop("vocabulary", 30522)}}
    data = {"source": "declared", "clients": dict.fromkeys(kinds, 1), "samples": 10_000, "shapes": shapes}
    common = {"method": "fedavg", "schedule": {"name": "end-to-end", "rounds": 2}}
    return {"edgefl": 1, "name": "bench", "data": {**data, "test": 1000}, "model": model, **common, **sections}


LAYERWISE = {"name": "layerwise", "stages": 3, "rounds": 3}
SGD = {"optimizer": "sgd", "momentum": 0.9}
ViT, Text = "image", "text"

WORKS: dict[str, tuple[dict[str, Any], str, int, str]] = {
    "narrow ViT 4x64, batch 32": (
        scenario([ViT], {ViT: tower(4, 64, 4, patch=8)}, training={"batch": 32}), ViT, 1, "train"),
    "ViT 4x384 at 224/16, batch 8": (
        scenario([ViT], {ViT: tower(4, 384, 6, patch=16)}, 224, training={"batch": 8}), ViT, 1, "train"),
    "text 6x256, SGD, for-loop": (
        scenario([Text], {Text: tower(6, 256, tokens=64)}, training={"batch": 16, "implementation": "for-loop", **SGD}),
        Text, 1, "train"),
    "image-text pairs 4x128, batch 64": (
        scenario(["image-text"], {ViT: tower(4, 128, patch=4), Text: tower(4, 128, tokens=40)}, training={"batch": 64}),
        "image-text", 1, "train"),
    "FedCola's gates, ViT 4x192": (
        scenario([ViT, Text], {ViT: tower(4, 192, patch=4), Text: tower(4, 192, tokens=40)}, method="fedcola",
                 training={"batch": 32}), ViT, 1, "train"),
    "narrow ViT 4x96, batch 512": (
        scenario([ViT], {ViT: tower(4, 96, 3, patch=4)}, training={"batch": 512}), ViT, 1, "train"),
    "evaluation of ViT 6x192": (
        scenario([ViT], {ViT: tower(6, 192, patch=4)}), ViT, 1, "evaluate"),
    "text 4x192, checkpointing, foreach": (
        scenario([Text], {Text: tower(4, 192, tokens=128)}, vocabulary=8000,
                 training={"batch": 16, "checkpointing": True, "implementation": "foreach"}), Text, 1, "train"),
    "ViT 6x256, layer-wise stage 2, clip": (
        scenario([ViT], {ViT: tower(6, 256, patch=4)}, schedule=LAYERWISE, training={"batch": 32, "clip": 1.0}),
        ViT, 2, "train"),
    "ResNet-18 at 64, SGD": (
        scenario([ViT], {ViT: {"tower": "resnet"}}, 64, training={"batch": 16, **SGD}), ViT, 1, "train"),
    "biGRU of 256": (
        scenario([Text], {Text: {"tower": "gru", "tokens": 40}}, training={"batch": 32}), Text, 1, "train"),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A work with its source and the predicted seconds of a step."""

    name: str
    work: Work
    source: Source
    predicted: float


def prepared(name: str, machine: Device) -> Case:
    """The work with this name and the predicted seconds of one of its steps."""
    document, kind, stage, mode = WORKS[name]
    setup = compose(load(document))
    if mode == "train":
        source: Source = setup.clients.client(setup.of_kind(kind)[0])
        work = setup.schedule.stages[stage - 1].restrict_work(setup.method.work(kind, 1)).limit_batches(source.size)
    else:
        source, work = setup.clients.server(), setup.method.evaluate(kind, "test")
    work = replace(work, passes=work.passes[:1])
    seconds = seconds_of_work(work, source, predict(work, source), machine)
    return Case(name, work, source, seconds[0, work.passes[0].patterns[0]])


def measured(case: Case, steps: int, repeat: int) -> tuple[float, float]:
    """CPU and wall seconds of the fastest step."""
    module = models.build(case.work.model)
    own = {n for n, _ in module.named_parameters()} | {n for n, _ in module.named_buffers()}
    extra = {i.name: torch.randn(i.shape) * 0.02 for p in case.work.down for i in p.items if i.name not in own}
    batches = RandomBatches(case.source, case.work.model, steps, short=True)
    for _ in range(repeat):
        execute(case.work, extra, batches, module=module, device=torch.device("cpu"), seed=0)
    pairs = [pair for timings in batches.seconds.values() for pair in timings]
    return min(cpu for _, cpu in pairs), min(wall for wall, _ in pairs)


def show_works(machine: Device, only: str, steps: int, repeat: int) -> None:
    """Predict, measure and print edgefl's own works."""
    cases = [prepared(name, machine) for name in WORKS if only in name]
    print(table(("predicted", "ms"), [[case.name, f"{case.predicted * 1e3:.1f}"] for case in cases]), flush=True)
    lines, errors = [], {}
    for case in cases:
        cpu, wall = measured(case, steps, repeat)
        errors[case.name] = case.predicted / cpu - 1
        lines.append([case.name, f"{cpu * 1e3:.1f}", f"{wall * 1e3:.1f}", f"{errors[case.name]:+.1%}"])
    print("\n" + table((f"best of {steps * repeat}", "CPU ms", "wall ms", "error"), lines))
    print("\n" + summed("works", errors))


def summed(name: str, errors: Mapping[str, float]) -> str:
    """Median and worst error in a line."""
    worst = max(errors, key=lambda each: abs(errors[each]))
    return f"{name}: median error {median(map(abs, errors.values())):.1%}, worst {errors[worst]:+.1%} ({worst})"


def show_networks(profile: Device | None, only: str, steps: int) -> None:
    """Calibrate, predict, measure and print the networks."""
    now = time.process_time if profile is None else time.perf_counter
    machine = calibrated() if profile is None else profile
    before = roofline(machine, now)
    print(f"roofline: {_told(before)}\n", flush=True)
    costs = {name: operators_of(name) for name in NETWORKS if only in name}
    predicted = {name: (step_seconds(cost, machine).total, step_seconds(cost, before).total)
                 for name, cost in costs.items()}  # fmt: skip
    rows = [[name, *(f"{each * 1e3:.0f}" for each in both)] for name, both in predicted.items()]
    print(table(("predicted, ms", "by class", "roofline"), rows), flush=True)
    lines, seen = [], {}
    for name, both in predicted.items():
        seen[name] = median(seconds_of_steps(name, steps, now))
        lines.append([name, f"{seen[name] * 1e3:.0f}", *(f"{each / seen[name]:.2f}" for each in both)])
    what = "CPU" if profile is None else "wall"
    print("\n" + table((f"median of {steps}, {what} ms", "measured", "by class", "roofline"), lines) + "\n")
    for column, name in enumerate(("by class", "roofline")):
        print(summed(name, {each: both[column] / seen[each] - 1 for each, both in predicted.items()}))
    if profile is None:
        again = calibrated()
        drifted = {each: step_seconds(cost, again).total / seen[each] - 1 for each, cost in costs.items()}
        print(summed("by class, calibrated afterwards", drifted))


def calibrated() -> Device:
    """This machine on one thread; prints its rates by class."""
    began = time.process_time()
    machine = calibrate_here(CALIBRATION)
    print(f"calibrated in {time.process_time() - began:.1f} CPU s: {_told(machine)}")
    rows = [
        [each.title, *(f"{rate * share[each] / 1e9:.1f}" if isfinite(share[each]) else "" for rate, share in (
            (machine.flops_per_second, machine.processor.arithmetic),
            (machine.memory_bytes_per_second, machine.processor.memory),
        ))] for each in OPERATOR_CLASSES
    ]  # fmt: skip
    print(table(("class", "GFLOP/s", "GB/s"), rows) + "\n", flush=True)
    return machine


def _told(machine: Device) -> str:
    return (
        f"{machine.flops_per_second / 1e9:.1f} GFLOP/s, {machine.memory_bytes_per_second / 1e9:.1f} GB/s, "
        f"{machine.seconds_per_operator * 1e6:.1f} us an operator"
    )


def main(arguments: list[str]) -> None:
    """Calibrate, predict, measure, print."""
    parser = parser_of(__doc__, "bench.py steps")
    parser.add_argument("--steps", type=int, default=5, help="steps that are timed, of works steps in a run")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each work")
    parser.add_argument("--only", default="", metavar="TEXT", help="only those whose name contains TEXT")
    parser.add_argument("--works", action="store_true", help="works of edgefl instead of networks")
    parser.add_argument("--profile", metavar="FILE", help="a profile to hold wall seconds against")
    parser.add_argument("--threads", type=int, default=host.physical_cores(), help="threads of that profile")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads if chosen.profile else 1)
    if chosen.works:
        show_works(calibrated(), chosen.only, chosen.steps, chosen.repeat)
    else:
        show_networks(read_device(Path(chosen.profile)) if chosen.profile else None, chosen.only, chosen.steps)
