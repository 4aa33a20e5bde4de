"""Checks of what a method's functions return, at every call: a plug-in's mistake is named where it was made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from types import FunctionType
from typing import Any

from torch import Tensor

from edgefl.errors import MethodError, ValuesGone
from edgefl.methods.state import ServerState
from edgefl.registry.answers import describe_answer, name_function
from edgefl.work import Work
from edgefl.work.step_faults import line_of


def _work(answer: Any, state: ServerState | None) -> str:
    return "" if isinstance(answer, Work) else f"returned {describe_answer(answer)}, not a Work"


def _works(answer: Any, state: ServerState | None) -> str:
    if not isinstance(answer, Sequence):
        return f"returned {describe_answer(answer)}, not a sequence of Works; () stands for none"
    wrong = next((work for work in answer if not isinstance(work, Work)), None)
    return "" if wrong is None else f"returned a sequence with {describe_answer(wrong)}, not of Works alone"


def _state(answer: Any, state: ServerState | None) -> str:
    if not isinstance(answer, ServerState):
        return f"returned {describe_answer(answer)}, not a ServerState"
    wrong = next((address for address, tensor in answer.tensors.items() if not isinstance(tensor, Tensor)), None)
    if wrong is not None:
        return f"returned {describe_answer(answer.tensors[wrong])} at {wrong!r}, not a tensor"
    for address, before in (state.tensors if state is not None else {}).items():
        after = answer.tensors.get(address)
        if after is before:
            continue
        if after is None:
            return f"returned a state without {address!r}"
        if (after.shape, after.dtype) != (before.shape, before.dtype):
            return (
                f"changed {address!r} from {before.dtype} {tuple(before.shape)} to {after.dtype} {tuple(after.shape)}; "
                "every address keeps its shape and its precision"
            )
    return ""


def _addresses(answer: Any, state: ServerState | None) -> str:
    if isinstance(answer, str) or not isinstance(answer, Collection):
        return f"returned {describe_answer(answer)}, not a set of addresses; set() stands for none"
    wrong = next((address for address in answer if not isinstance(address, str)), None)
    return "" if wrong is None else f"returned a collection with {describe_answer(wrong)}, not of addresses alone"


def _hash_fault(answer: Any, state: ServerState | None) -> str:
    try:
        hash(answer)
    except TypeError:
        return f"returned {describe_answer(answer)}, which isn't hashable; return a number, a text or a tuple of these"
    return ""


_CHECKS: Mapping[str, Callable[[Any, ServerState | None], str]] = {
    "initial": _state,
    "variant": _hash_fault,
    "work": _work,
    "evaluate": _work,
    "before": _works,
    "after": _works,
    "aggregate": _state,
    "changed_addresses": _addresses,
    "absorb": _state,
}


def check_answers(method: type) -> None:
    """Replace the functions that a subclass of Method defines by ones that check what they return.

    They raise MethodError with the function, its plug-in and its file for a wrong type, for a state that lacks an
    address of the one before, and for a tensor of another shape or precision than before.
    """
    for name, check in _CHECKS.items():
        function = vars(method).get(name)
        if isinstance(function, FunctionType):
            setattr(method, name, _with_check(function, check))


def _with_check(function: FunctionType, check: Callable[[Any, ServerState | None], str]) -> Callable[..., Any]:
    @wraps(function)
    def call_and_check(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            answer = function(self, *args, **kwargs)
        except ValuesGone as error:
            raise MethodError(f"{name_function(function)} reads what is gone ({line_of(error)}): {error}") from error
        state = next((value for value in (*args[:1], kwargs.get("state")) if isinstance(value, ServerState)), None)
        if fault := check(answer, state):
            raise MethodError(f"{name_function(function)} {fault}")
        return answer

    return call_and_check
