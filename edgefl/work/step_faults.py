"""Mistakes of steps by their remedy: an operator that needs values, an unknown tensor, a field nobody asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from edgefl import registry
from edgefl.errors import MethodError
from edgefl.modalities import MODALITIES
from edgefl.work.description import Pass
from edgefl.work.steps import Context

OPTIONAL = ("index", "group", "target", "label", *MODALITIES)
"""Fields that a pass may ask for by ``args.fields``."""

_LIBRARIES = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))


def line_of(error: BaseException) -> str:
    """``FILE:LINE`` of the code outside edgefl and torch that was nearest to an error; "" if there was none."""
    found = ""
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        # "<@": a wrapper that a type checker has put around a function of edgefl
        if not file.startswith((*_LIBRARIES, "<@")) and "contextlib" not in file:
            found = f"{file}:{line}"
    return found


@contextmanager
def step_faults(ctx: Context, pass_: Pass, fields: Collection[str] = ()) -> Iterator[None]:
    """Raise MethodError, with the step and its line, for the mistakes in a step that reads these ``fields``."""
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        operator = getattr(error, "func", error)
        raise MethodError(
            f"{_where(pass_, error)}: the result of {operator} depends on values, but a cost is predicted from shapes "
            "alone: leave out .item(), float(), bool(), `if` on a tensor and indexing by a mask; torch.where and a "
            "product with the mask keep shapes"
        ) from error
    except AssertionError as error:
        if "convert all Tensors to FakeTensors" not in str(error):
            raise
        raise MethodError(
            f"{_where(pass_, error)}: a tensor is neither a parameter nor a buffer of the model: register it "
            "(register_buffer), and hold modules in an nn.ModuleList or nn.ModuleDict"
        ) from error
    except KeyError as error:
        name = error.args[0] if error.args else None
        if name in ctx.trained and name not in ctx.reference:
            raise MethodError(
                f"{_where(pass_, error)}: its work has no copy of {name!r} as it was received: give the work "
                "reference=work.trainable"
            ) from error
        if isinstance(name, str) and name not in (*OPTIONAL, *pass_.args) and not line_of(error):
            raise MethodError(
                f"{_where(pass_, error)}: its pass has no argument {name!r}; it has {', '.join(pass_.args) or 'none'}"
            ) from error
        if name not in OPTIONAL or name in fields:
            raise
        asked = [*fields, name]
        raise MethodError(
            f"{_where(pass_, error)}: its batch has no field {name!r}; it has {', '.join(fields) or 'none'}: ask for "
            f"it in the pass, args={{'fields': {asked!r}}}"
        ) from error


def _where(pass_: Pass, error: BaseException) -> str:
    line = line_of(error)
    return f"{describe_step(pass_)}, {line}" if line else describe_step(pass_)


def describe_step(pass_: Pass) -> str:
    """The step of a pass as messages name it, with those around it: each may be at fault."""
    return " around ".join(registry.describe_part("step", name) for name in reversed(pass_.steps))


def missing_gradients(pass_: Pass, cause: str, remedy: str) -> MethodError:
    """What to raise for a pass whose outermost step changes gradients, of which ``cause`` leaves none."""
    step = registry.describe_part("step", pass_.steps[-1])
    return MethodError(f"{cause} gradients, which {step} would change; set training.{remedy}")
