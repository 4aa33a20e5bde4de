"""The meter: live tensor storage by part, FLOPs, and bytes touched by operators, on real and on fake tensors.

Live storage is what operators return and what keeps it.  What a kernel allocates and frees inside a call (scratch) is
seen by the allocator alone: a prediction notes the calls and the live storage before each (``Held``), and
``Trace.with_scratch`` adds what the kernels take.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from edgefl.errors import UncountedOperator
from edgefl.work.operator_calls import Call, call_of
from edgefl.work.timeline import Moment

PARTS = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "buffers",
    "inputs",
    "received",
    "reference",
    "outputs",
    "temporaries",
    "scratch",
)
"""The parts of peak memory.  ``temporaries`` are gradients of activations and intermediate results of the optimizer's
step; ``scratch`` is what a kernel allocates for itself during a call."""

LEAST_SCRATCH = 2 * 2**20
"""Calls are kept if their kernel could move the peak with so many bytes and some times what it reads and writes.

The largest that was seen beside convolutions is 865,408 bytes (a bfloat16 matrix product); small tensors take several
times their size, but less than this.
"""

START, FINISH, UPDATE = "<", ">", "="
"""Used in place of a pattern: a pass's start and finish, once per occurrence, and an update of several batches."""

METERED = 2
"""Metered occurrences of a distinct pass, and metered steps of a pattern in each; later ones cost as the second."""

WITHOUT_GRADIENT = "without gradient"
"""Used in place of a model part for what a training step runs without gradient."""

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default


def _cpu_flash(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _cpu_flash_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))


