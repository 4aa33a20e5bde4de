"""The fake tensor mode of predictions: torch's, corrected for norms and strides, and quick where a call comes again.

torch's ``FakeTensorMode`` keeps the outputs of operators by their arguments; comparing arguments and making outputs
takes most of a prediction's time.  What it answers from what it kept is kept here once more, under a key with the same
facts that costs a fifth.  So an answer is one that torch itself would give, corrected, and whatever torch computes anew
each time (operators of libraries that return something, outputs that depend on values) is asked of torch each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import make_contiguous_strides_for
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from edgefl.work import recurrence

aten = torch.ops.aten

_NORMS = {aten.native_layer_norm.default: 2, aten.native_batch_norm.default: 1}
"""Norm operators, and the index of the weight among their arguments."""

_POINTWISE = frozenset(
    getattr(aten, name)
    for name in (
        "elu_backward", "hardsigmoid_backward", "hardswish_backward", "hardtanh_backward", "leaky_relu",
        "leaky_relu_backward", "mish_backward", "softplus_backward",
    )
)  # fmt: skip
"""Pointwise operators that torch doesn't tag as such; of leaky_relu this is torch 2.11."""

_KEEPS_STRIDES = frozenset({aten.clone, aten.deg2rad, aten.hardtanh, aten.nan_to_num, aten.rad2deg})
"""Pointwise operators whose kernels allocate the output with the strides of the operand."""

_OF_ONE_DTYPE = frozenset(
    getattr(aten, name) for name in "mm addmm bmm baddbmm addbmm mv addmv dot addr convolution".split()
)
"""Products whose kernels refuse operands of several dtypes, which torch's fake kernels take."""

_OF_A_NUMBER = "Scalar"
"""The overload whose kernel makes a tensor without dimensions of a number (``aten.mul.Scalar``)."""

_UNSAFE_VIEW = aten._unsafe_view.default
"""A view of its argument that doesn't say so, for which torch keeps no answer."""

_PLAIN = frozenset({str, bool, int, float, type(None), torch.dtype, torch.layout, torch.device, torch.memory_format})
"""Types of arguments that are no tensors and on whose values alone outputs depend."""

MOST_ANSWERS = 10_000
"""So many answers are kept, here and by torch; then all are forgotten.  A decoder of 24 blocks has a few hundred, and a
sweep has others for each batch, which torch would keep for good."""

Key = tuple[Any, ...]


class _UnknownArgument(Exception):
    """An argument of a type that no key describes."""


