"""Interpreter of a Work: runs its passes batch by batch, each loss under autocast where the precision is half.

``execute`` only runs the passes: a prediction calls it with tensors without data, a measurement with other meters.
``run`` is a node's round: it seeds the generators, executes the work, and collects what is sent and kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from typing import Any, ParamSpec, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from edgefl import registry, seeds
from edgefl.errors import MethodError
from edgefl.models.model import DTYPES
from edgefl.models.tower import running_as_written
from edgefl.registry.answers import describe_answer
from edgefl.work.attention import attention
from edgefl.work.description import POOLED, Description, Pass, Payload, Source, Work
from edgefl.work.edits import applying_edits, edit_uploads
from edgefl.work.meter.meter import NO_METER, Meter, NoMeter
from edgefl.work.meter.trace import FINISH, METERED, START
from edgefl.work.optimizer.gradient_trainer import GradientTrainer
from edgefl.work.optimizer.zeroth_order import ZerothOrderTrainer, without_gradients
from edgefl.work.packed import Parts, PayloadLayout, split_buffer
from edgefl.work.paired_batches import batches
from edgefl.work.step_faults import describe_step, step_faults
from edgefl.work.steps import Context, Peer, Step
from edgefl.work.update import SERVER, Update


def distinct(work: Description) -> list[Pass]:
    """The distinct passes of a work in order of first occurrence."""
    passes: list[Pass] = []
    for pass_ in work.passes:
        if pass_ not in passes:
            passes.append(pass_)
    return passes


Execution = Generator[None, None, tuple[Context, Tensor, int]]
"""A work that is being executed: it stops after each batch."""
Given = ParamSpec("Given")


def execute_by_batch(
    work: Work,
    inputs: Mapping[str, Tensor],
    source: Source,
    *,
    module: nn.Module,
    device: torch.device,
    seed: int,
    meter: Meter | NoMeter = NO_METER,
    kernels: str | None = None,
    peer: Peer | None = None,
) -> Execution:
    """Run every pass of ``work`` on ``module``; returns the context, the summed training loss and its steps.

    ``inputs`` are tensors by the client's own item names, from which ``module`` is loaded; those with a source
    ``table/...`` stay in memory as received.  At the end the edits are folded into the module, and nothing is sent:
    results are in the module and in the context's outputs.  Random draws use the global generators in their current
    state, the order of samples uses ``seed``.  ``kernels`` is the device type whose kernels are simulated, if not
    ``device``'s (a prediction's "cuda").  ``peer`` answers what a step exchanges.  Raises MethodError if the work
    trains a parameter that its model lacks.
    """
    tables = {i.name for p in work.down for i in p.items if i.is_beside_model}
    parameters, buffers = named_tensors(module)
    tensors = parameters | buffers
    _load(tensors, inputs)
    extra = {n: v.to(device) for n, v in inputs.items() if n not in tensors}
    with applying_edits(work, module, extra):
        if work.edits:
            parameters = dict(module.named_parameters())
        trainable = set(work.trainable)
        if missing := trainable - parameters.keys():
            raise MethodError(f"a work of kind {work.kind!r} trains {sorted(missing)[0]!r}, which its model lacks")
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in trainable)
        received = {n: v for n, v in extra.items() if n in tables}
        # what the edits have taken over must be free before the peak: on a GPU these are copies that nothing else holds
        extra.clear()
        originals = {**parameters, **buffers}
        if not isinstance(work.reference, bool):
            if missing := set(work.reference) - originals.keys():
                raise MethodError(f"a work of kind {work.kind!r} asks for a copy of {min(missing)!r}, which it lacks")
            originals = {name: originals[name] for name in work.reference}
        reference = {n: t.detach().clone() for n, t in originals.items()} if work.reference else {}
        trained = {n: p for n, p in parameters.items() if n in trainable}
        ctx = Context(work, module, source, device, received, reference, trained=trained, peer=peer)
        meter.adopt(parameters.values(), "parameters")
        meter.adopt(module.buffers(), "buffers")
        meter.adopt(received.values(), "received")
        meter.adopt(reference.values(), "reference")
        try:
            with (
                attention(work.attention, device, kernels or device.type),
                meter.watching(module),
                running_as_written(),
            ):
                total, steps = yield from _run_passes(ctx, seed, meter)
            ctx.outputs.update(edit_uploads(work, module))
        finally:
            # Payloads are copied next: gradients, the optimizer's state and the copies would lie beside theirs.  The
            # module lives on, and with it its gradients would.
            for parameter in trained.values():
                parameter.grad = None
            ctx.optimizer, ctx.reference = None, {}
    _check_sent(ctx)
    return ctx, total, steps


def _run_to_end(begin: Callable[Given, Execution]) -> Callable[Given, tuple[Context, Tensor, int]]:
    @wraps(begin)
    def run_to_end(*given: Given.args, **more: Given.kwargs) -> tuple[Context, Tensor, int]:
        running = begin(*given, **more)
        while True:
            try:
                next(running)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    return run_to_end


execute = _run_to_end(execute_by_batch)
"""``execute_by_batch`` without its stops: runs every pass, and returns the same."""


def _load(tensors: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> None:
    """Copy inputs into the model's tensors of the same names."""
    if names := [name for name in inputs if name in tensors]:
        # one call for all tensors: one for each took 69 us of a work with 56 tensors, in place of 41
        with torch.no_grad():
            torch._foreach_copy_([tensors[name] for name in names], [inputs[name] for name in names])


