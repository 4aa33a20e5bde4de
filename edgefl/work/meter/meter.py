"""The meter: live tensor storage by part, FLOPs, and bytes touched by operators, on real and on fake tensors.

Live storage is what operators return and what keeps it.  What a kernel allocates and frees inside a call (scratch) is
seen by the allocator alone: a prediction notes the calls and the live storage before each (``LiveCall``), and
``StepTrace.with_scratch`` adds what the kernels take.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial
from inspect import getattr_static
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edgefl.errors import MethodError, UncountedOperator
from edgefl.operator_classes import OperatorClass
from edgefl.work.meter.allocator_peak import MemoryEvent
from edgefl.work.meter.flops import FORMULAS, GATHERS, class_of, gradient_macs, is_matmul
from edgefl.work.meter.operator_calls import Call, call_of
from edgefl.work.meter.trace import FINISH, METERED, PARTS, START, LiveCall, LiveMoment, StepCost, StepTrace
from edgefl.work.recurrence import kernels_in

WITHOUT_GRADIENT = "without gradient"
"""Used in place of a model part for what a training step runs without gradient."""

REST = "joint"
"""The part that has what no tower claims."""

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default


_FREE = frozenset({aten._unsafe_view, aten.lift_fresh, aten.empty, aten.empty_like, aten.empty_strided, aten.detach})


_PRODUCTS = frozenset({aten.mm, aten.bmm})


class _Mode(TorchDispatchMode):
    """A mode that torch doesn't guard against its compiler, since nothing here is compiled: the guard imports that
    compiler at the first operator, which takes a second and tens of megabytes in every process that trains."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def _references(args: Any) -> tuple[int, int, int]:
    """References to the first argument of an operator: Python's, those of C++, and those of C++ to its storage."""
    first = args[0]
    return sys.getrefcount(first), first._use_count(), torch._C._storage_Use_Count(first.untyped_storage()._cdata)


class _References(_Mode):
    """Counts the references to the first argument of an addition, as a meter does."""

    counted = 0, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.add.Tensor:
            self.counted = _references(args)
        return func(*args, **(kwargs or {}))


@cache
def _references_of_a_product() -> int:
    """References to a tensor that Python code adds something to, as ``Meter._adds_bias`` counts them.

    They are counted here, since they depend on the versions of Python and torch (tried with torch 2.13).
    ``test_a_bias_is_added_in_place_where_torch_does_so_without_a_meter`` sees a change of what is compared.
    """
    mode = _References()  # type: ignore[no-untyped-call]
    with mode, torch.no_grad():
        torch.ones(2, 2) @ torch.ones(2, 2) + torch.ones(2)
    return mode.counted[0]


@cache
def _references_of_a_gradient() -> tuple[int, int]:
    """References to a gradient and to its storage that autograd adds another to, as ``Meter._accumulates`` counts.

    torch has no public name for either count (tried with 2.13).
    ``test_gradients_are_added_in_place_where_torch_does_so_without_a_meter`` sees a change of them.
    """
    mode = _References()  # type: ignore[no-untyped-call]
    with torch.enable_grad():
        x = torch.ones(2, requires_grad=True) * 1
        y = torch.stack([x.exp(), x.sin()])
        with mode:
            y.backward(torch.ones(2, 2))
    return mode.counted[1:]


_unmetered: ContextVar[bool] = ContextVar("unmetered", default=False)


@contextmanager
def pausing_meter() -> Iterator[None]:
    """Run operators that are no part of a work's cost: checks of the simulator, which a device would not make."""
    token = _unmetered.set(True)
    try:
        yield
    finally:
        _unmetered.reset(token)


class NoMeter:
    """Stands for a meter where nothing is metered: the same methods, which do nothing."""

    most = 0

    def adopt(self, *_: object) -> None:
        """Nothing."""

    def step(self, *_: object) -> AbstractContextManager[None]:
        """A context that does nothing."""
        return _NOTHING

    adopt_on_host = enter = trace = adopt
    aside = watching = step


_NOTHING = nullcontext()
NO_METER = NoMeter()


