"""What a command needs of this machine, estimated from a scenario before its data or its model are built.

The estimates are lower bounds: a scenario whose lower bound exceeds the machine's memory is refused.  A command that
only predicts costs (``profile``, ``sweep``, ``fit``) allocates no parameters, so a model that is too large for this
machine can still be priced.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil, inf, prod
from typing import Any

import numpy as np
import torch

from edgefl import models, registry
from edgefl.data.collection import DataSet
from edgefl.data.options import DeclaredDataset
from edgefl.data.partition import MINIMUM
from edgefl.errors import EdgeflError
from edgefl.machine.host import physical_cores, ram_bytes
from edgefl.modalities import KINDS
from edgefl.models.model import ModelDescription
from edgefl.planning.setup import Setup
from edgefl.scenario import Scenario
from edgefl.units import show_bytes, show_seconds
from edgefl.work.tasks import like

BYTES_PER_CLIENT = 30
"""Kind, samples, group, device and link of a client: 11 bytes, and copies while they are drawn."""
BYTES_PER_PASS = 16
"""A reference of 8 bytes in a work's passes, doubled as a choice: the passes themselves are shared."""
BYTES_PER_WORKER = 200 * 2**20
"""A worker process that has imported torch, without any task: 220 MiB, 144 MiB of them not shared."""
BYTES_PER_BLOCK = {True: 30_000, False: 230_000}
"""The modules of a block on the meta device, by whether the command trains; a prediction also runs them.

24 and 228 kB were measured with 200 and 80 blocks as the quickstart's.
"""
SECONDS_PER_BLOCK = {True: 0.008, False: 0.05}
"""Time to describe a block, and to predict its costs: 0.006 and 0.05 s of processor time, of the same blocks."""
SECONDS_PER_EPOCH = 0.001
"""Time to read the passes of a local epoch while a round is planned.

A profile took 0.02 ms for each epoch more, and two rounds of ten clients 0.2 ms; a fleet of more kinds takes more.
"""
SECONDS_PER_STEP = 0.004
"""Time of a training step apart from its FLOPs, of four blocks.

A test holds the expected time of a run against that which it takes, within a factor of ten.
"""
SECONDS_PER_ROUND = 0.003
"""Time of a round without its clients: it is judged, written and told. 2.2 to 6.7 ms of 400 rounds were measured, by
cohorts of 2 to 100, policies and methods; most where rounds overlap."""
SECONDS_PER_DISPATCH = 30e-6
"""Time to simulate a client's round event by event; in closed form it takes half (docs/evidence/speed.md)."""
ASKED = 50
"""Rounds whose cohorts are counted for the expected time.  A choice: each takes microseconds."""
WORTH_TELLING, WORTH_TELLING_FIRST = 600.0, 10.0
"""Seconds from which on the expected time is told: of a whole run, and of what comes before its first message.

A choice, not measured: after ten minutes a user wouldn't wait at the screen, and ten silent seconds look like a hang.
"""

_SHALLOW = 8
"""Most blocks of a tower that is built whole to count its parameters, since a ResNet's blocks grow.

A choice, not measured: eight blocks take 40 ms, and a larger number makes a check of every deep tower slower.
"""


class SlowWarning(UserWarning):
    """A command that will take long, with the time that it is expected to take."""


@dataclass(frozen=True)
class HostMemoryNeed:
    """One part of the memory that a command needs: the bytes, for what, and the field of the scenario to change."""

    bytes: float
    what: str
    field: tuple[str, ...]


def check_host(scenario: Scenario, *, trains: bool) -> None:
    """Compare the memory that a scenario needs with the memory of this machine, and warn if it only takes long.

    ``trains`` says whether clients train here; otherwise costs are predicted.  Raises ScenarioError with both numbers.
    """
    parts: list[HostMemoryNeed] = []
    need, have = 0.0, ram_bytes()
    for part in memory_parts(scenario, trains=trains):  # what takes time to estimate comes last
        parts.append(part)
        need += part.bytes
        if need > have:
            break
    parts.sort(key=lambda part: -part.bytes)
    if need == inf:
        raise scenario.error(parts[0].field, "a tensor of this model is larger than torch can address (2^63 bytes)")
    if need > have:
        listed = "; ".join(f"{show_bytes(part.bytes)} for {part.what}" for part in parts if part.bytes > 0.01 * need)
        act = "running it" if trains else "predicting its costs"
        raise scenario.error(
            parts[0].field,
            f"{act} takes at least {show_bytes(need)} of memory, but this machine has {show_bytes(have)}: {listed}",
        )
    blocks, epochs = sum(scenario.model.blocks.values()), _epochs(scenario)
    seconds = blocks * SECONDS_PER_BLOCK[trains] + epochs * SECONDS_PER_EPOCH
    if seconds > WORTH_TELLING_FIRST:
        _tell(scenario, f"describing {blocks:,} blocks and {epochs:,} local epochs", seconds)


