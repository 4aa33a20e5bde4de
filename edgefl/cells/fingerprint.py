"""The fingerprint of a run: what it is made of, which a checkpoint holds, so that no run is continued as another."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from edgefl import registry
from edgefl.cost.step_seconds import PRICED_BY
from edgefl.data import Federation
from edgefl.files import read_regular
from edgefl.planning.setup import Setup
from edgefl.runs.digests import changed_parts
from edgefl.scenario import Scenario

MAY_CHANGE = ("executor", "tracker", "training.on_divergence")
"""Sections and fields that a resumed run may set: results don't depend on them."""

IN_WORKERS = (
    "model", "tower", "data set", "partition", "step", "edit", "codec", "optimizer", "metric", "attack", "task",
    "adapter",
)  # fmt: skip
"""Kinds of parts that worker processes look up; the others work in the main process."""


def run_fingerprint(scenario: Scenario, setup: Setup, device: str) -> dict[str, object]:
    """Everything that the records of a run depend on, but for data and weights.

    ``device`` is the type of device that costs were predicted for.  A changed part stops a resume.
    """
    fleet, trace = setup.fleet, _trace_file(scenario)
    links = fleet.links if fleet.relays is None else (*fleet.links, fleet.relays.link)
    profiles = {device.name: _digest(repr(device)) for device in (*fleet.devices, fleet.server)}
    return {
        "scenario": fixed_part(scenario),
        "device": device,
        "seconds": PRICED_BY,
        "profiles": profiles | {link.name: _digest(repr(link)) for link in links},
        "trace": None if trace is None else _digest(read_regular(trace)),
        "plug_ins": dict(sorted(plug_ins(scenario, setup))),
    }


def fixed_part(scenario: Scenario) -> dict[str, object]:
    """The resolved scenario without what a resumed run may set."""
    resolved = scenario.to_data()
    for path in MAY_CHANGE:
        section, _, name = path.partition(".")
        if name:
            resolved[section] = {key: value for key, value in resolved[section].items() if key != name}
        else:
            del resolved[section]
    return resolved


def _trace_file(scenario: Scenario) -> Path | None:
    """The file of the availability trace, if the scenario has one."""
    availability = scenario.fleet.availability
    if isinstance(availability, str) or availability.trace is None:
        return None
    return Path(availability.trace.file).expanduser()


def plug_ins(scenario: Scenario, setup: Setup) -> Iterator[tuple[str, str]]:
    """``(package, version and hash of its sources)`` of each plug-in that the scenario names or its works use."""
    for noun, name in parts_of_plug_ins(scenario, setup):
        origin = registry.origin(noun, name)
        yield origin.package, " ".join(filter(None, (origin.version, registry.fingerprint(noun, name))))


def check_importable(scenario: Scenario, setup: Setup) -> None:
    """Raise ScenarioError if worker processes are to train with a part that they can't import."""
    if scenario.executor.name != "processes" or scenario.training.mode == "none":
        return
    for noun, name in parts_of_plug_ins(scenario, setup):
        if noun in IN_WORKERS and (reason := registry.unimportable(noun, name)):
            raise scenario.error(("executor", "name"), reason)


def parts_of_plug_ins(scenario: Scenario, setup: Setup) -> Iterator[tuple[str, str]]:
    """``(noun, name)`` of each part of a plug-in that the scenario names or its works use."""
    named = set(texts_of(scenario.to_data()))
    for kind in setup.method.setting.kinds:
        if setup.method.participates(kind, 1):
            for variant in setup.method.variants[kind]:
                work = setup.method.client_work(kind, 1, variant)
                named |= {name for each in work.passes for name in each.steps} | {edit.name for edit in work.edits}
    for noun in registry.GROUPS:
        for name in named.intersection(registry.names(noun)):
            if registry.origin(noun, name).package != "edgefl":
                yield noun, name


def inputs_of(federation: Federation, weights: Mapping[str, Tensor]) -> dict[str, object]:
    """Digests of the data and of the initial weights.  A change of them doesn't stop a resume, but it is reported."""
    hashed = hashlib.blake2b(digest_size=12)
    for name, tensor in sorted(weights.items()):
        if not tensor.is_meta:
            hashed.update(name.encode())
            hashed.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return {"data": federation.part_keys, "initial weights": hashed.hexdigest()}


def report_changed_inputs(
    before: Mapping[str, object], now: Mapping[str, object], on_message: Callable[[str], None]
) -> None:
    """Say which of the data and the initial weights aren't those that the run began with."""
    for name in dict.fromkeys(part.partition(":")[0] for part in changed_parts(before, now)):
        on_message(f"{name} changed since the run began; what was trained before stays as it is")


def _digest(content: str | bytes) -> str:
    raw = content.encode() if isinstance(content, str) else content
    return hashlib.blake2b(raw, digest_size=12).hexdigest()


def texts_of(value: object) -> Iterator[str]:
    """All texts in plain data, keys and values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from texts_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_of(item)
