"""A split work: the client's half and the server's run in lockstep, and exchange tensors for each batch.

The client sends the tokens at the cut and the labels.  The server's half takes a step with them, and sends back the
tokens' gradients and the loss (SplitFed, Thapa et al. 2022).  Both halves are works of their own, which are priced,
run and measured as any other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from edgefl import seeds
from edgefl.models.halves import Half
from edgefl.work.description import (
    LOSS,
    BatchExchange,
    Description,
    Pass,
    Payload,
    Source,
    TensorSpec,
    Work,
    serialised_bytes,
)
from edgefl.work.interpreter import Execution, collect_update, execute_by_batch, run
from edgefl.work.packed import split_buffer
from edgefl.work.steps import Context, Wrapper
from edgefl.work.update import Exchanged, Update

FIRST, LAST = "first-half", "last-half"
"""Registered names of the wrappers of both halves."""
Described = TypeVar("Described", bound=Description)


def halves(work: Described) -> tuple[Described, Described]:
    """The client's and the server's half of a split work."""
    return _half(work, "first", FIRST), _half(work, "last", LAST)


def client_part(work: Described) -> Described:
    """What a client computes of a work: its half, if the work is split."""
    return halves(work)[0] if work.split else work


def _half(work: Described, half: Half, wrapper: str) -> Described:
    def own(payloads: Sequence[Payload]) -> tuple[Payload, ...]:
        return tuple(payload for payload in payloads if payload.travels is (half == "first"))

    names = {item.name for payload in own(work.down) for item in payload.items}
    return replace(
        work.change_passes(lambda p: p.inside(wrapper)),
        model={**work.model, "half": {"name": half, "cut": dict(work.split)}},
        trainable=tuple(name for name in work.trainable if name in names),
        down=own(work.down),
        up=own(work.up),
        split={},
    )


# --- steps -----------------------------------------------------------------------------------------------------------


class _Answered(torch.autograd.Function):
    """The loss that the server computed, whose gradients with respect to the tokens came with it."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, count: int, *tensors: Tensor) -> Tensor:
        """``tensors`` are as many tokens as gradients."""
        ctx.gradients = tensors[count:]
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients as they came: the loss is differentiated as it is."""
        return None, None, *ctx.gradients, *(None for _ in ctx.gradients)


class FirstHalf(Wrapper):
    """The client's half of a step: it sends the tokens at the cut, and learns by the gradients that come back."""

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor:
        """The loss that the server sends."""
        cut = ctx.work.model["half"]["cut"]
        towers: dict[str, Any] = {m: ctx.client_model.tower(m) for m in _modalities(pass_, pattern)}
        tokens: dict[str, Tensor] = {m: tower.run(batch[m], until=cut[m]) for m, tower in towers.items()}
        sent = {name: tokens[name].detach() if name in tokens else value for name, value in batch.items()}
        if ctx.peer is None:
            down = _exchange(pass_).down({name: TensorSpec.from_tensor(value) for name, value in batch.items()})
            answer: Mapping[str, Tensor] = {name: spec.empty() for name, spec in down.items()}
        else:
            answer = ctx.peer(sent)
        gradients = (answer[modality] for modality in tokens)
        loss = _Answered.apply(answer[LOSS], len(tokens), *tokens.values(), *gradients)  # type: ignore[no-untyped-call]
        return cast(Tensor, loss)


class LastHalf(Wrapper):
    """The server's half of a step: it goes on with the tokens that came, and sends back their gradients and the loss.

    The answer leaves before the server's half is updated.
    """

    def loss(self, ctx: Context, batch: Mapping[str, Tensor], pattern: str, pass_: Pass) -> Tensor | None:
        """The loss of the step inside."""
        cut, modalities = ctx.work.model["half"]["cut"], _modalities(pass_, pattern)
        self.tokens = {modality: batch[modality].requires_grad_() for modality in modalities}
        towers = {modality: ctx.client_model.tower(modality) for modality in modalities}
        for modality, tower in towers.items():
            tower.begin = cut[modality]
        try:
            loss = self.step.loss(ctx, {**batch, **self.tokens}, pattern, pass_)
        finally:
            for tower in towers.values():
                tower.begin = 0
        self.computed = None if loss is None else loss.detach()
        return loss

    def gradient(self, ctx: Context, pass_: Pass) -> None:
        """Answer, and free what was answered."""
        tokens, self.tokens = self.tokens, {}
        if ctx.peer is not None:
            gradients = {modality: cast(Tensor, each.grad) for modality, each in tokens.items()}
            ctx.peer({**gradients, LOSS: cast(Tensor, self.computed)})
        self.computed = None


def _exchange(pass_: Pass) -> BatchExchange:
    assert pass_.exchange is not None
    return pass_.exchange