def _convolved(positions: Tensor, weight: Tensor) -> int:
    # the whole kernel is applied once at every position, whatever the number of groups
    return int(2 * (positions.numel() // max(positions.shape[1], 1)) * weight.numel())


def _convolution(x: Tensor, weight: Tensor, *args: Any, out_val: Tensor, **kwargs: Any) -> int:
    transposed = kwargs.get("transposed", args[4] if len(args) > 4 else False)
    return _convolved(x if transposed else out_val, weight)


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *args: Any, **_: Any) -> int:
    # gradients of the input and of the weight, as the output mask requires
    transposed, output_mask = args[4], args[7]
    return int(sum(output_mask[:2])) * _convolved(x if transposed else gradient, weight)


def _cudnn_rnn(input: Tensor, weight: list[Tensor], *_: Any, **__: Any) -> int:
    # one product of every matrix with every token
    return 2 * input.shape[0] * input.shape[1] * sum(w.numel() for w in weight if w.dim() == 2)


# torch's own counter has no formula for attention on a CPU, and would count it as 0
_FLOPS: dict[Any, Callable[..., int]] = {
    **{packet: (lambda *a, _f=formula, **k: int(_f(*a, **k))) for packet, formula in flop_registry.items()},
    aten._scaled_dot_product_flash_attention_for_cpu: lambda *a, out_val=None, **k: _cpu_flash(*a, **k),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *a, out_val=None, **k: _cpu_flash_backward(
        *a, **k
    ),
    # torch's own formula for the gradient of a weight ignores groups
    aten.convolution: _convolution,
    aten.convolution_backward: lambda *a, out_val=None, **k: _convolution_backward(*a, **k),
    aten._cudnn_rnn: lambda *a, out_val=None, **k: _cudnn_rnn(*a, **k),
    aten._cudnn_rnn_backward: lambda *a, out_val=None, **k: 2 * _cudnn_rnn(*a, **k),
    # pointwise, despite their names: a cell's matrix products are separate operators
    aten._thnn_fused_gru_cell: lambda *a, **k: 0,
    aten._thnn_fused_gru_cell_backward: lambda *a, **k: 0,
}
_MATMUL_WORDS = frozenset(
    "mm addmm bmm baddbmm addbmm mv addmv dot vdot ger addr matmul linear einsum lstm gru rnn cdist bilinear "
    "trilinear tensordot attention".split()
)
_GATHERS = frozenset({aten.embedding, aten.index_select, aten.gather, aten.index})
_FREE = frozenset({aten._unsafe_view, aten.lift_fresh, aten.empty, aten.empty_like, aten.empty_strided, aten.detach})


_PRODUCTS = frozenset({aten.mm, aten.bmm})


@cache
def _references_of_a_product() -> int:
    """References to a tensor that Python code adds something to, as ``Meter._adds_bias`` counts them."""
    counts = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is aten.add.Tensor:
                counts.append(self.counted(args))
            return func(*args, **(kwargs or {}))

        def counted(self, args: Any) -> int:
            first, _ = args[:2]
            return sys.getrefcount(first)

    with Count(), torch.no_grad():  # type: ignore[no-untyped-call]
        torch.ones(2, 2) @ torch.ones(2, 2) + torch.ones(2)
    return counts[0]


def _is_matmul(packet: Any) -> bool:
    words = packet.__name__.split("_")
    return any(word in _MATMUL_WORDS or word.startswith("conv") for word in words)


@dataclass
class StepCost:
    """Cost of one step of a pass, after warm-up.

    FLOPs are 2 x MAC of matmul-class operators as executed; ``macs`` are forward MACs by part of the model in
    fvcore's convention (LayerNorm 5 per element); ``operators`` counts equal pairs (FLOPs, bytes touched).
    """

    forward_flops: int = 0
    backward_flops: int = 0
    macs: Counter[str] = field(default_factory=Counter)
    operators: Counter[tuple[int, int]] = field(default_factory=Counter)


@dataclass(frozen=True)
class Held:
    """A distinct call of an operator, at the moment of the most live storage before it.

    ``before`` are the live bytes before the call, ``after`` those after it in the order of ``PARTS``, and ``outputs``
    the bytes of the storages that it returned newly.
    """

    call: Call
    before: int
    outputs: int
    after: tuple[int, ...]


@dataclass(frozen=True)
class Inside:
    """The most bytes that a call holds at a time beside what was there before it: outputs and scratch.

    ``assumed`` is true if it was not measured, but is the upper end of a range that begins with the outputs.
    """

    bytes: int
    assumed: bool = False


@dataclass(frozen=True)
class Trace:
    """Result of a meter: bytes by part at the peak, and the cost of each distinct step.

    ``steps`` is keyed ``(distinct pass, pattern)``, with START, FINISH and UPDATE beside patterns.
    ``live_memory_bytes`` is the peak of live storage, ``peak_memory_bytes`` that of live storage and scratch; without
    scratch (``with_scratch``) they are equal.  ``live_parts`` are the bytes by part at the former.
    ``assumed`` is true if the scratch at the peak is assumed: the peak is then between ``live_memory_bytes`` and
    ``peak_memory_bytes``.  ``calls`` are those whose scratch could move the peak.
    """

    peak_memory_bytes: int
    memory_bytes: Mapping[str, int]
    steps: Mapping[tuple[int, str], StepCost]
    live_memory_bytes: int = 0
    calls: tuple[Held, ...] = field(default=(), compare=False)
    assumed: bool = False
    live_parts: Mapping[str, int] = field(default_factory=dict)

    def with_scratch(self, insides: Sequence[Inside]) -> Trace:
        """The trace with the kernels' scratch, given for each of ``calls``."""
        peak, memory, assumed = self.live_memory_bytes, self.live_parts, False
        for held, inside in zip(self.calls, insides, strict=True):
            if held.before + inside.bytes > peak:
                peak, assumed = held.before + inside.bytes, inside.assumed
                memory = dict(zip(PARTS, held.after, strict=True))
                memory["scratch"] += peak - sum(held.after)
        return replace(self, peak_memory_bytes=peak, memory_bytes=memory, assumed=assumed)

    def to_json(self) -> dict[str, Any]:
        """Plain data from which ``from_json`` makes an equal Trace, without the scratch."""
        return {
            "live": self.live_memory_bytes,
            "memory": dict(self.live_parts),
            "calls": [[h.call.operator, h.call.arguments, h.before, h.outputs, h.after] for h in self.calls],
            "steps": [
                [*key, s.forward_flops, s.backward_flops, dict(s.macs), [[*o, n] for o, n in s.operators.items()]]
                for key, s in self.steps.items()
            ],
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Trace:
        """The Trace that ``to_json`` wrote."""
        steps = {
            (index, pattern): StepCost(forward, backward, Counter(macs), Counter({(f, b): n for f, b, n in operators}))
            for index, pattern, forward, backward, macs, operators in raw["steps"]
        }
        calls = tuple(
            Held(Call(operator, arguments), before, outputs, tuple(after))
            for operator, arguments, before, outputs, after in raw["calls"]
        )
        return cls(raw["live"], raw["memory"], steps, raw["live"], calls, live_parts=raw["memory"])


_unmetered: ContextVar[bool] = ContextVar("unmetered", default=False)


@contextmanager
def unmetered() -> Iterator[None]:
    """Run operators that are no part of a work's cost: checks of the simulator, which a device would not make."""
    token = _unmetered.set(True)
    try:
        yield
    finally:
        _unmetered.reset(token)


class Meter(TorchDispatchMode):
    """Tracks tensor storages from allocation to release, and the operators that run within ``step``.

    Each storage counts once, with its size rounded up to ``rounding`` bytes.  Of each distinct pass the first
    ``most`` occurrences are metered.  ``moments``, if given, is filled with the live memory after every operator.
    With ``calls``, the distinct calls of operators are kept for the trace.
    """

    def __init__(
        self, rounding: int = 1, most: int = METERED, moments: list[Moment] | None = None, calls: bool = False
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        self.rounding, self.most, self.moments = rounding, most, moments
        self._calls: dict[tuple[str, str], Held] | None = {} if calls else None
        self._live: dict[int, tuple[int, str, weakref.ref[Any]]] = {}
        self._totals = dict.fromkeys(PARTS, 0)
        self._current = self.peak = 0
        self._peak_parts = dict(self._totals)
        self._part, self._backward = "activations", False
        self._step: StepCost | None = None
        self._trains = False
        self._scope: list[str] = []
        self._position, self._phase, self._backward_scope = (0, "", 0), "", ""
        self._seen: Counter[tuple[int, str]] = Counter()
        self.steps: dict[tuple[int, str], StepCost] = {}
        self._product: int | None = None

    # memory -----------------------------------------------------------------------------------------------------

    def adopt(self, tensors: Iterable[Tensor], part: str) -> None:
        """Count these tensors' storages under ``part``, whether they were counted before or not."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if known := self._live.get(key):
                size, old, ref = known
                self._totals[old] -= size
                self._totals[part] += size
                self._live[key] = (size, part, ref)
                continue
            size = -(-storage.nbytes() // self.rounding) * self.rounding
            if not size:
                continue
            self._live[key] = (size, part, weakref.ref(storage, partial(self._released, key)))
            self._totals[part] += size
            self._current += size
        if self._current > self.peak:
            self.peak = self._current
            self._peak_parts = dict(self._totals)

    def _released(self, key: int, _: Any) -> None:
        size, part, _ = self._live.pop(key)
        self._totals[part] -= size
        self._current -= size

    # position in the work ---------------------------------------------------------------------------------------

    @contextmanager
    def step(self, distinct_pass: int, pattern: str) -> Iterator[None]:
        """Meter the operators within the context as one step; of several steps with a key the last one counts."""
        self._step = self.steps[distinct_pass, pattern] = StepCost()
        self._part, self._backward, self._trains = "activations", False, torch.is_grad_enabled()
        self._seen[distinct_pass, pattern] += 1
        self._position = distinct_pass, pattern, self._seen[distinct_pass, pattern]
        self._phase, self._backward_scope = {START: "start", FINISH: "finish"}.get(pattern, "forward"), ""
        with self, self._generator_states():
            yield
        self._step = None

    @contextmanager
    def _generator_states(self) -> Iterator[None]:
        """Count the states of random generators that are saved, which no operator returns (checkpointing does)."""
        original = torch.get_rng_state

        def get_rng_state() -> Tensor:
            state = original()
            self.adopt([state], self._part)
            return state

        torch.get_rng_state = get_rng_state
        try:
            yield
        finally:
            torch.get_rng_state = original

    def enter(self, phase: str) -> None:
        """Assign the next operators to the ``forward``, ``backward`` or ``optimizer`` phase of the step."""
        self._part = "activations" if phase == "forward" else "temporaries"
        self._backward = phase == "backward"
        self._phase, self._backward_scope = phase, ""

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Attribute forward MACs to the parts of the model (``image.blocks.3``, ``joint.norm``) while inside."""
        handles = []
        for name, module in parts(model):
            handles.append(module.register_forward_pre_hook(lambda _, __, name=name: self._scope.append(name)))
            handles.append(
                module.register_forward_hook(lambda _, __, out, name=name: self._leave(name, out), always_call=True)
            )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._scope.clear()

    def _leave(self, name: str, out: Any) -> None:
        # a recomputation that stops early can leave parts that it hasn't entered
        if self._scope:
            self._scope.pop()
        if self.moments is not None:
            for tensor in tree_leaves(out):
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    # its gradient is complete: the next backward operators belong to this part
                    tensor.register_hook(lambda _: setattr(self, "_backward_scope", name))

    # operators --------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # called several times per operator, and free of cost
        kwargs = kwargs or {}
        in_place = func is aten.add.Tensor and self._adds_bias(args)
        if in_place:
            func = aten.add_.Tensor
        before, call = self._current, None
        if self._calls is not None and not func.is_view and not _unmetered.get():
            call = call_of(func, args, kwargs)  # before the call, which may change its arguments
        out = func(*args, **kwargs)
        if in_place:
            out = aten.alias.default(out)
        if _unmetered.get():
            return out
        outs = [out] if isinstance(out, Tensor) else [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        packet = func._overloadpacket
        if packet in _PRODUCTS:
            self._product = outs[0].untyped_storage()._cdata
        if not func.is_view:
            self.adopt([t for t in outs if t.untyped_storage()._cdata not in self._live], self._part)
            # queries, which occur on fake tensors only, are free of cost
            computes = outs or func._schema.is_mutable
            if computes and packet not in _FREE and self._step is not None:
                self._charge(packet, args, kwargs, out, outs)
            if computes and self.moments is not None:
                scope = self._scope[0] if self._scope else self._backward_scope
                totals = tuple(self._totals.values())
                self.moments.append(Moment(str(packet), scope, self._phase, *self._position, totals))
            if call is not None and computes:
                self._keep(call, before)
        return out

    def _adds_bias(self, args: Any) -> bool:
        """Whether this addition is a linear layer's, of its bias to the product that was just computed.

        Without a dispatch mode torch adds a bias in place; with one it makes a new tensor, which a client's step
        wouldn't allocate.  Such a product is known to torch's C++ code alone.
        """
        first, bias = args[:2]
        if not isinstance(bias, Tensor) or bias.dim() != 1 or first.untyped_storage()._cdata != self._product:
            return False
        return sys.getrefcount(first) < _references_of_a_product()

    def _keep(self, call: Call, before: int) -> None:
        """Keep a call if no equal one had more live storage before it."""
        assert self._calls is not None
        known = self._calls.get((call.operator, call.arguments))
        if known is None or before > known.before:
            after = tuple(self._totals.values())
            self._calls[call.operator, call.arguments] = Held(call, before, sum(after) - before, after)

    def _charge(self, packet: Any, args: Any, kwargs: Any, out: Any, outs: list[Tensor]) -> None:
        assert self._step is not None
        formula = _FLOPS.get(packet)
        flops = 0
        if formula is not None:
            flops = formula(*args, **kwargs, out_val=out)
        elif _is_matmul(packet):
            raise UncountedOperator(
                f"operator {packet} is of matmul class and has no FLOP formula; counting it as 0 would be wrong"
            )
        if self._backward:
            self._step.backward_flops += flops
        else:
            self._step.forward_flops += flops
            if self._scope:
                macs = flops // 2
                if packet is aten.native_layer_norm:
                    macs = 5 * outs[0].numel()
                # a frozen copy's forward within a training step has no backward, even if the part trains
                without_gradient = self._trains and not torch.is_grad_enabled()
                self._step.macs[WITHOUT_GRADIENT if without_gradient else self._scope[0]] += macs
        if packet in _GATHERS:
            touched = 2 * sum(t.numel() * t.element_size() for t in outs)
        else:
            tensors = {id(t): t for t in (*_tensors(args), *_tensors(kwargs.values()), *outs)}
            touched = sum(t.numel() * t.element_size() for t in tensors.values())
        self._step.operators[flops, touched] += 1

    def trace(self) -> Trace:
        """The peak and the step costs so far, and the calls whose scratch could move the peak."""
        calls = tuple(held for held in (self._calls or {}).values() if _largest(held) > self.peak)
        parts = dict(self._peak_parts)
        return Trace(self.peak, parts, dict(self.steps), self.peak, calls, live_parts=parts)


def _largest(held: Held) -> int:
    """The most bytes that are thought possible during a call."""
    # a convolution may copy a patch of its input for every output; other kernels copy what they read and write
    factor = 16 if "conv" in held.call.operator else 2
    touched = held.call.argument_bytes + held.outputs
    return held.before + held.outputs + factor * touched + LEAST_SCRATCH


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The parts of a model: each child of a tower, and each block separately with the layers of its exit."""
    for tower, module in model.named_children():
        for part, child in module.named_children():
            if part == "blocks":
                for index, block in child.named_children():
                    yield f"{tower}.blocks.{index}", block
                    if isinstance(exit_ := getattr(block, "exit", None), nn.Module):
                        yield from ((f"{tower}.blocks.{index}", layer) for layer in exit_.children())
            else:
                yield f"{tower}.{part}", child
