"""The one interpreter of a Work.

``execute`` runs the passes and nothing else: a prediction calls it with tensors that hold no data, a measurement under
other meters.  ``run`` is what a node does in a round: ``execute`` with the draws seeded, then what is sent and kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from edgefl import registry, seeds
from edgefl.errors import MethodError
from edgefl.work.attention import attention
from edgefl.work.description import DTYPES, Pass, Source, Work
from edgefl.work.learning_rates import grouped
from edgefl.work.meter import FINISH, METERED, START, UPDATE, Meter, Trace
from edgefl.work.paired_batches import batches
from edgefl.work.steps import Context, Step


@dataclass(frozen=True)
class Result:
    """What a work gives back: payloads by name, metrics, kept tensors, mean training loss, and the trace if metered."""

    payloads: Mapping[str, Mapping[str, Tensor]]
    metrics: Mapping[str, float] = field(default_factory=dict)
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    loss: float | None = None
    trace: Trace | None = None


def distinct(work: Work) -> list[Pass]:
    """The different passes of a work in order of their first place."""
    found: list[Pass] = []
    for pass_ in work.passes:
        if pass_ not in found:
            found.append(pass_)
    return found


def make_optimizer(work: Work, named: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a work for parameters by name, in groups where rates differ by part.

    Raises MethodError for an unknown one.
    """
    settings = {**work.optimizer, **work.scalars}
    implementation = settings.get("implementation", "fused")
    flags = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    rates = {"lr": settings["lr"], "weight_decay": settings.get("weight_decay", 0.0)}
    parameters: list[Any] = list(named.values())
    if settings.get("rates"):
        parameters = [{**own, "params": [named[n] for n in names]} for own, names in grouped(settings, named)]
    match settings["name"]:
        case "sgd":
            return torch.optim.SGD(parameters, momentum=settings.get("momentum", 0.0), **rates, **flags)
        case "adam" | "adamw" as name:
            kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
            return kind(parameters, betas=tuple(settings.get("betas", (0.9, 0.999))), **rates, **flags)
    raise MethodError(f"unknown optimizer {settings['name']!r}; allowed: adam, adamw, sgd")


@contextmanager
def _edited(work: Work, module: nn.Module, received: Mapping[str, Tensor]) -> Iterator[None]:
    done = []
    try:
        for edit in work.edits:
            registry.get("edit", edit.name).apply(edit, module, received)
            done.append(edit)
        yield
    finally:
        for edit in reversed(done):
            registry.get("edit", edit.name).fold(edit, module)


def execute(
    work: Work,
    inputs: Mapping[str, Tensor],
    source: Source,
    *,
    module: nn.Module,
    device: torch.device,
    seed: int,
    meter: Meter | None = None,
    kernels: str | None = None,
) -> tuple[Context, Tensor, int]:
    """Run every pass of ``work`` on ``module``; gives the context, the summed training loss and its steps.

    ``inputs`` are tensors by the client's own item names, from which ``module`` is loaded; those with a source
    ``table/...`` stay in memory as received.  In the end the edits are folded into the module, and nothing is sent:
    what the work has made is in the module and in the context's outputs.  Draws follow torch's generators as they
    stand, and the order of samples ``seed``.  ``kernels`` is the type of device whose kernels are meant where it isn't
    ``device``'s (a prediction's "cuda").  Raises MethodError if the work trains what its model lacks.
    """
    tables = {i.name for p in work.down for i in p.items if i.source.startswith("table/")}
    own = dict(module.named_parameters()) | dict(module.named_buffers())
    with torch.no_grad():
        for name, value in inputs.items():
            if name in own:
                own[name].copy_(value)
    extra = {n: v.to(device) for n, v in inputs.items() if n not in own}
    with _edited(work, module, extra):
        parameters = dict(module.named_parameters())
        wanted = set(work.trainable)
        if missing := wanted - parameters.keys():
            raise MethodError(f"a work of kind {work.kind!r} trains {sorted(missing)[0]!r}, which its model lacks")
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in wanted)
        received = {n: v for n, v in extra.items() if n in tables}
        extra.clear()
        whole = {**parameters, **dict(module.named_buffers())}
        reference = {n: t.detach().clone() for n, t in whole.items()} if work.reference else {}
        ctx = Context(work, module, source, device, received, reference)
        if meter:
            meter.adopt(parameters.values(), "parameters")
            meter.adopt(module.buffers(), "buffers")
            meter.adopt(received.values(), "received")
            meter.adopt(reference.values(), "reference")
        trained = {n: p for n, p in parameters.items() if n in wanted}
        hooks = []
        if meter:
            hooks = [
                p.register_post_accumulate_grad_hook(lambda p: meter.adopt([p.grad], "gradients"))
                for p in trained.values()
            ]
        try:
            with (
                attention(work.attention, device, kernels or device.type),
                meter.watching(module) if meter else nullcontext(),
            ):
                total, steps = _passes(ctx, trained, seed, meter)
        finally:
            for hook in hooks:
                hook.remove()
            for parameter in trained.values():
                parameter.grad = None
    return ctx, total, steps


