"""Checks of one assignment: its costs to the byte and the FLOP, what it trains, and the same bits in repeated runs."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MethodType, ModuleType
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from edgefl import models, registry
from edgefl.cost.predict import cost_key
from edgefl.memo import cache_folder
from edgefl.testing.findings import CheckRule, Findings
from edgefl.testing.tiny_federation import TinyFederation
from edgefl.training import Assignment, Node, ProcessExecutor
from edgefl.work import Meter, Payload, Source, StepTrace, Work, run
from edgefl.work.torch_device import device_of
from edgefl.work.update import Update


def run_assignment(
    federation: TinyFederation, assignment: Assignment, source: Source, rule: str, where: str
) -> Update | None:
    """The assignment's report, None if running it fails; the first of each cost is compared with its prediction."""
    findings = federation.findings
    key = cost_key(assignment.work, source)
    with findings.attempt(rule, where):
        before = kept_by_steps(assignment.work)
        report = federation.node.run_assignment(assignment)
        after = kept_by_steps(assignment.work)
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        fault = "{} changed while the work ran: what a step needs later belongs in ctx.notes or ctx.outputs"
        findings.expect_none(CheckRule.STATELESS, where, changed, fault)
        if key not in federation.measured:
            federation.measured.add(key)
            with findings.attempt(CheckRule.MEMORY, where):
                check_cost(federation, assignment, source, where)
        check_bytes(findings, assignment.work.up, report.payloads, where)
        inputs = {p.name: {i.name: assignment.inputs[i.name] for i in p.items} for p in assignment.work.down}
        check_bytes(findings, assignment.work.down, inputs, where)
        return report
    return None


def check_training(findings: Findings, assignment: Assignment, report: Update, where: str) -> None:
    """Check that training changed what trains, at a finite loss."""
    work, loss = assignment.work, report.loss
    if not any(p.train for p in work.passes):
        return
    if loss is None:
        findings.expect(CheckRule.TRAINS, where, False, "no batch gave a loss to train on")
        return
    findings.expect(CheckRule.TRAINS, where, True)
    findings.expect(CheckRule.TRAINS, where, math.isfinite(loss), f"the mean loss is {loss}")
    after = {n: t for named in report.payloads.values() for n, t in named.items()} | dict(report.kept)
    names = set(work.trainable) & after.keys() & assignment.inputs.keys()
    moved = any(not has_same_bits(assignment.inputs[name].to(after[name].dtype), after[name]) for name in names)
    findings.expect(CheckRule.TRAINS, where, moved or not names, "no trainable parameter that is sent up has changed")


def check_repeated(federation: TinyFederation, assignment: Assignment, report: Update, where: str) -> None:
    """Repeat an assignment on this node, where others ran since, and on a new one, and compare the reports."""
    with federation.findings.attempt(CheckRule.SEED, where):
        for node in (federation.node, Node(federation.setup.clients, device_of("cpu"))):
            check_equal(federation.findings, CheckRule.SEED, report, node.run_assignment(assignment), where)


def check_kept(federation: TinyFederation, assignment: Assignment, report: Update, source: Source, where: str) -> None:
    """Check the cost of a client's next assignment, which starts from the parameters that it kept."""
    if assignment.work.keep and report.kept:
        following = replace(assignment, inputs={**assignment.inputs, **report.kept})
        with federation.findings.attempt(CheckRule.KEPT, where):
            check_cost(federation, following, source, f"{where}, with what was kept")


def check_in_worker(federation: TinyFederation) -> None:
    """Repeat the clients' assignments in a worker process and compare the reports."""
    scenario = federation.scenario
    with ProcessExecutor(scenario.data, scenario.seed, scenario.model.tokens, cache_folder(), 1, "cpu") as executor:
        futures = [executor.submit(assignment) for _, assignment, _ in federation.assignments]
        for (where, _, report), future in zip(federation.assignments, futures, strict=True):
            with federation.findings.attempt(CheckRule.PROCESS, where):
                check_equal(federation.findings, CheckRule.PROCESS, report, future.result(), where)


def check_equal(findings: Findings, rule: str, first: Update, second: Update, where: str) -> None:
    """Compare two reports of one assignment."""
    different = differing(_tensors(first), _tensors(second))
    findings.expect_none(rule, where, different, "{} differs")
    one, two = ((r.loss, r.metrics, r.updates) for r in (first, second))
    fault = f"loss {one[0]} after {one[2]} updates, and {two[0]} after {two[2]}"
    findings.expect(rule, where, one == two, fault)


def _tensors(result: Update) -> dict[str, Tensor]:
    uploaded = {f"{p}: {n}": t for p, named in result.payloads.items() for n, t in named.items()}
    return uploaded | {f"kept: {n}": t for n, t in result.kept.items()}


_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_DEEPEST = 6
"""Levels of a value that are looked into: an object may hold itself.

A choice, not measured: of what lies deeper, only whether it is the same object is seen.
"""


