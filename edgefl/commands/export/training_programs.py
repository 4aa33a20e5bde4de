"""Training steps as programs of ExecuTorch, each held against torch before it is written."""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from edgefl import models, seeds
from edgefl.commands.export.answer import TrainingProgram
from edgefl.errors import MethodError, RunError, install_hint
from edgefl.machine.observed_work import RandomBatches
from edgefl.models.tried import one_line
from edgefl.planning.planner import Planner
from edgefl.planning.subjects import largest_works
from edgefl.records.record import UNSET
from edgefl.runs.durable import replace_file, writing
from edgefl.runs.progress import OnProgress
from edgefl.schedules import keeps
from edgefl.work import Context, Source, Work, distinct
from edgefl.work.attention import attention
from edgefl.work.interpreter import step_of
from edgefl.work.optimizer.zeroth_order import without_gradients
from edgefl.work.private import PRIVATE
from edgefl.work.slices import take

VERSION = "1.5.1"
"""ExecuTorch's training interface is experimental: another version has another."""
TOLERANCE = 1e-4
"""A choice: the gradients of right kernels differed by 4e-6 at most, those before max pooling by 1e3."""
LEAST = 1e-2
"""The share of the largest gradient that a difference is divided by at least.  A choice: rounding moves gradients that
are zero by nature, such as those of the biases of attention's keys, by more than themselves."""


def write_programs(
    planner: Planner, kind: str | None, stage: int | None, folder: Path, on_progress: OnProgress
) -> list[TrainingProgram]:
    """Write the steps of each kind at each stage, or of these, as ``KIND-stage-N.pte``; return what they take.

    Raises MethodError, before a file is written, for a step that ExecuTorch can't run or runs otherwise.
    """
    made = list[tuple[TrainingProgram, bytes]]()
    start = planner.setup.method.initial(planner.setup.seed).tensors
    for subject, offered, work, source in largest_works(planner, kind, stage):
        where = f"{subject.name} at stage {offered.index}"
        trains = bool(work.trainable) and not without_gradients(work)
        cases = [(p, pattern) for p in distinct(work) if p.train and trains for pattern in source.counts(p)]
        if not cases:
            raise MethodError(f"{where} trains nothing by a backward pass, so it has no step to export")
        for p, pattern in cases:
            on_progress("prepare", {"what": f"exporting the step of {where}"})
            name = "-".join([subject.name, f"stage-{offered.index}", *([p.step, pattern] if cases[1:] else [])])
            file = folder / f"{re.sub('[^a-zA-Z0-9_.-]+', '-', name)}.pte"
            plain = replace(  # as the program has it: nothing is kept of an update
                work, passes=(replace(p, patterns=(pattern,)),), attention="math",
                optimizer={"name": "sgd", "implementation": "for-loop"}, scalars={**work.scalars, "momentum": 0.0},
            )  # fmt: skip
            try:
                if "half" in work.model:
                    raise MethodError("the server computes a part of it")
                if keeps(work):
                    raise MethodError("it trains from activations that a client keeps")
                program, arena, constants, difference = _export_step(plain, source, start)
            except MethodError as error:
                raise MethodError(f"{where} can't be a program of ExecuTorch: {error}") from error
            told = TrainingProgram(
                kind=subject.kind, variant=subject.shown_variant, stage=offered.index, part=offered.label or UNSET,
                file=str(file), arena_bytes=arena, constant_bytes=constants,
                peak_memory_bytes=planner.predictor.trace(plain, source).peak_memory_bytes,
                gradient_difference=difference,
            )  # fmt: skip
            made.append((told, program))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for told, program in made:
        replace_file(Path(told.file), program)
    return [told for told, _ in made]


class _TrainingStep(nn.Module):
    """The loss of a batch as a module's result, so that torch can export the model, the loss and their gradients."""

    def __init__(self, model: nn.Module, loss: Callable[[Sequence[Tensor]], Tensor | None]):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *fields: Tensor) -> Tensor | None:
        """The mean loss, a scalar, of the batch's tensors in their order; None for a batch without a loss."""
        return self.loss(fields)


def _export_step(work: Work, source: Source, start: Mapping[str, Tensor]) -> tuple[bytes, int, int, float]:
    """The program of a work of one pass, its bytes as ``_lower`` tells them, and the largest difference."""
    (pass_,), cpu = work.passes, torch.device("cpu")
    for name in ("torchao", "torch.utils._pytree"):  # which warn of parts that no program needs
        logging.getLogger(name).setLevel(logging.ERROR)
    with seeds.seeding_globals(0), attention(work.attention, cpu, "cpu"), warnings.catch_warnings(action="ignore"):
        model = models.build(work.model).train()
        items = [item for payload in work.down for item in payload.items if item.source in start]
        model.load_state_dict({item.name: take(start[item.source], item.cut) for item in items}, strict=False)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in work.trainable)
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        context, step = Context(work, model, source, cpu, trained=trained), step_of(pass_)
        with torch.no_grad():
            step.start(context, pass_)
        _check_step(context)
        check_executorch()
        (pattern, batch), (_, other) = (
            next(RandomBatches(source, work.model, 1).batches(pass_, seed)) for seed in (0, 1)
        )
        whole = _TrainingStep(model, lambda v: step.loss(context, dict(zip(batch, v, strict=True)), pattern, pass_))
        whole(*batch.values()).backward()
        for parameter in trained.values():  # torch exports none that gets no gradient, as of a modality that is missing
            parameter.requires_grad_(parameter.grad is not None)
        program, arena, constants = _lower(whole, tuple(batch.values()))
        return program, arena, constants, _compare(whole, program, [tuple(batch.values()), tuple(other.values())])