def _passes(ctx: Context, trained: Mapping[str, nn.Parameter], seed: int, meter: Meter | None) -> tuple[Tensor, int]:
    work = ctx.work
    training = any(p.train for p in work.passes)
    update = Update(work, trained, ctx.device) if training and trained else None
    order = distinct(work)
    most = metered_steps(work)
    places: Counter[int] = Counter()
    total, steps = torch.zeros((), device=ctx.device), 0
    if meter:
        meter.adopt([total], "outputs")
    for pass_ in work.passes:
        index = order.index(pass_)
        place = places[index]
        places[index] += 1
        metered = meter if meter and place < meter.most else None
        step: Step = registry.get("step", pass_.step)()
        ctx.model.train(pass_.train)
        with _once(ctx, metered, index):
            step.start(ctx, pass_)
        seen: Counter[str] = Counter()
        with torch.set_grad_enabled(pass_.train):
            for pattern, batch in batches(ctx.source, pass_, seeds.key(seed, "shuffle", index, place)):
                seen[pattern] += 1
                batch = {name: value.to(ctx.device, non_blocking=True) for name, value in batch.items()}
                now = metered if metered and seen[pattern] <= most else None
                if now:
                    now.adopt(batch.values(), "inputs")
                with now.step(index, pattern) if now else nullcontext():
                    loss = _step(ctx, step, batch, pattern, pass_, update, now)
                    if loss is not None:
                        total.add_(loss)
                        steps += 1
                del batch, loss
                if update and update.every > 1 and update.pending == update.every:
                    update.alone(index, now)
            if update and update.pending:  # a pass's last few batches are an update too
                update.alone(index, metered)
        with torch.no_grad(), _once(ctx, metered, index, last=True):
            step.finish(ctx, pass_)
    return total, steps


@contextmanager
def _once(ctx: Context, meter: Meter | None, index: int, last: bool = False) -> Iterator[None]:
    """Meter a start or finish; what it preallocates counts as outputs."""
    before = set(ctx.outputs)
    if meter is None:
        yield
        return
    with meter.step(index, FINISH if last else START):
        yield
    meter.adopt([t for n, t in ctx.outputs.items() if n not in before], "outputs")
    meter.adopt(ctx.metrics.values(), "outputs")


# what torch refuses because of settings that no room can judge alone, by a part of its message
_REFUSED = {
    "more than 1 value per channel": "its model's BatchNorm gets a single value a channel from a batch of 1; set "
    "training.batch to 2 or more, and give each client 2 samples or more (data.samples, data.clients)",
    "No available kernel": "no kernel that training.attention allows computes its model's attention (flash takes no "
    "mask, on a CPU no dropout, on a GPU no float32); set training.attention to device or math",
}