def memory_parts(scenario: Scenario, *, trains: bool) -> Iterator[HostMemoryNeed]:
    """The parts of the memory that a scenario needs at least."""
    real = trains and scenario.training.mode == "real"
    clients = sum(scenario.data.clients.values())
    yield HostMemoryNeed(clients * BYTES_PER_CLIENT, f"{clients:,} clients", ("data", "clients"))
    yield from _data(scenario)
    epochs = _epochs(scenario)
    field = ("training", "epochs") if 2 * scenario.training.epochs > epochs else ("method",)
    yield HostMemoryNeed(epochs * BYTES_PER_PASS, f"the steps of {epochs:,} local epochs", field)
    blocks = sum(scenario.model.blocks.values())
    yield HostMemoryNeed(blocks * BYTES_PER_BLOCK[trains], f"the structure of {blocks:,} blocks", ("model",))
    workers = scenario.executor.workers if scenario.executor.name == "processes" else 1
    if real and scenario.executor.name == "processes":
        yield HostMemoryNeed(workers * BYTES_PER_WORKER, f"{workers:,} worker processes", ("executor", "workers"))
    parameters = parameters_of(scenario)
    if parameters == inf:
        yield HostMemoryNeed(inf, "the parameters of a layer", ("model",))
    if not real:
        return
    yield HostMemoryNeed(4 * parameters, f"{parameters:,.0f} parameters at the server", ("model",))
    if scenario.executor.device_type == "cpu" or not torch.cuda.is_available():
        # a client needs its weights at least: how much of a model trains depends on method and schedule
        what = f"the models of {workers:,} clients that train at a time" if workers > 1 else "a client's model"
        yield HostMemoryNeed(4 * parameters * workers, what, ("model",))


def parameters_of(scenario: Scenario) -> float:
    """Parameters of the largest kind of client at full depth, at least; inf if torch can't address one of its tensors.

    0 if the model can't be described from the scenario alone.
    """
    facts, most = _facts(scenario), 0.0
    for kind in KINDS:
        if scenario.data.clients.get(kind):
            task = scenario.data.task_of(kind)
            try:
                described = models.describe(scenario.model, tuple(kind.split("-")), like(task), facts)
            except EdgeflError:
                continue  # what doesn't fit together is reported when the scenario is composed
            most = max(most, _count_parameters(json.dumps(described)))
    return most


@cache
def _count_parameters(description: str) -> float:
    """Parameters of a model; of a deep one from its first two blocks, which are as large as the others."""
    described = json.loads(description)
    blocks = models.blocks(described)
    if all(count <= _SHALLOW for count in blocks.values()):
        return _parameters(described, blocks)
    one = {tower: min(count, 1) for tower, count in blocks.items()}
    total = first = _parameters(described, one)
    for tower, count in blocks.items():
        if count > 1 and first < inf:
            total += (_parameters(described, {**one, tower: 2}) - first) * (count - 1)
    return total


def _parameters(described: ModelDescription, depth: Mapping[str, int]) -> float:
    try:
        module = models.blueprint(models.at_depth(described, depth))
    except EdgeflError:
        return 0.0
    except (RuntimeError, OverflowError, TypeError, MemoryError) as error:
        too_large = isinstance(error, OverflowError | MemoryError)
        if too_large or any(word in str(error).lower() for word in ("overflow", "too large", "must be tuple of ints")):
            return inf
        return 0.0  # the error is raised again, with its place, when the model is built
    return float(sum(prod(tensor.shape) for tensor in (*module.parameters(), *module.buffers())))


