"""The trained model of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from edgefl.errors import RunError, UnknownName
from edgefl.models import adapters, build, quantised
from edgefl.models.model import ModelDescription


def trained_model(
    path: Path, models: Mapping[str, ModelDescription], kind: str, weights: Mapping[str, Tensor], *, merged: bool = True
) -> nn.Module:
    """The model of a client kind with these weights of the run at ``path``, in evaluation mode on the CPU.

    ``models`` are the run's descriptions by kind.  ``merged`` adds an adapter to the weights that it stands beside,
    where it can be, and dequantises what is quantised.  Raises UnknownName for another kind, RunError if the weights
    don't fit the model.
    """
    if kind not in models:
        raise UnknownName("client kind", kind, models)
    try:
        module: nn.Module = build(models[kind])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"{path / 'models.json'} doesn't describe a model of {kind!r}: {reason}") from error
    tensors: dict[str, Tensor] = {}
    for prefix in (f"{kind}/", f"export/{kind}/"):  # a method's export, such as merged adapters, comes last
        tensors |= {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    try:
        loaded = module.load_state_dict(tensors, strict=False, assign=True)
    except RuntimeError as error:  # torch tells all tensors of another shape, a line for each
        first = str(error).splitlines()[:2][-1].strip().rstrip(".")
        raise RunError(f"the weights at {path} don't fit the model {kind!r}: {first}") from error
    # buffers may be missing, since a model can rebuild them; parameters must come from the file
    missing = sorted({name for name, _ in module.named_parameters()} & set(loaded.missing_keys))
    if missing or loaded.unexpected_keys:
        raise RunError(
            f"the weights at {path} don't fit the model {kind!r}: missing {_first(missing)}, "
            f"not in the model {_first(sorted(loaded.unexpected_keys))}"
        )
    adapter = models[kind].get("adapter")
    if merged:
        quantised.restore(module)
    if merged and adapter and (state := adapters.merge(module, adapter)) is not None:
        plain: nn.Module = build(adapters.without(models[kind]))
        own = plain.state_dict()
        plain.load_state_dict({name: value.to(own[name].dtype) for name, value in state.items()}, assign=True)
        module = plain
    return module.eval()


def _first(names: list[str], most: int = 3) -> str:
    """The first names as a list, and how many more there are."""
    return f"{names[:most]}{f' and {len(names) - most} more' if len(names) > most else ''}"
