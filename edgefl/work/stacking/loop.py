"""Trains several clients with one work at once: stacked parameters, one optimizer, batches in lockstep.

It does what ``edgefl.work.interpreter`` does for each of them, in the same order and from the same batches; sums of
products may be rounded otherwise.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn

from edgefl import registry, seeds
from edgefl.errors import MethodError
from edgefl.models.model import inputs
from edgefl.work.description import DTYPE_NAMES, DTYPES, Description, Pass, Source, Work, digest
from edgefl.work.interpreter import Result, distinct, named_tensors, step_of
from edgefl.work.optimizer.update import make_optimizer
from edgefl.work.optimizer.zeroth_order import without_gradients
from edgefl.work.paired_batches import batches
from edgefl.work.stacking.traced import CantStack, Compute, Tensors, traced
from edgefl.work.steps import Step, Wrapper, says

MOST_GRAPHS = 32
"""Graphs that are remembered, the latest."""


def why_alone(work: Description) -> str | None:
    """Why clients with this work are trained one by one, as far as the work alone says it; None if it doesn't."""
    if not work.passes or not all(p.train and p.data == "private" for p in work.passes):
        return "not all of its passes train on the client's own samples"
    if without_gradients(work):
        return "it trains without gradients"
    if work.optimizer.get("step_in_backward"):
        return "its optimizer steps in the backward pass"
    if work.optimizer.get("offload_states"):
        return "its optimizer's states are offloaded"
    if work.keep:
        return "its clients keep values for themselves"
    if work.edits:
        return f"its model is edited ({work.edits[0].name})"
    if any(item.beside for payload in (*work.down, *work.up) for item in payload.items):
        return "tables or tensors beside the model travel"
    if work.precision != "float32":
        return f"its precision is {work.precision}"
    if taken := inputs(work.model):
        return f"its model is in {' and '.join(sorted({DTYPE_NAMES[dtype] for dtype in taken.values()}))}"
    if work.model.get("quantize"):
        return "its frozen layers are quantised"
    if work.attention not in ("device", "math"):
        return f"its attention is computed by the kernel {work.attention}"
    for pass_ in distinct(work):
        step = step_of(pass_)
        while isinstance(step, Wrapper) and _stacks(step):
            step = step.step
        if not _stacks(step):
            return f"its step {type(step).__name__} doesn't say that it stacks"
    return None


_TOLD: set[tuple[str, str]] = set()


def told_alone(kind: str, why: str) -> None:
    """Warn that works of a kind are trained one by one in spite of ``training.stack``, once for each reason."""
    if (kind, why) not in _TOLD:
        _TOLD.add((kind, why))
        warnings.warn(f"training.stack: works of kind {kind!r} train one by one: {why}", RuntimeWarning, stacklevel=2)


def _stacks(step: Step) -> bool:
    """Whether a step says that it ``stacks`` in the class that has its loss or below, and does nothing but the loss."""
    base = Wrapper if isinstance(step, Wrapper) else Step
    if any(getattr(type(step), name) is not getattr(base, name) for name in ("start", "gradient", "finish")):
        return False
    return says(type(step), "stacks")