def _facts(scenario: Scenario) -> dict[str, dict[str, int]]:
    """The facts of the data that a model's size depends on, guessed low where only the data set knows them."""
    if scenario.data.source == "declared":
        return (scenario.data.shapes or DeclaredDataset()).facts(scenario.model.tokens)
    patch = getattr(scenario.model.image or scenario.model.multiway, "patch", 1)
    size = scenario.data.size or patch * max(1, 32 // patch)
    return {
        "image": {"channels": 1, "size": size, "classes": 2},
        "text": {"vocabulary": 32, "tokens": scenario.model.tokens, "classes": 2},
        "audio": {"bins": 128, "frames": 1024, "classes": 2},
        "motion": {"readings": 1, "channels": 1, "classes": 2},
    }


def _data(scenario: Scenario) -> Iterator[HostMemoryNeed]:
    """The pictures and texts of data sets that are built in memory."""
    data = scenario.data
    if data.source == "declared":
        return
    samples = {kind: MINIMUM * count for kind, count in data.clients.items() if count}
    texts = sum(count for kind, count in samples.items() if "text" in kind)
    if texts:
        tokens = scenario.model.tokens
        model = "text" if scenario.model.text is not None else "multiway"
        yield HostMemoryNeed(
            4 * texts * tokens, f"at least {texts:,} texts of {tokens:,} tokens", ("model", model, "tokens")
        )
    built = all(isinstance(registry.get("data set", name), DataSet) for name in data.sources)
    pictures = sum(count for kind, count in samples.items() if "image" in kind)
    if pictures and data.size and built:  # a folder's pictures are on disk, whose space is compared when it is read
        what = f"at least {pictures:,} pictures of {data.size:,} x {data.size:,} pixels"
        yield HostMemoryNeed(pictures * data.size**2, what, ("data", "size"))


def _epochs(scenario: Scenario) -> int:
    """Local epochs of a client's round, with those that the method's options ask for (fields named ...epochs)."""

    def sum_epochs(fields: Mapping[str, object]) -> int:
        total = 0
        for name, value in fields.items():
            if isinstance(value, Mapping):
                total += sum_epochs(value)
            elif name.endswith("epochs") and isinstance(value, int):
                total += value
        return total

    options = scenario.method_options
    own = 1 if scenario.training.steps is not None else ceil(scenario.training.epochs)
    return own + (sum_epochs(options.model_dump()) if hasattr(options, "model_dump") else 0)


# time ----------------------------------------------------------------------------------------------------------------


def tell_time(scenario: Scenario, setup: Setup) -> None:
    """Warn if a run is expected to take more than ``WORTH_TELLING`` seconds on this machine."""
    seconds = expected_seconds(scenario, setup)
    if seconds > WORTH_TELLING:
        _tell(scenario, f"{setup.schedule.rounds:,} rounds of {scenario.training.epochs:,} local epochs", seconds)


def _places(seats: Mapping[str, int], drawn: Mapping[str, int], kind: str) -> float:
    """Places of a round's cohort for a kind: its own, or its part of those that all kinds share."""
    if kind not in drawn:
        return 0.0
    return float(seats[kind]) if "" not in seats else seats[""] * drawn[kind] / sum(drawn.values())


def expected_seconds(scenario: Scenario, setup: Setup) -> float:
    """Seconds that the clients of a run train on this machine: an estimate within a factor of about three."""
    rounds = setup.schedule.rounds
    # a method may draw other cohorts in some rounds
    each = range(1, rounds + 1, max(1, rounds // ASKED)) if setup.method.has_other_draws else range(1, 2)
    steps = flops = dispatches = 0.0
    for name, kind in setup.method.setting.kinds.items():
        members = setup.of_kind(name)
        sent = sum(_places(setup.seats(round), setup.drawn_kinds(round), name) for round in each) * rounds / len(each)
        dispatches += sent
        training = setup.method.setting.training.of(name)
        own = float(np.mean(setup.clients.client_samples[members]))
        batch = max(1, min(training.batch_of(kind.pattern), own))
        of_client = own * training.epochs if training.steps is None else training.steps * batch
        samples = of_client * sent
        steps += samples / batch
        flops += 6 * samples * sum(_weights_by_token(kind.model).values())
    if scenario.training.mode == "none":
        return rounds * SECONDS_PER_ROUND + dispatches * SECONDS_PER_DISPATCH
    workers = scenario.executor.workers if scenario.executor.name == "processes" else 1
    at_a_time = min(workers, physical_cores())
    blocks = sum(scenario.model.blocks.values()) / max(1, len(scenario.model.blocks))
    seconds = steps * SECONDS_PER_STEP * max(1.0, blocks / 4) / at_a_time
    if seconds > WORTH_TELLING:
        return seconds  # long without the FLOPs: the speed of this machine need not be measured
    return seconds + flops / _flops_per_second()


def _weights_by_token(described: Mapping[str, Any]) -> dict[str, float]:
    """For each tower, its parameters times the tokens of a sample: half the FLOPs of a forward pass."""
    weights = {}
    for name, tower in described.get("towers", {}).items():
        alone = {**described, "towers": {name: tower}, "joint": {}}
        tokens = float(tower.get("tokens", 1))
        if "patch" in tower and "size" in tower:
            tokens += (tower["size"] // tower["patch"]) ** 2
        elif "frames" in tower:
            tokens += tower["frames"] * tower["bins"] / 256
        weights[name] = tokens * _count_parameters(json.dumps(alone))
    return weights


@cache
def _flops_per_second() -> float:
    """FLOP/s of a matrix multiplication of 512 rows on this machine; training reaches about half of it."""
    left = torch.ones(512, 512)
    times = []
    for _ in range(4):
        started = time.perf_counter()
        left @ left
        times.append(time.perf_counter() - started)
    return 0.5 * 2 * 512**3 / min(times)


def _tell(scenario: Scenario, what: str, seconds: float) -> None:
    years = seconds / (365.25 * 86400)
    text = show_seconds(seconds) if years < 1 else f"{years:,.{0 if years > 10 else 1}f} years"
    warnings.warn(f"{scenario.name}: {what} will take about {text} on this machine", SlowWarning, stacklevel=2)