Named = tuple[dict[str, nn.Parameter], dict[str, Tensor]]
# A work asks three times, and a walk through a module of 56 tensors took 0.1 ms.  The keys are weak: a module is freed
# when its node drops it, because the values refer to tensors alone.
_NAMED: WeakKeyDictionary[nn.Module, Named] = WeakKeyDictionary()


def named_tensors(module: nn.Module) -> Named:
    """Parameters and buffers of a module by name, walked through once; edits are undone when this is asked for."""
    if module not in _NAMED:
        _NAMED[module] = dict(module.named_parameters()), dict(module.named_buffers())
    return _NAMED[module]


Known = tuple[dict[str, Tensor], list[int], Parts]
# a layout is equal to itself alone, so it stands for its identity; as the key it lives as long as the entry
_PARTS: WeakKeyDictionary[nn.Module, dict[PayloadLayout, Known]] = WeakKeyDictionary()
MOST_PARTS = 16
"""Payloads of a module whose tensors are kept lined up, which took 0.25 ms for 56 tensors.  An entry has a view on
each, and where every round has another payload, all would stay."""


def _module_parts(module: nn.Module, places: PayloadLayout) -> Parts | None:
    """The tensors of a module that a payload sends, lined up once; None if it sends others, or if they can't be."""
    known = _PARTS.setdefault(module, {})
    if places not in known:
        parameters, buffers = named_tensors(module)
        sent = {item.name: parameters.get(item.name, buffers.get(item.name)) for item in places.payload.items}
        tensors = {name: tensor for name, tensor in sent.items() if tensor is not None}
        if len(tensors) < len(sent) or (parts := places.flat_parts(tensors)) is None:
            return None
        if len(known) >= MOST_PARTS:
            known.clear()
        known[places] = tensors, [tensor.data_ptr() for tensor in tensors.values()], parts
    tensors, pointers, parts = known[places]
    # a step may have put other memory behind a parameter
    return parts if all(t.data_ptr() == at for t, at in zip(tensors.values(), pointers, strict=True)) else None


