"""Checks of predicted costs: memory and FLOPs against a measurement, bytes against what is serialised."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import safetensors.torch
from torch import Tensor

from edgefl import models
from edgefl.commands.check import rules
from edgefl.commands.check.federation import TinyFederation
from edgefl.commands.check.findings import Findings
from edgefl.training import Task
from edgefl.work import Meter, Payload, Source, Trace, run
from edgefl.work.torch_device import device_of


def check_cost(federation: TinyFederation, task: Task, source: Source, where: str) -> None:
    """Compare the predicted memory and FLOPs of a task with the measured ones, to the byte and the FLOP.

    Every step is metered, so that growth from batch to batch is noticed.
    """
    predicted = federation.predictor.trace(task.work, source)
    meter, module = Meter(most=sys.maxsize), models.build(task.work.model)
    # tables may be views of what a server's work sent in one piece of memory; each arrives by itself
    inputs = {name: tensor.clone() for name, tensor in task.inputs.items()}
    run(task.work, inputs, source, module=module, device=device_of("cpu"), seed=task.seed, meter=meter)
    measured = meter.trace()
    parts = [
        f"{part} {predicted.memory_bytes[part]} predicted, {measured.memory_bytes[part]} measured"
        for part in predicted.memory_bytes
        if predicted.memory_bytes[part] != measured.memory_bytes[part]
    ]
    equal = predicted.peak_memory_bytes == measured.peak_memory_bytes and not parts
    fault = f"{predicted.peak_memory_bytes} bytes predicted, {measured.peak_memory_bytes} measured"
    federation.findings.expect(rules.MEMORY, where, equal, "; ".join([fault, *parts]))
    flops = _flops(predicted), _flops(measured)
    fault = f"forward and backward by pass and pattern: {flops[0]} predicted, {flops[1]} measured"
    federation.findings.expect(rules.FLOPS, where, flops[0] == flops[1], fault)


def _flops(trace: Trace) -> dict[tuple[int, str], tuple[int, int]]:
    return {key: (step.forward_flops, step.backward_flops) for key, step in trace.steps.items()}


def check_bytes(
    findings: Findings, payloads: Sequence[Payload], tensors: Mapping[str, Mapping[str, Tensor]], where: str
) -> None:
    """Compare the described bytes of payloads with those of their serialised ``tensors``, by payload and item."""
    for payload in payloads:
        if payload.items:
            body = safetensors.torch.save({n: t.contiguous().clone() for n, t in tensors[payload.name].items()})
            fault = f"payload {payload.name!r} has {len(body)} bytes, described as {payload.serialised_bytes}"
            findings.expect(rules.BYTES, where, len(body) == payload.serialised_bytes, fault)