def _step(
    ctx: Context,
    step: Step,
    batch: Mapping[str, Tensor],
    pattern: str,
    pass_: Pass,
    update: Update | None,
    meter: Meter | None,
) -> Tensor | None:
    mixed = ctx.work.precision != "float32"
    autocast = torch.autocast(ctx.device.type, DTYPES[ctx.work.precision]) if mixed else nullcontext()
    try:
        with autocast:
            loss = step.loss(ctx, batch, pattern, pass_)
    except (RuntimeError, ValueError) as error:
        if told := next((told for sign, told in _REFUSED.items() if sign in str(error)), None):
            raise MethodError(f"a work of kind {ctx.work.kind!r} can't be done: {told}") from error
        raise
    if not pass_.train or loss is None or update is None:
        return None
    if meter:
        meter.enter("backward")
    update.backward(loss)
    if update.every == 1:
        update(meter)
    return loss.detach()


class Update:
    """The optimizer of a work, and the batches whose gradients it has not used yet.

    ``every`` batches make an update: their losses count as a mean.  In float16 the loss is scaled, and an update that
    overflows is left out, as is usual.
    """

    def __init__(self, work: Work, trained: Mapping[str, nn.Parameter], device: torch.device):
        self.settings, self.trained = work.optimizer, list(trained.values())
        self.optimizer = make_optimizer(work, trained)
        self.every = work.accumulation
        self.pending = 0
        self.scaler = torch.amp.GradScaler(device.type) if work.precision == "float16" else None

    def backward(self, loss: Tensor) -> None:
        """Add a batch's gradients to what is there."""
        self.pending += 1
        if self.every > 1:
            loss = loss / self.every
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        loss.backward()

    def alone(self, index: int, meter: Meter | None) -> None:
        """Use up the gradients of several steps, metered as a step of its own."""
        with meter.step(index, UPDATE) if meter else nullcontext():
            self(meter)

    def __call__(self, meter: Meter | None) -> None:
        """Use the gradients up."""
        if meter:
            meter.enter("optimizer")
        if clip := self.settings.get("clip"):
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            # said outright: torch's own choice differs between real and fake tensors
            together = self.settings.get("implementation") != "for-loop"
            nn.utils.clip_grad_norm_(self.trained, clip, foreach=together)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if meter:
            state = (v for s in self.optimizer.state.values() for v in s.values() if isinstance(v, Tensor))
            meter.adopt(state, "optimizer")
        self.optimizer.zero_grad(set_to_none=True)
        self.pending = 0


def metered_steps(work: Work) -> int:
    """Steps of a pattern that are metered at a place: from the last of them on nothing changes.

    Where several batches make an update, the first batch of the second update has the optimizer's state but no
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
    meter: Meter | None = None,
) -> Result:
    """Execute the work and collect what it sends up, encoded, and what it keeps.

    ``module`` must have been built from ``work.model``; it is loaded from ``inputs`` (tensors by item name) and
    changed.  The global generators are forked around the work, so its draws depend on ``seed`` alone.
    A kept table is what the step left in the output of its name, or stays what it was.
    Raises MethodError if a payload names what neither the model nor the outputs hold.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        ctx, total, steps = execute(work, inputs, source, module=module, device=device, seed=seed, meter=meter)
    held = {**ctx.outputs, **dict(module.named_buffers()), **dict(module.named_parameters())}
    if lost := [name for name in work.keep if name not in held and name not in ctx.received]:
        raise MethodError(
            f"a work of kind {work.kind!r} keeps {lost[0]!r}, which neither model, outputs nor tables hold"
        )
    payloads: dict[str, dict[str, Tensor]] = {}
    for payload in work.up:
        if lost := [item.name for item in payload.items if item.name not in held]:
            raise MethodError(f"payload {payload.name!r} sends {lost[0]!r}, which neither model nor outputs hold")
        sent = {i.name: held[i.name].detach().to("cpu", DTYPES[i.dtype], copy=True) for i in payload.items}
        # by now gradients, optimizer and activations are gone, so that encoding one tensor after the other never is
        # the peak; what was sent down is read again from the node's storage
        payloads[payload.name] = payload.encoded(sent, work.bases(inputs)) if payload.codec else sent
    return Result(
        payloads,
        {name: float(value) for name, value in ctx.metrics.items()},
        {name: {**ctx.received, **held}[name].detach().to("cpu", copy=True) for name in work.keep},
        float(total) / steps if steps else None,
        meter.trace() if meter else None,
    )