def _check_sent(ctx: Context) -> None:
    """Raise MethodError for a payload item whose output or tensor of the model has another shape than described."""
    parameters, buffers = named_tensors(ctx.model)
    held = {**ctx.outputs, **buffers, **parameters}
    for payload in ctx.work.up:
        for item in payload.items:
            sent = held.get(item.name)
            if sent is not None and sent.shape != item.shape:
                steps = listed_steps(ctx.work)
                raise MethodError(
                    f"payload {payload.name!r} of a work of kind {ctx.work.kind!r} sends {item.name!r} in the shape "
                    f"{tuple(sent.shape)}, described as {item.shape}; it ran {steps}"
                )


def listed_steps(work: Work) -> str:
    """The steps of a work as messages name them, each with its plug-in and its file."""
    return ", ".join(
        registry.describe_part("step", name) for name in dict.fromkeys(n for p in work.passes for n in p.steps)
    )


def step_of(pass_: Pass) -> Step:
    """A new step object of a pass, inside those that stand around it."""
    step: Step = registry.get("step", pass_.step)()
    for name in pass_.around:
        step = registry.get("step", name)(step)
    return step


@runtime_checkable
class Trainer(Protocol):
    """How the batches of the passes that train change a work's parameters."""

    def scale_rates(self, factor: float) -> None:
        """Set every learning rate to that of the first local epoch, times ``factor``."""

    def begin(self, step: Step, pass_: Pass) -> None:
        """Before the first batch of a pass that trains.  Raises MethodError if the step can't be trained so."""

    def train(self, forward: Callable[[], Tensor], meter: Meter | NoMeter) -> Tensor:
        """Train by a batch whose loss ``forward`` computes; returns the loss, without its graph."""

    def end_batch(self, index: int, meter: Meter | NoMeter) -> None:
        """After a batch of the distinct pass ``index``, which is still in memory; its metered step has ended."""

    def end_pass(self, index: int, meter: Meter | NoMeter) -> None:
        """After the last batch of a pass that trains."""


def _run_passes(ctx: Context, seed: int, meter: Meter | NoMeter) -> Generator[None, None, tuple[Tensor, int]]:
    trainer: Trainer | None = None
    if ctx.trained and any(pass_.train for pass_ in ctx.work.passes):
        trainer = ZerothOrderTrainer(ctx, seed) if without_gradients(ctx.work) else GradientTrainer(ctx)
    order = distinct(ctx.work)
    occurrences: Counter[int] = Counter()
    # losses are added up on the device, because float(loss) after each step would wait for a GPU
    total, steps = torch.zeros((), dtype=ctx.floating, device=ctx.device), 0
    meter.adopt([total, *ctx.outputs.values()], "outputs")
    decay = ctx.work.number("epoch_decay", 1.0)
    for pass_ in ctx.work.passes:
        index = order.index(pass_)
        pass_meter = meter if occurrences[index] < meter.most else NO_METER
        pass_seed = seeds.key(seed, "shuffle", index, occurrences[index])
        # equal passes are epochs; one on public samples has the rates of the epoch before it
        if trainer and decay != 1 and pass_.train and pass_.data in ("private", POOLED):
            trainer.scale_rates(decay ** occurrences[index])
        trains = trainer if pass_.train else None
        steps += yield from _one_pass(ctx, pass_, index, pass_seed, trains, pass_meter, total)
        occurrences[index] += 1
    return total, steps