@dataclass
class Stacked:
    """Trains clients at once on one device; remembers the graphs of their steps."""

    device: torch.device
    _graphs: dict[str, Compute | str] = field(default_factory=dict)

    def run(
        self,
        work: Work,
        inputs: Mapping[str, Tensor],
        sources: Sequence[Source],
        seeds_of: Sequence[int],
        module: nn.Module,
        places: int,
    ) -> list[Result]:
        """The results of clients that start from the same ``inputs``, each with its own samples and seed.

        They take ``places`` places, the first fills those that are left, so that the graph suits any number of clients.
        ``module`` was built from ``work.model``; it isn't changed.  Raises CantStack if the work can't be stacked, or
        if the clients' numbers of batches differ.
        """
        if (why := why_alone(work)) is not None:
            raise CantStack(why)
        counts = [[s.counts(p) for p in distinct(work)] for s in sources]
        if any(each != counts[0] for each in counts):
            raise CantStack("the numbers of batches of its clients differ")
        values = self._values(work, inputs, module)
        trainable = set(work.trainable)
        if not trainable or (missing := trainable - values.keys()):
            raise CantStack(f"it trains {min(missing)!r}, which its model lacks" if trainable else "it trains nothing")
        trained = {n: nn.Parameter(t.expand(places, *t.shape).clone()) for n, t in values.items() if n in trainable}
        asked = work.reference if not isinstance(work.reference, bool) else (values if work.reference else ())
        if missing := set(asked) - values.keys():
            raise CantStack(f"it asks for a copy of {min(missing)!r}, which its model lacks")
        shared = {n: t for n, t in values.items() if n not in trainable}
        tensors = Tensors(trained, shared, {n: values[n] for n in asked})
        total, steps, updates = self._passes(work, sources, seeds_of, module, tensors, places)
        return self._results(work, inputs, values, trained, total, steps, updates, len(sources))

    def _values(self, work: Work, inputs: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
        """The model's parameters and buffers as the clients receive them, on the device."""
        parameters, buffers = named_tensors(module)
        if missing := module.state_dict().keys() - inputs.keys():
            raise CantStack(f"its clients don't receive {min(missing)!r}, so that each draws its own")
        if sent := {i.name for p in work.up for i in p.items} - parameters.keys():
            raise CantStack(f"its clients send {min(sent)!r}, which is no parameter of the model")
        return {
            n: inputs[n].to(self.device, t.dtype) if n in inputs else t.detach()
            for n, t in (parameters | buffers).items()
        }

    def _passes(
        self,
        work: Work,
        sources: Sequence[Source],
        seeds_of: Sequence[int],
        module: nn.Module,
        tensors: Tensors,
        places: int,
    ) -> tuple[Tensor, int, int]:
        """Train ``tensors.trained`` in place; returns the summed losses [places], the steps and the updates."""
        parameters = list(tensors.trained.values())
        name = work.optimizer["name"]
        if not registry.get("optimizer", name).elementwise:
            raise CantStack(f"the optimizer {name} may look at whole tensors, which hold several clients' here")
        optimizer = make_optimizer(work, tensors.trained)
        order, occurrences = distinct(work), Counter[int]()
        total, steps, updates = torch.zeros(places, device=self.device), 0, 0
        for pass_ in work.passes:
            index = order.index(pass_)
            shuffles = [seeds.key(seed, "shuffle", index, occurrences[index]) for seed in seeds_of]
            occurrences[index] += 1
            pending = 0
            for pattern, batch in self._batches(pass_, sources, shuffles, places):
                compute = self._graph(work, pass_, pattern, module, sources[0], tensors, batch)
                losses, gradients = compute(tensors, batch)
                total.add_(losses)
                steps += 1
                pending += 1
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = (
                        gradient if parameter.grad is None or gradient is None else parameter.grad.add_(gradient)
                    )
                if pending == work.accumulation:
                    self._update(work, optimizer, parameters)
                    pending, updates = 0, updates + 1
            if pending:  # the remaining batches of a pass make an update too
                self._update(work, optimizer, parameters)
                updates += 1
        return total, steps, updates

    def _batches(
        self, pass_: Pass, sources: Sequence[Source], shuffles: Sequence[int], places: int
    ) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """The clients' batches in lockstep, each field stacked ``[places, batch, ...]``."""
        drawn = [batches(source, pass_, seed) for source, seed in zip(sources, shuffles, strict=True)]
        for together in zip(*drawn, strict=True):
            filled = [*together, *[together[0]] * (places - len(together))]
            pattern = filled[0][0]
            assert all(own == pattern for own, _ in filled)
            yield (
                pattern,
                {name: torch.stack([batch[name] for _, batch in filled]).to(self.device) for name in filled[0][1]},
            )

    def _graph(
        self,
        work: Work,
        pass_: Pass,
        pattern: str,
        module: nn.Module,
        source: Source,
        tensors: Tensors,
        batch: Mapping[str, Tensor],
    ) -> Compute:
        """The graph of a step, made at its first batch.  Raises CantStack, also for a work that was tried before."""
        shapes = {name: (tuple(t.shape), str(t.dtype)) for name, t in batch.items()}
        key = digest(
            [
                work.model, work.trainable, work.loss_weights, work.accumulation, list(tensors.reference),
                asdict(pass_), pattern, shapes,
            ]
        )  # fmt: skip
        known = self._graphs.get(key)
        if known is None:
            while len(self._graphs) >= MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            try:
                known = traced(work, pass_, step_of(pass_), pattern, module, source, tensors, batch)
            except CantStack as error:
                known = str(error)
            self._graphs[key] = known
        if isinstance(known, str):
            raise CantStack(known)
        return known

    def _update(self, work: Work, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
        """Apply and clear the gradients, each client's clipped by their norm where the work says so."""
        if clip := work.optimizer.get("clip"):
            clip_stacked([p.grad for p in parameters if p.grad is not None], clip)
        try:
            optimizer.step()
        except TypeError as error:  # the fused SGD with momentum and a parameter without gradient
            raise CantStack(f"its optimizer fails: {error}") from error
        optimizer.zero_grad(set_to_none=True)

    def _results(
        self,
        work: Work,
        inputs: Mapping[str, Tensor],
        values: Mapping[str, Tensor],
        trained: Mapping[str, Tensor],
        total: Tensor,
        steps: int,
        updates: int,
        clients: int,
    ) -> list[Result]:
        own = {name: tensor.detach().cpu().unbind(0) for name, tensor in trained.items()}
        losses, bases = total.tolist(), work.bases(inputs)
        results = []
        for place in range(clients):
            payloads: dict[str, Mapping[str, Tensor]] = {}
            for payload in work.up:
                tensors = {
                    i.name: own[i.name][place].to(DTYPES[i.dtype])
                    if i.name in own
                    else values[i.name].to("cpu", DTYPES[i.dtype], copy=True)
                    for i in payload.items
                }
                for item in payload.items:
                    if tuple(tensors[item.name].shape) != item.shape:
                        raise MethodError(
                            f"payload {payload.name!r} of a work of kind {work.kind!r} sends {item.name!r} in the "
                            f"shape {tuple(tensors[item.name].shape)}, described as {item.shape}"
                        )
                payloads[payload.name] = payload.encoded(tensors, bases) if payload.codec else tensors
            results.append(Result(payloads, loss=losses[place] / steps if steps else None, updates=updates))
        return results


def clip_stacked(gradients: Sequence[Tensor], most: float) -> None:
    """Scale gradients ``[clients, ...]`` in place so that no client's norm over all of them is above ``most``.

    As ``torch.nn.utils.clip_grad_norm_`` for each client.
    """
    norms = torch.stack([torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in gradients])
    scale = (most / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.dim() - 1)))