class Meter(_Mode):
    """Tracks tensor storages from allocation to release, and the operators that run within ``step``.

    Each storage counts once, with its size rounded up to ``rounding`` bytes.  Of each distinct pass the first
    ``most`` occurrences are metered.  ``moments``, if given, is filled with the live memory after every operator, and
    ``events`` with the storages that come and go.
    With ``calls``, the distinct calls of operators are kept for the trace.
    """

    def __init__(
        self,
        rounding: int = 1,
        most: int = METERED,
        moments: list[LiveMoment] | None = None,
        calls: bool = False,
        events: list[MemoryEvent] | None = None,
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        self.rounding, self.most, self.moments, self.events = rounding, most, moments, events
        self._calls: dict[tuple[str, str], LiveCall] | None = {} if calls else None
        self._live: dict[int, tuple[int, str, weakref.ref[Any]]] = {}
        self._totals = dict.fromkeys(PARTS, 0)
        self._current = self.peak = 0
        self._peak_parts = dict(self._totals)
        self._part, self._backward = "activations", False
        self._step: StepCost | None = None
        self._trains = False
        self._scope: list[str] = []
        self._partial: set[str] = set()
        self._functions: dict[CodeType, list[str]] = {}
        self._last = ""
        self._position, self._phase, self._backward_scope = (0, "", 0), "", ""
        self._seen: Counter[tuple[int, str]] = Counter()
        self.steps: dict[tuple[int, str], StepCost] = {}
        self.host = 0
        """The most bytes of a GPU's states that lay in its host's memory."""
        self._product: int | None = None
        self._unshared = _references_of_a_gradient()

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
            self._live[key] = (size, part, weakref.ref(storage, partial(self._release_storage, key)))
            self._totals[part] += size
            self._current += size
            if self.events is not None:
                self.events.append(MemoryEvent(key, size))
        if self._current > self.peak:
            self.peak = self._current
            self._peak_parts = dict(self._totals)

    def adopt_on_host(self, tensors: Iterable[Tensor]) -> None:
        """Count these tensors, all that now lie in the memory of a GPU's host, beside the peak."""
        self.host = max(self.host, sum(tensor.nbytes for tensor in tensors))

    def _release_storage(self, key: int, _: Any) -> None:
        size, part, _ = self._live.pop(key)
        self._totals[part] -= size
        self._current -= size
        if self.events is not None:
            self.events.append(MemoryEvent(key, -size))

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
        """Count the states of random generators that are saved, which no operator returns (checkpointing does).

        ``torch.utils.checkpoint`` calls ``torch.get_rng_state`` by that name (tried with torch 2.13); if it took
        them by another one, 5 KB for each checkpoint would be missing from the peak.
        ``test_the_peak_is_the_allocators`` sees that.
        """
        original = torch.get_rng_state
        torch.get_rng_state = partial(self._adopt_state, original)
        try:
            yield
        finally:
            torch.get_rng_state = original

    def _adopt_state(self, get_rng_state: Callable[[], Tensor]) -> Tensor:
        state = get_rng_state()
        self.adopt([state], self._part)
        return state

    def enter(self, phase: str) -> None:
        """Assign the next operators to the ``forward``, ``backward`` or ``optimizer`` phase of the step."""
        self._part = "activations" if phase == "forward" else "temporaries"
        self._backward = phase == "backward"
        self._phase, self._backward_scope = phase, ""

    @contextmanager
    def aside(self, phase: str) -> Iterator[None]:
        """Assign the operators within the context to a phase, and those after it to the phase before."""
        before = self._part, self._backward, self._phase, self._backward_scope
        self.enter(phase)
        yield
        self._part, self._backward, self._phase, self._backward_scope = before

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Attribute MACs to the parts of the model (``image.blocks.3``), and count its gradients, while inside.

        What no part of a tower claims belongs to the tower (``image``), and what no tower claims to ``joint``, also
        where a step calls a function of theirs.
        Call it when it is settled which parameters train: a part has ``gradient_macs`` if only some of its own do.
        """
        handles = [
            parameter.register_post_accumulate_grad_hook(lambda p: self.adopt([p.grad], "gradients"))
            for parameter in model.parameters()
            if parameter.requires_grad
        ]
        trains: dict[str, set[bool]] = {}
        for name, module in parts(model):
            trains.setdefault(name, set()).update(p.requires_grad for p in module.parameters(recurse=False))
            handles.append(module.register_forward_pre_hook(lambda _, __, name=name: self._scope.append(name)))
            handles.append(
                module.register_forward_hook(lambda _, __, out, name=name: self._leave(name, out), always_call=True)
            )
        wholes = [(REST, model), *model.named_children()]
        self._partial = {name for name, flags in trains.items() if len(flags) == 2} | {name for name, _ in wholes}
        self._functions = {}
        for name, module in wholes:
            for code in _codes_of(type(module)):
                self._functions.setdefault(code, []).append(name)
            handles.append(module.register_forward_pre_hook(lambda _, __, name=name: self._scope.append(name)))
            handles.append(module.register_forward_hook(lambda *_: self._pop_scope(), always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._scope.clear()

    def _owner(self) -> str | None:
        """The running part of the model, or the tower or model one of whose functions was called by itself.

        A function is known by its code: a wrapper around it would hold its arguments, which live no longer otherwise.
        Of several towers with one code it is the last that ran.
        """
        if self._scope:
            return self._scope[-1]
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code not in self._functions:
            frame = frame.f_back
        names = [] if frame is None else self._functions[frame.f_code]
        return self._last if self._last in names else next(iter(names), None)

    def _pop_scope(self) -> None:
        # a recomputation that stops early can leave parts that it hasn't entered
        if self._scope:
            self._last = self._scope.pop()

    def _leave(self, name: str, out: Any) -> None:
        self._pop_scope()
        if self.moments is not None and name not in self._scope[-1:]:  # the whole part has run
            for tensor in tree_leaves(out):
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    # its gradient is complete: the next backward operators belong to this part
                    tensor.register_hook(lambda _: setattr(self, "_backward_scope", name))

    # operators --------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # called several times per operator, and free of cost
        kwargs = kwargs or {}
        in_place = func is aten.add.Tensor and (self._adds_bias(args) or self._accumulates(args))
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
        if any(tensor.layout is not torch.strided for tensor in outs):  # its bytes depend on values
            raise MethodError(f"{packet} gives a sparse tensor: take dense ones, of an embedding by sparse=False")
        if packet in _PRODUCTS:
            self._product = outs[0].untyped_storage()._cdata
        if not func.is_view:
            self.adopt([t for t in outs if t.untyped_storage()._cdata not in self._live], self._part)
            # queries, which occur on fake tensors only, are free of cost
            computes = outs or func._schema.is_mutable
            if computes and packet not in _FREE and self._step is not None:
                self._charge(packet, args, kwargs, out, outs)
            if computes and self.moments is not None:
                scope = self._scope[-1] if self._scope else self._backward_scope
                totals = tuple(self._totals.values())
                self.moments.append(LiveMoment(str(packet), scope, self._phase, *self._position, totals))
            if call is not None and computes:
                self._keep(call, before)
        return out

    def _adds_bias(self, args: Any) -> bool:
        """Whether this addition is a linear layer's, of its bias to the product that was just computed.

        Without a dispatch mode torch adds a bias in place; with one it makes a new tensor, which a client's step
        wouldn't allocate.  Such a product is known to torch's C++ code alone.
        """
        bias = args[1]
        if not isinstance(bias, Tensor) or bias.dim() != 1 or args[0].untyped_storage()._cdata != self._product:
            return False
        return _references(args)[0] < _references_of_a_product()

    @property
    def _in_backward(self) -> bool:
        """Whether a backward pass runs: the step's, or one within a loss."""
        within = self._phase == "forward" and torch._C._current_autograd_node() is not None
        return self._backward or within

    def _accumulates(self, args: Any) -> bool:
        """Whether this addition is autograd's, of another gradient to one that nothing else refers to.

        Without a dispatch mode autograd adds it in place if it is dense; with one it makes a new tensor
        (``accumulate`` in ``torch/csrc/autograd/input_buffer.cpp``).
        """
        if not self._in_backward or torch.is_grad_enabled() or not isinstance(args[1], Tensor):
            return False
        return _references(args)[1:] == self._unshared and bool(aten.is_non_overlapping_and_dense(args[0]))

    def _keep(self, call: Call, before: int) -> None:
        """Keep a call if no equal one had more live storage before it."""
        assert self._calls is not None
        known = self._calls.get((call.operator, call.arguments))
        if known is None or before > known.before:
            after = tuple(self._totals.values())
            self._calls[call.operator, call.arguments] = LiveCall(call, before, sum(after) - before, after)

    def _charge(self, packet: Any, args: Any, kwargs: Any, out: Any, outs: list[Tensor]) -> None:
        assert self._step is not None
        formula = FORMULAS.get(packet)
        flops = 0
        if formula is not None:
            flops = formula(*args, **kwargs, out_val=out)
        elif is_matmul(packet):
            part = f" of {self._scope[-1]}" if self._scope else ""
            raise UncountedOperator(
                f"operator {packet}{part} is of matmul class and has no FLOP formula; counting it as 0 would be wrong; "
                "compute it by torch.matmul, torch.einsum or a layer of torch.nn"
            )
        if self._in_backward:
            self._step.backward_flops += flops
        else:
            self._step.forward_flops += flops
            macs = 5 * outs[0].numel() if packet is aten.native_layer_norm else flops // 2
            if macs and (owner := self._owner()):
                # a frozen copy's forward within a training step has no backward, even if the part trains
                without_gradient = self._trains and not torch.is_grad_enabled()
                self._step.macs[WITHOUT_GRADIENT if without_gradient else owner] += macs
                if self._trains and not without_gradient and owner in self._partial:
                    self._step.gradient_macs[owner] += gradient_macs(packet, args, macs)
        if packet in GATHERS:
            touched = 2 * sum(t.numel() * t.element_size() for t in outs)
        else:
            # by identity, as an operator reads an argument once; the values hold their ids
            tensors = {id(t): t for t in (*_tensors(args), *_tensors(kwargs.values()), *outs)}
            touched = sum(t.numel() * t.element_size() for t in tensors.values())
        of_class = OperatorClass.OPTIMIZER if self._phase == "optimizer" else class_of(packet, args)
        kernels = kernels_in(packet, args)
        each = flops // kernels, touched // kernels
        self._step.operators[*each, of_class] += kernels - 1
        self._step.operators[flops - (kernels - 1) * each[0], touched - (kernels - 1) * each[1], of_class] += 1
        if isinstance(args[0] if args else None, list | tuple) and str(packet).startswith("aten._foreach_"):
            self._step.more_kernels += len(args[0]) - 1

    def trace(self) -> StepTrace:
        """The peak and the step costs so far, and the calls whose scratch could move the peak."""
        calls = tuple(held for held in (self._calls or {}).values() if held.most > self.peak)
        parts = dict(self._peak_parts)
        return StepTrace(self.peak, parts, dict(self.steps), self.peak, calls, live_parts=parts, host_bytes=self.host)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _codes_of(cls: type[nn.Module]) -> Iterator[CodeType]:
    """The code of the functions that a class of modules has and torch's own class lacks."""
    for name in dir(cls):
        if not hasattr(nn.Module, name) and isinstance(function := getattr_static(cls, name), FunctionType):
            yield function.__code__


def parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules of a model with the part that each belongs to: a child of a tower, or one of its blocks.

    Modules inside a part are listed too, as a tower may call these alone; an operator belongs to the innermost.
    """
    for tower, module in model.named_children():
        for part, child in module.named_children():
            if part == "blocks":
                for index, block in child.named_children():
                    yield from ((f"{tower}.blocks.{index}", inner) for inner in block.modules())
            else:
                yield from ((f"{tower}.{part}", inner) for inner in child.modules())