def kept_by_steps(work: Work) -> dict[str, object]:
    """Values by name (``module.Class.attribute``, ``module.variable``), in a form that shows every change.

    Functions, classes and modules are left out: they hold no results.
    """
    parts = {registry.get("step", name) for each in work.passes for name in each.steps}
    parts |= {registry.get("edit", each.name) for each in work.edits}
    classes = {kind for part in parts for kind in (part if isinstance(part, type) else type(part)).__mro__}
    held: dict[str, object] = {}
    for owner in classes - {object}:
        held |= {f"{owner.__module__}.{owner.__qualname__}.{name}": value for name, value in _values(vars(owner))}
        if registry.plug_ins().owner(getattr(sys.modules.get(owner.__module__), "__file__", None) or ""):
            held |= {
                f"{owner.__module__}.{name}": value for name, value in _values(vars(sys.modules[owner.__module__]))
            }
    return held


def _values(names: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in list(names.items()):
        code = callable(value) or hasattr(type(value), "__get__") or isinstance(value, ModuleType)
        if not (code or name.startswith("__") or name == "_abc_impl"):
            yield name, _freeze_value(value)


def _freeze_value(value: Any, depth: int = 0) -> object:
    """The value as nested tuples; an object of an unknown type as its identity and its attributes.

    The identity is a bound method, since that holds its object: an id alone could be given to another one afterwards.
    Two of them are equal if their object is the same.
    """
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8) if not value.is_meta else None
        content = hashlib.blake2b(raw.numpy().tobytes()).hexdigest() if raw is not None else ""
        return "tensor", tuple(value.shape), str(value.dtype), content
    if depth >= _DEEPEST:
        return MethodType(id, value)
    if isinstance(value, Mapping):
        return tuple((_freeze_value(k, depth + 1), _freeze_value(v, depth + 1)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return tuple(_freeze_value(item, depth + 1) for item in value)
    if isinstance(value, set | frozenset):
        return frozenset(_freeze_value(item, depth + 1) for item in value)
    return MethodType(id, value), _freeze_value(getattr(value, "__dict__", {}), depth + 1)


def check_cost(federation: TinyFederation, assignment: Assignment, source: Source, where: str) -> None:
    """Compare the predicted memory and FLOPs of an assignment with the measured ones, to the byte and the FLOP.

    Every step is metered, so that growth from batch to batch is noticed.
    """
    predicted = federation.predictor.trace(assignment.work, source)
    meter, module = Meter(most=sys.maxsize), models.build(assignment.work.model)
    # tables may be views of what a server's work sent in one piece of memory; each arrives by itself
    inputs = {name: tensor.clone() for name, tensor in assignment.inputs.items()}
    run(assignment.work, inputs, source, module=module, device=device_of("cpu"), seed=assignment.seed, meter=meter)
    measured = meter.trace()
    parts = [
        f"{part} {predicted.memory_bytes[part]} predicted, {measured.memory_bytes[part]} measured"
        for part in predicted.memory_bytes
        if predicted.memory_bytes[part] != measured.memory_bytes[part]
    ]
    equal = predicted.peak_memory_bytes == measured.peak_memory_bytes and not parts
    fault = f"{predicted.peak_memory_bytes} bytes predicted, {measured.peak_memory_bytes} measured"
    federation.findings.expect(CheckRule.MEMORY, where, equal, "; ".join([fault, *parts]))
    flops = _flops(predicted), _flops(measured)
    fault = f"forward and backward by pass and pattern: {flops[0]} predicted, {flops[1]} measured"
    federation.findings.expect(CheckRule.FLOPS, where, flops[0] == flops[1], fault)


def _flops(trace: StepTrace) -> dict[tuple[int, str], tuple[int, int]]:
    return {key: (step.forward_flops, step.backward_flops) for key, step in trace.steps.items()}


def check_bytes(
    findings: Findings, payloads: Sequence[Payload], tensors: Mapping[str, Mapping[str, Tensor]], where: str
) -> None:
    """Compare the described bytes of payloads with those of their serialised ``tensors``, by payload and item."""
    for payload in payloads:
        if payload.items:
            body = safetensors.torch.save({n: t.contiguous().clone() for n, t in tensors[payload.name].items()})
            fault = f"payload {payload.name!r} has {len(body)} bytes, described as {payload.serialised_bytes}"
            findings.expect(CheckRule.BYTES, where, len(body) == payload.serialised_bytes, fault)


def has_same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape, precision and bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(*(t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def differing(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[str]:
    """Names that only one of the two has, or whose tensors differ, sorted."""
    return sorted(
        name for name in a.keys() | b.keys() if name not in a or name not in b or not has_same_bits(a[name], b[name])
    )


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors in storage of their own."""
    return {name: tensor.clone() for name, tensor in tensors.items()}