def _one_pass(
    ctx: Context, pass_: Pass, index: int, seed: int, trainer: Trainer | None, meter: Meter | NoMeter, total: Tensor
) -> Generator[None, None, int]:
    """Run the distinct pass ``index`` of a work once; returns how many losses it added to ``total``."""
    step, limit = step_of(pass_), metered_steps(ctx.work)
    if trainer:
        trainer.begin(step, pass_)
    differentiates = pass_.train and not without_gradients(ctx.work)
    # train() walks through all modules and sets each: 96 us for 43 modules, in place of the 27 us of this question, to
    # which most passes answer no
    if any(module.training is not differentiates for module in ctx.model.modules()):
        ctx.model.train(differentiates)
    _once(ctx, step.start, pass_, index, START, meter)
    counts: Counter[str] = Counter()
    with torch.set_grad_enabled(differentiates):
        for pattern, batch in batches(ctx.source, pass_, seed):
            counts[pattern] += 1
            given = {name: value.to(ctx.device, non_blocking=True) for name, value in batch.items()}
            batch = _cast(ctx, given)  # beside what was given: on a CPU the source has that until the next batch
            step_meter = meter if counts[pattern] <= limit else NO_METER
            step_meter.adopt([*given.values(), *batch.values()], "inputs")
            forward = partial(_loss, ctx, step, batch, pattern, pass_)
            with step_meter.step(index, pattern):
                loss = trainer.train(forward, step_meter) if trainer else forward()
                if trainer:
                    total.add_(loss)
                elif loss is not None and not pass_.train:
                    ctx.score(loss, batch)
            if trainer:
                trainer.end_batch(index, step_meter)
            # a name that outlives the batch would keep its inputs, or what its loss refers to, in the peak of the next
            del given, batch, forward, loss
            yield
        if trainer:
            trainer.end_pass(index, meter)
    _once(ctx, step.finish, pass_, index, FINISH, meter)
    return counts.total() if trainer else 0