@dataclass(frozen=True)
class _NewTensor:
    """An output that is a new tensor, with a storage of its own or (``shares``) that of an argument.

    ``attributes`` are those of the fake tensor, without its mode.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    device: torch.device
    attributes: Mapping[str, Any]
    shares: int | None

    def make(self, mode: FakeTensorMode, args: Sequence[Any]) -> FakeTensor:
        """The output, made as torch makes it; its modes are off while they dispatch."""
        if self.shares is None:
            elements = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")
        else:
            elements = torch.empty(0, dtype=self.dtype, device="meta")
            elements.set_(args[self.shares].untyped_storage(), self.offset, self.shape, self.strides)
        made: Any = Tensor._make_subclass(
            FakeTensor, elements, False, dispatch_device=True, device_for_backend_keys=self.device
        )
        if mode._allow_unsafe_data_ptr_access:
            torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
        else:
            torch._C._set_throw_on_mutable_data_ptr(made)
        made.__dict__.update(self.attributes, fake_mode=mode)
        return made  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Argument:
    """An output that is an argument, of an operator that works in place."""

    index: int

    def make(self, _: FakeTensorMode, args: Sequence[Any]) -> Any:
        """The argument."""
        return args[self.index]


@dataclass(frozen=True)
class _Constant:
    """An output that is no tensor."""

    value: Any

    def make(self, _: FakeTensorMode, __: Sequence[Any]) -> Any:
        """The value."""
        return self.value


_Output = _NewTensor | _Argument | _Constant
_answers: dict[Key, _Output | tuple[_Output, ...]] = {}


class PredictionMode(FakeTensorMode):
    """A fake tensor mode that answers at once what it has answered before.

    It corrects the dtype of norm statistics on the CPU under autocast.  The CPU kernels save mean and deviation in the
    dtype of the weights.  The fake kernels of torch 2.13 use the dtype of the input, which would give a wrong size.
    And it corrects the strides that pointwise operators give to dimensions of size 1 (``_laid_out_anew``), since a
    convolution chooses its kernel, and so its scratch, by them.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would guard each call against its compiler, and nothing here is compiled

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The fake outputs of an operator."""
        kwargs = kwargs or {}
        try:
            key = self._key(func, args, kwargs)
        except _UnknownArgument:
            return self._corrected_outputs(func, types, args, kwargs)
        known = _answers.get(key)
        if known is not None:
            return tuple([o.make(self, args) for o in known]) if isinstance(known, tuple) else known.make(self, args)
        if max(len(_answers), len(FakeTensorMode.cache)) >= MOST_ANSWERS:
            _answers.clear()
            FakeTensorMode.cache_clear()
        hits, *others = _counts()
        out = self._corrected_outputs(func, types, args, kwargs)
        again = _counts() == (hits + 1, *others) or func is _UNSAFE_VIEW or _returns_nothing(func)
        if again and (answer := _answer(func, args, out)):
            _answers[key] = answer
        return out

    def _corrected_outputs(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """torch's outputs, with corrected statistics of norms and strides of pointwise operators."""
        if func._overloadpacket in _OF_ONE_DTYPE:
            dtypes = {str(each.dtype).removeprefix("torch."): None for each in args if isinstance(each, Tensor)}
            if len(dtypes) > 1:
                raise RuntimeError(f"{func} takes tensors of one dtype, not of {' and '.join(dtypes)}")
        if func is aten._cudnn_rnn_backward.default:
            with self:
                return recurrence.gradients(*args)
        out: Any = super().__torch_dispatch__(func, types, args, kwargs)
        if func is aten._cudnn_rnn.default:  # torch's fake kernel keeps nothing for the backward pass
            with self:
                kept = torch.empty(recurrence.reserve_bytes(out[0], args[9], args[12]), dtype=torch.uint8)
            return *out[:3], kept, out[4]
        if type(out) is FakeTensor and _chooses_strides(func):
            return self._laid_out_anew(func, args, out)
        if func not in _NORMS:
            return out
        outputs = out[0], *self._statistics(args[_NORMS[func]], args[0], out[1:])
        if func is aten.native_layer_norm.default:
            outputs = self._row_major(func, args, out[0]), *outputs[1:]
        return outputs

    def _statistics(self, weight: Any, x: Any, found: Sequence[Any]) -> Sequence[Any]:
        """The statistics that a norm saves, in the weight's dtype."""
        if weight is None or weight.dtype == x.dtype or x.device.type != "cpu":
            return found
        with self:
            return [o if not o.numel() else torch.empty(o.shape, dtype=weight.dtype, device=o.device) for o in found]

    def _laid_out_anew(self, func: Any, args: Sequence[Any], out: FakeTensor) -> FakeTensor:
        """The output of a pointwise operator, row-major if all its operands are, whatever a dimension of size 1 has.

        A tensor of shape [N, C, 1, 1] can lie row-major and channels last at once.  torch's kernels take it as
        row-major if all operands have one shape (``compute_fast_setup_type`` in ``aten/src/ATen/TensorIterator.cpp``);
        its fake kernels keep the strides of the operands.
        """
        operands = zip(args, func._schema.arguments, strict=False)
        if all(_is_row_major(value, out.shape) for value, argument in operands if _is_operand(argument)):
            return self._row_major(func, args, out)
        return out

    def _row_major(self, func: Any, args: Sequence[Any], out: FakeTensor) -> FakeTensor:
        """A new output with the strides that a contiguous tensor has, if it has others in dimensions of size 1."""
        strides = make_contiguous_strides_for(out.shape)
        if out.stride() == strides or not out.is_contiguous():
            return out
        answer = _output(func, args, out)
        return replace(answer, strides=strides).make(self, args) if isinstance(answer, _NewTensor) else out

    def _key(self, func: Any, args: Any, kwargs: Any) -> Key:
        """What an answer depends on: the facts of torch's own key.  Raises _UnknownArgument."""
        facts = [func, torch.get_default_dtype(), torch._C._get_default_device(), torch.is_inference_mode_enabled()]
        self._describe(args, facts.append)
        if kwargs:
            facts.append(tuple(kwargs))
            self._describe(kwargs.values(), facts.append)
        return tuple(facts)

    def _describe(self, values: Any, add: Callable[[Any], None]) -> None:
        for value in values:
            cls = type(value)
            if cls is FakeTensor:
                if value.fake_mode is not self or value.constant is not None:
                    raise _UnknownArgument
                add(value.shape)
                add(value.stride())
                add(value.dtype)
                add(value.storage_offset())
                add(value.untyped_storage().nbytes())
                add(value.requires_grad)
                add(value.fake_device)
                add(torch._C._dispatch_keys(value).raw_repr())  # layout, conjugation, negation, quantisation, inference
            elif cls in _PLAIN:
                add(cls)  # 1, 1.0 and True are equal
                add(value)
            elif cls is list or cls is tuple:
                add(len(value))
                self._describe(value, add)
            else:
                raise _UnknownArgument


