"""One step of several clients at once, as a graph of operators: losses and gradients of stacked parameters.

The graph is made once and run for every batch.  Running it takes neither the model's Python code nor autograd's, which
are most of the time of a tiny model's step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from edgefl.work.description import Pass, Source, Work
from edgefl.work.stacking.operators import StackedOperators
from edgefl.work.steps import Context, Step
from edgefl.work.torch_device import ran_out


class CantStack(Exception):
    """A work that can't be computed for several clients at once; the message says why."""


@dataclass(frozen=True)
class Tensors:
    """Tensors by name: ``trained`` [clients, ...] has one per client, ``shared`` and ``reference`` suit all."""

    trained: Mapping[str, Tensor]
    shared: Mapping[str, Tensor]
    reference: Mapping[str, Tensor]

    def flat(self, batch: Mapping[str, Tensor]) -> list[Tensor]:
        """All of them and the fields of a batch, [clients, ...] each, in one list."""
        return [*self.trained.values(), *self.shared.values(), *self.reference.values(), *batch.values()]


Compute = Callable[[Tensors, Mapping[str, Tensor]], tuple[Tensor, Sequence[Tensor | None]]]
"""Losses [clients] of a batch, and gradients of ``trained`` [clients, ...]; None for one that the loss doesn't read."""


class _Call(nn.Module):
    """A module that calls a function, so that ``functional_call`` replaces the model's tensors meanwhile."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[], Any]) -> Any:
        """What the function returns."""
        return function()


def traced(
    work: Work,
    pass_: Pass,
    step: Step,
    pattern: str,
    module: nn.Module,
    source: Source,
    tensors: Tensors,
    batch: Mapping[str, Tensor],
) -> Compute:
    """The computation of a batch's losses and gradients, which needs no random numbers; for shapes as in this call.

    Raises CantStack if an operator of the model or of the step can't be computed for several clients at once, draws
    random numbers, or changes a buffer, or if the step leaves anything behind but its loss.
    """
    device = next(iter(tensors.trained.values())).device
    names, shared_names, reference_names = (tuple(t) for t in (tensors.trained, tensors.shared, tensors.reference))
    fields = tuple(batch)
    called = _Call(module)

    def loss_of_one(trained: Any, shared: Any, reference: Any, values: Any) -> Tensor:
        own = dict(zip(names, trained, strict=True))
        starts = dict(zip(reference_names, reference, strict=True))
        ctx = Context(work, module, source, device, {}, starts, trained=own)
        replaced = own | dict(zip(shared_names, shared, strict=True))

        def compute() -> Any:
            with StackedOperators(), sdpa_kernel(SDPBackend.MATH):
                return step.loss(ctx, dict(zip(fields, values, strict=True)), pattern, pass_)

        loss = torch.func.functional_call(called, {f"model.{n}": t for n, t in replaced.items()}, (compute,))
        if not isinstance(loss, Tensor) or loss.dim():
            raise CantStack("its loss is no scalar tensor")
        if ctx.outputs or ctx.metrics or ctx.notes:
            raise CantStack("its step leaves something behind besides the loss")
        return loss / work.accumulation if work.accumulation > 1 else loss

    losses_of_all = torch.vmap(loss_of_one, in_dims=(0, None, None, 0))

    def step_of_all(*flat: Tensor) -> list[Tensor | None]:
        parts = []
        for length in (len(names), len(shared_names), len(reference_names), len(fields)):
            parts.append(flat[:length])
            flat = flat[length:]
        losses = losses_of_all(*parts)
        gradients = torch.autograd.grad(losses.sum(), parts[0], allow_unused=True)
        # the fused optimizers read gradients in the order of memory
        return [losses.detach() * work.accumulation, *(None if g is None else g.contiguous() for g in gradients)]

    # the graph is made by computing the step once, on copies of what it must not change
    copies = Tensors(
        tensors.trained,
        {n: t.clone() for n, t in tensors.shared.items()},
        {n: t.clone() for n, t in tensors.reference.items()},
    )
    given = copies.flat(batch)
    before = [t._version for t in given]
    module.train(pass_.train)
    try:
        with torch.enable_grad():
            graph = make_fx(step_of_all)(*given)
    except Exception as error:
        if ran_out(error):
            raise
        said = str(error).strip().split("\n")[0]
        raise CantStack(said if isinstance(error, CantStack) else f"{type(error).__name__}: {said}") from error
    if [t._version for t in given] != before:
        raise CantStack("its step changes a parameter, a buffer or the batch in place")
    graph.graph.eliminate_dead_code()
    graph.recompile()

    def compute(tensors: Tensors, batch: Mapping[str, Tensor]) -> tuple[Tensor, Sequence[Tensor | None]]:
        with torch.no_grad():
            losses, *gradients = graph(*tensors.flat(batch))
        return losses, gradients

    return compute