def _check_step(context: Context) -> None:
    """Raise MethodError for a step that can't be a program, as far as this is known without ExecuTorch."""
    work, tensors = context.work, [*context.model.parameters(), *context.model.buffers()]
    beside = any(item.is_beside_model for payload in work.down for item in payload.items)
    if work.edits or work.reference or beside or context.outputs:
        raise MethodError("its method gives the step more than a model and a batch; take fedavg")
    if work.precision != "float32" or {t.dtype for t in tensors if t.dtype.is_floating_point} - {torch.float32}:
        raise MethodError("rounding of half precision would hide a wrong gradient; set training.precision: float32")
    if any(PRIVATE in pass_.around for pass_ in work.passes):
        raise MethodError("its graph would repeat one draw of the noise at each step; set training.private: null")
    if any(tower.get("checkpointing") for tower in work.model["towers"].values()):
        raise MethodError("its graph would keep what is to be computed again; set training.checkpointing: false")
    for name, part in context.model.named_modules():
        if isinstance(part, _BatchNorm) and part.training:
            raise MethodError(f"there is no kernel of BatchNorm that trains ({name}); freeze it or use GroupNorm")


def check_executorch() -> None:
    """Raise RunError, with the command that installs it, unless ExecuTorch of VERSION is there and can be loaded."""
    try:
        found = version("executorch")
    except PackageNotFoundError:
        found = "none"
    if found != VERSION:
        hint = f"pip install executorch=={VERSION} (or, {install_hint('executorch')})"
        raise RunError(f"executorch {VERSION} is needed, and {found} is installed: {hint}")
    try:
        import_module("executorch.extension.training")
    except (ImportError, OSError) as error:  # it is compiled for one torch
        raise RunError(f"executorch {VERSION} can't be loaded beside torch {torch.__version__}: {error}") from error


def _lower(step: _TrainingStep, batch: tuple[Tensor, ...]) -> tuple[bytes, int, int]:
    """The program of a step, forward and backward in one graph; bytes that its planner lays out, and of constants."""
    from executorch.exir import EdgeCompileConfig, to_edge
    from executorch.exir.error import ExportError, InternalError
    from executorch.extension.pybindings.portable_lib import _get_operator_names
    from torch.export.experimental import _export_forward_backward

    try:
        joint = _export_forward_backward(torch.export.export(step, batch, strict=False))
        for node in joint.graph.nodes:
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                raise MethodError(f"two runtimes draw different masks ({node.target}); set the model's dropout to 0")
        made = to_edge(joint, compile_config=EdgeCompileConfig(_check_ir_validity=False)).to_executorch()
    except (RuntimeError, ValueError, AssertionError, ExportError, InternalError) as error:
        raise MethodError(one_line(error)) from error
    plan = made.executorch_program.execution_plan[0]  # the others only name gradients and parameters
    named = {f"{operator.name}.{operator.overload}".rstrip(".") for operator in plan.operators}
    if missing := sorted(named - set(_get_operator_names())):
        raise MethodError(f"there is no kernel of {', '.join(missing)}")
    constants = sum(len(buffer.storage) for buffer in made.executorch_program.constant_buffer)
    return made.buffer, sum(plan.non_const_buffer_sizes), constants


def _compare(step: _TrainingStep, program: bytes, batches: Sequence[tuple[Tensor, ...]]) -> float:
    """The largest difference of a gradient in ExecuTorch's runtime from torch's; MethodError if above TOLERANCE.

    Parameters are moved after a batch, so that neither a factor that begins as zero nor memory that is used twice
    hides one.
    """
    from executorch.extension.training import _load_for_executorch_for_training_from_buffer

    loaded, own = _load_for_executorch_for_training_from_buffer(program), dict(step.named_parameters())
    differences = list[tuple[float, str]]()
    for batch in batches:
        step.zero_grad()
        step(*batch).backward()
        loaded.forward_backward("forward", batch)
        found, expected = loaded.named_gradients(), {n: p.grad for n, p in own.items() if p.grad is not None}
        largest = {name: float(gradient.abs().max()) for name, gradient in expected.items()}
        for name, gradient in expected.items():
            difference = float((found[name] - gradient).abs().max())
            scale = max(largest[name], LEAST * max(largest.values())) or 1.0
            differences.append((difference / scale if math.isfinite(difference) else math.inf, name))
        with torch.no_grad():
            for name, parameter in loaded.named_parameters().items():
                parameter.copy_(own[name].add_(torch.randn_like(own[name]), alpha=0.02))
    worst, name = max(differences)
    if worst > TOLERANCE:
        raise MethodError(
            f"the gradient of {name.removeprefix('model.')} differs from torch's by {worst:.1g} of its largest number, "
            f"and {TOLERANCE:g} is allowed; a kernel is wrong, as that of max pooling is"
        )
    return worst