@cache
def _chooses_strides(func: Any) -> bool:
    """Whether an operator works element by element and gives its output strides by those of all its operands."""
    packet = func._overloadpacket
    if func.namespace != "aten" or packet in _KEEPS_STRIDES or func._overloadname == _OF_A_NUMBER:
        return False
    return packet in _POINTWISE or torch.Tag.pointwise in func.tags


def _is_operand(argument: Any) -> bool:
    """Whether an argument of a schema is a tensor, for which a number is made one without dimensions."""
    return isinstance(argument.type, torch.TensorType)


def _is_row_major(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.shape == shape and value.is_contiguous()


def _returns_nothing(func: Any) -> bool:
    """Whether an operator of a library writes into its arguments alone: without values nothing is left to answer."""
    return func.namespace not in ("aten", "prims") and not func._schema.returns


def _counts() -> tuple[int, int, int]:
    """How often torch's mode has answered from what it kept, has kept an answer, and has done neither.

    An operator that is computed from others counts them too, so that only an answer from what was kept adds 1, 0, 0.
    """
    mode = FakeTensorMode
    return mode.cache_hits, mode.cache_misses, sum(mode.cache_bypasses.values())


def _answer(func: Any, args: Sequence[Any], out: Any) -> _Output | tuple[_Output, ...] | None:
    """How to make these outputs again; None for one of another type."""
    if not isinstance(out, tuple):
        return _output(func, args, out)
    outputs = [made for each in out if (made := _output(func, args, each))]
    return tuple(outputs) if len(outputs) == len(out) else None


def _output(func: Any, args: Sequence[Any], out: Any) -> _Output | None:
    if out is None or isinstance(out, int):
        return _Constant(out)
    for index, value in enumerate(args):
        if value is out:
            return _Argument(index)
    if type(out) is not FakeTensor or out.requires_grad or out.is_conj() or out.is_neg() or out.layout != torch.strided:
        return None
    views = func.is_view or func is _UNSAFE_VIEW
    shares = next(index for index, value in enumerate(args) if isinstance(value, Tensor)) if views else None
    attributes = {name: value for name, value in vars(out).items() if name != "fake_mode"}
    return _NewTensor(
        tuple(out.shape), out.stride(), out.dtype, int(out.storage_offset()), out.fake_device, attributes, shares
    )