def _cast(ctx: Context, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """A batch with its floating fields in the dtypes that the model takes; itself if that is float32 for all."""
    if not ctx.inputs:
        return batch
    return {n: v.to(ctx.inputs.get(n, ctx.floating)) if v.is_floating_point() else v for n, v in batch.items()}


def _once(
    ctx: Context, part: Callable[[Context, Pass], None], pass_: Pass, index: int, pattern: str, meter: Meter | NoMeter
) -> None:
    """Run a step's start or finish; tensors that it allocates count as outputs."""
    before = set(ctx.outputs)
    with torch.no_grad(), meter.step(index, pattern), step_faults(ctx, pass_):
        part(ctx, pass_)
    meter.adopt([t for n, t in ctx.outputs.items() if n not in before], "outputs")
    meter.adopt(ctx.metrics.values(), "outputs")


# advice for errors of torch that come from a combination of settings, by a part of torch's message
_ADVICE = {
    "more than 1 value per channel": "its model's BatchNorm gets a single value per channel from a batch of 1; set "
    "training.batch to 2 or more, and give each client 2 samples or more (data.samples, data.clients)",
    "No available kernel": "no kernel that training.attention allows computes its model's attention (flash takes no "
    "mask, on a CPU no dropout, on a GPU no float32); set training.attention to device or math",
}


def _loss(ctx: Context, step: Step, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Any:
    """The loss of a batch, a scalar tensor; None may stand for it in a pass that doesn't train.

    Raises MethodError if it is something else, or for an error of torch that comes from a combination of settings.
    """
    mixed = ctx.work.precision in ("bfloat16", "float16")
    autocast = torch.autocast(ctx.device.type, DTYPES[ctx.work.precision]) if mixed else nullcontext()
    try:
        with autocast, step_faults(ctx, pass_, batch):
            loss = step.loss(ctx, batch, pattern, pass_)
    except (RuntimeError, ValueError) as error:
        if advice := next((advice for part, advice in _ADVICE.items() if part in str(error)), None):
            raise MethodError(f"a work of kind {ctx.work.kind!r} can't run: {advice}") from error
        raise
    if (loss is None and not pass_.train) or (isinstance(loss, Tensor) and not loss.dim()):
        return loss
    given = f"a tensor {tuple(loss.shape)}" if isinstance(loss, Tensor) else describe_answer(loss)
    rest = ", or None in a pass that doesn't train" if loss is None else ""
    raise MethodError(f"the loss of {describe_step(pass_)} is {given}; it must be a scalar tensor{rest}")


def metered_steps(work: Description) -> int:
    """Steps of a pattern that are metered in an occurrence of a pass; later steps cost as much as the last of them.

    With accumulation, the first batch of the second update has the optimizer's state but no
    gradients yet, and the second has both.
    """
    return METERED if work.accumulation == 1 else work.accumulation + METERED


def run(
    work: Work,
    inputs: Mapping[str, Tensor],
    source: Source,
    *,
    module: nn.Module,
    device: torch.device,
    seed: int,
    meter: Meter | NoMeter = NO_METER,
    sent: Callable[[Payload, Mapping[str, Tensor], Mapping[str, Tensor]], dict[str, Tensor]] | None = None,
    watch: AbstractContextManager[object] | None = None,
    buffer: Tensor | None = None,
    peer: Peer | None = None,
) -> Update:
    """Execute the work, and collect its encoded payloads and its kept tensors (``collect_update``).

    ``module`` must have been built from ``work.model``; it is loaded from ``inputs`` (tensors by item name) and
    changed.  The global generators are forked around the work, so its random draws depend on ``seed`` alone.
    ``peer`` answers what a step exchanges.  ``sent(payload, tensors, bases)`` gives what an attacker sends instead of a
    payload's tensors, by item name.  ``watch`` is a context around the passes, before payloads are collected, such as
    an ``AllocatorPeak``.
    """
    with seeds.seeding_globals(seed, device):
        with watch or nullcontext():
            ended = execute(work, inputs, source, module=module, device=device, seed=seed, meter=meter, peer=peer)
        return collect_update(ended, inputs, meter=meter, sent=sent, buffer=buffer)


def collect_update(
    ended: tuple[Context, Tensor, int],
    inputs: Mapping[str, Tensor],
    *,
    meter: Meter | NoMeter = NO_METER,
    sent: Callable[[Payload, Mapping[str, Tensor], Mapping[str, Tensor]], dict[str, Tensor]] | None = None,
    buffer: Tensor | None = None,
) -> Update:
    """The update of a work that was executed from ``inputs``.

    A kept table is the output of its name, or unchanged if no step wrote that output.  Payloads without a codec are
    ``Packed`` unless an attacker sends others; they lie in ``buffer``, bytes ``[packed.space(work.up)]``, if it is
    given.  Raises MethodError if a payload names a tensor that neither the model nor the outputs hold.
    """
    ctx, total, steps = ended
    work, module = ctx.work, ctx.model
    parameters, buffers = named_tensors(module)
    held = {**ctx.outputs, **buffers, **parameters}
    if missing := [name for name in work.keep if name not in held and name not in ctx.received]:
        raise MethodError(
            f"a work of kind {work.kind!r} keeps {missing[0]!r}, which neither model, outputs nor tables hold"
        )
    payloads: dict[str, Mapping[str, Tensor]] = {}
    buffers = {} if buffer is None else {payload.name: part for payload, part in split_buffer(buffer, work.up)}
    for payload in work.up:
        if missing := [item.name for item in payload.items if item.name not in held]:
            raise MethodError(f"payload {payload.name!r} sends {missing[0]!r}, which neither model nor outputs hold")
        places = payload.places
        if places is not None and sent is None:
            payloads[payload.name] = places.copy(held, buffers.get(payload.name), _module_parts(module, places))
            continue
        tensors = {i.name: held[i.name].detach().to("cpu", DTYPES[i.dtype], copy=True) for i in payload.items}
        if sent is not None:
            tensors = sent(payload, tensors, work.bases(inputs))
        # gradients, optimizer and activations are freed by now, so that encoding tensor by tensor is never the
        # peak; what was sent down is read again from the node's storage
        payloads[payload.name] = payload.encode_tensors(tensors, work.bases(inputs)) if payload.codec else tensors
    return Update(
        SERVER, work.kind, {}, work, payloads, {},
        loss=float(total) / steps if steps else None,
        metrics={name: float(value) for name, value in ctx.metrics.items()},
        updates=ctx.updates,
        kept={name: {**ctx.received, **held}[name].detach().to("cpu", copy=True) for name in work.keep},
        trace=meter.trace(),
    )  # fmt: skip