def _modalities(pass_: Pass, pattern: str) -> list[str]:
    return [modality for modality in _exchange(pass_).tokens if modality in pattern.split("-")]


# --- lockstep --------------------------------------------------------------------------------------------------------


class ArrivingBatches:
    """The data of the server's half: as many batches as the client's, with tokens in place of its samples."""

    def __init__(self, source: Source):
        self._source = source
        self.waiting = deque[dict[str, Tensor]]()
        self.counts, self.size = source.counts, source.size

    def spec(self, pass_: Pass, pattern: str) -> dict[str, TensorSpec]:
        """The tensors that go up for a batch, ``[batch, ...]``."""
        return _exchange(pass_).up(self._source.spec(pass_, pattern))

    def batches(self, pass_: Pass, seed: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """The batches as they arrive, in the client's order of patterns."""
        for pattern, count in self.counts(pass_).items():
            for _ in range(count):
                yield pattern, self.waiting.popleft()


@dataclass
class Lockstep:
    """The server's half as the client's peer: each batch that the client sends is a step of it.

    ``last`` is its execution, which takes its batches from ``arriving`` and answers by ``answer``.  It ends with the
    last of ``left`` batches, because contexts of both halves must end in the reverse order of their beginnings.
    """

    arriving: ArrivingBatches
    left: int
    last: Execution | None = None
    result: tuple[Context, Tensor, int] | None = None
    exchanged: Exchanged = field(default_factory=Exchanged)
    _answer: Mapping[str, Tensor] = field(default_factory=dict)

    def finish(self) -> None:
        """Run the server's half to its end."""
        assert self.last is not None
        try:
            next(self.last)
        except StopIteration as end:
            self.result = end.value

    def answer(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Take what the server's half sends down for the batch at hand."""
        self._answer = tensors
        return {}

    def __call__(self, sent: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Let the server's half take a step with what was sent; what it answers."""
        assert self.last is not None
        self.arriving.waiting.append({name: tensor.clone() for name, tensor in sent.items()})
        self.left -= 1
        # the server's half says itself what is computed in half precision
        with torch.autocast(next(iter(sent.values())).device.type, enabled=False):
            next(self.last)
            if not self.left:
                self.finish()
        answer, self._answer = self._answer, {}
        self.exchanged.trips += 1
        self.exchanged.upload_bytes += _bytes_of(sent)
        self.exchanged.download_bytes += _bytes_of(answer)
        return answer


def _bytes_of(tensors: Mapping[str, Tensor]) -> int:
    return serialised_bytes({name: TensorSpec.from_tensor(tensor) for name, tensor in tensors.items()})


def batches_of(work: Description, source: Source) -> int:
    """How many batches a work has in all."""
    return sum(sum(source.counts(pass_).values()) for pass_ in work.passes)


Exchanging = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]
"""The tensors of one exchange, up and down."""


def run_halves(
    work: Work,
    inputs: Mapping[str, Tensor],
    source: Source,
    module_of: Callable[[Work], nn.Module],
    *,
    device: torch.device,
    seed: int,
    buffer: Tensor | None = None,
    record: list[Exchanging] | None = None,
) -> Update:
    """Run both halves of a split work; the update has what both send, and what they exchanged.

    ``record`` gets the tensors of each exchange, up and down.
    """
    first, last = halves(work)
    arriving = ArrivingBatches(source)
    lockstep = Lockstep(arriving, batches_of(work, source))
    lockstep.last = execute_by_batch(
        last, _of_half(inputs, last), arriving, module=module_of(last), device=device, seed=seed, peer=lockstep.answer
    )

    def peer(sent: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        answer = lockstep(sent)
        if record is not None:
            record.append(tuple({n: t.clone() for n, t in each.items()} for each in (sent, answer)))  # type: ignore[arg-type]
        return answer

    own = _of_half(inputs, first)
    update = run(first, own, source, module=module_of(first), device=device, seed=seed, buffer=buffer, peer=peer)
    if lockstep.result is None:  # there was no batch
        with seeds.seeding_globals(seed, device):
            lockstep.finish()
    parts = {} if buffer is None else {payload.name: part for payload, part in split_buffer(buffer, work.up)}
    assert lockstep.result is not None
    server = collect_update(lockstep.result, inputs, buffer=parts.get(last.up[0].name))
    payloads, metrics = {**update.payloads, **server.payloads}, {**update.metrics, **server.metrics}
    return replace(update, work=work, payloads=payloads, metrics=metrics, exchanged=lockstep.exchanged)


def _of_half(inputs: Mapping[str, Tensor], half: Work) -> dict[str, Tensor]:
    names = {item.name for payload in half.down for item in payload.items}
    return {name: tensor for name, tensor in inputs.items() if name in names}
