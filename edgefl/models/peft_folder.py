"""Folders of Hugging Face's libraries: a tower as a model of transformers, and its LoRA as an adapter of PEFT.

PEFT's format (0.21): ``adapter_config.json``, and ``adapter_model.safetensors`` with a layer's factors as
``base_model.model.LAYER.lora_A.weight`` [rank, in] and ``lora_B.weight`` [out, rank], and the layers that train whole
(``modules_to_save``).  What a task adds to a tower has no place in either library and lies in ``read_out.safetensors``,
by the names of edgefl's model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from edgefl.errors import MethodError
from edgefl.files import read_regular
from edgefl.models import adapters, quantised
from edgefl.models.libraries import as_library, library_names, library_part
from edgefl.models.model import AdapterDescription, Model, ModelDescription, TowerDescription, dtype_of
from edgefl.models.towers.library_model import quiet
from edgefl.models.weights import minilm_folder

FACTORS, CONFIG, READ_OUT = "adapter_model.safetensors", "adapter_config.json", "read_out.safetensors"
METADATA = {"format": "pt"}
"""What a file says of itself."""
BEFORE = "base_model.model."
"""What PEFT's names begin with."""
ENDS = {**dict(zip(adapters.FACTORS, (".lora_A.weight", ".lora_B.weight"), strict=True)),
        adapters.MAGNITUDE: ".lora_magnitude_vector"}  # fmt: skip
"""The ends of its names of a layer's factors, and of DoRA's lengths."""
KINDS = ("lora", "dora")
"""Adapters that a folder of PEFT holds."""


def write_model(model: Model, modality: str, folder: Path) -> None:
    """Write a tower as a folder that transformers' ``from_pretrained`` opens, and beside it what a task adds.

    Raises MethodError for an adapter that isn't merged.
    """
    if adapter := model.description.get("adapter"):
        raise MethodError(f"the adapter {adapter['name']} can't be merged into the model of another library")
    whole = _whole(model, modality)
    _save(whole, _tower(model, modality), folder)
    _write_read_out(model, modality, folder)


def write_adapter(model: Model, modality: str, folder: Path, weights: str | None) -> None:
    """Write a tower's LoRA as a folder of PEFT, and what a task adds beside it.

    ``weights`` are those that its base began with; where these aren't a folder of the whole base, the base is written
    to ``folder/base``, dequantised if it is quantised.  Raises MethodError for another adapter, and where PEFT can't
    hold what trains beside it.
    """
    model = quantised.restored_model(model)
    adapter, tower = model.description.get("adapter"), _tower(model, modality)
    if adapter is None or adapter["name"] not in KINDS:
        name = adapter["name"] if adapter else "none"
        raise MethodError(f"PEFT's files hold LoRA's factors, and the run has adapter: {name}; --to transformers fits")
    whole, names = _whole(model, modality), _names(model, modality, tower)
    state, layers = model.state_dict(), _layers(model, adapter, names)
    saved = _trained_whole(whole, {own for name, own in names.items() if _trains(adapter, name)}, layers)
    tensors = {theirs: state[own] for theirs, own in _factors(layers, state)}
    for layer in saved:
        for name, value in whole.get_submodule(layer).state_dict().items():
            tensors[f"{BEFORE}{layer}.{name}"] = value.to(dtype_of(adapter)) if value.is_floating_point() else value
    base = _base_of(tower, weights, whole)
    if base is None:
        _save(whole, tower, folder / "base")
    alpha = adapters.scale(adapter) * adapter["rank"]
    scores = bool(tower.get("predicts"))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM" if scores else None,
        "auto_mapping": None
        if scores
        else {"base_model_class": type(whole).__name__, "parent_library": type(whole).__module__},
        "base_model_name_or_path": base or "base",
        "r": adapter["rank"],
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": 0.0,
        "use_dora": adapter["name"] == "dora",
        "target_modules": _targets(whole, layers),
        "modules_to_save": saved or None,
        "fan_in_fan_out": any(type(whole.get_submodule(layer)).__name__ == "Conv1D" for layer in layers),
        "bias": "none",
        "inference_mode": True,
    }
    _write_tensors(tensors, folder / FACTORS)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _write_read_out(model, modality, folder)


def adapter_bytes(model: Model, modality: str) -> int:
    """Size of the file that PEFT writes of a tower's LoRA alone; the model may be on the meta device."""
    from safetensors.torch import save

    model = quantised.restored_model(model)
    state, names = model.state_dict(), _names(model, modality, _tower(model, modality))
    layers = _layers(model, model.description["adapter"], names)
    zeros = {theirs: torch.zeros(state[own].shape, dtype=state[own].dtype) for theirs, own in _factors(layers, state)}
    return len(save(zeros, METADATA))


def _layers(model: nn.Module, adapter: AdapterDescription, names: Mapping[str, str]) -> dict[str, str]:
    """The layers with factors: transformers' names, and the model's."""
    return {
        names[f"{name}.weight"].removesuffix(".weight"): name
        for name, _ in adapters.chosen_layers(model, adapter["parts"])
        if f"{name}.weight" in names
    }


def _factors(layers: Mapping[str, str], state: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """PEFT's name of each factor and each layer's lengths, and the model's."""
    for layer, name in layers.items():
        for factor, end in ENDS.items():
            if f"{name}.{factor}" in state:
                yield f"{BEFORE}{layer}{end}", f"{name}.{factor}"


def _tower(model: Model, modality: str) -> TowerDescription:
    return model.description["towers"][modality]


def _whole(model: Model, modality: str) -> Any:
    """transformers' model in float32 with a tower's values, and with scores of the vocabulary if the tower predicts."""
    tower = _tower(model, modality)
    found: Any = as_library(model, modality, tower)
    if not tower.get("predicts"):
        return found
    import transformers

    library: Any = transformers
    with torch.device("meta"):
        whole: Any = library.AutoModelForCausalLM.from_config(found.config)
    setattr(whole, whole.base_model_prefix, found)
    head = getattr(model.get_submodule(modality), "head", None)
    if head is None:
        whole.tie_weights()
    else:
        values = {name: getattr(head, name).detach().float() for name in whole.lm_head.state_dict()}
        whole.lm_head.load_state_dict(values, assign=True)
    return whole.eval()


def _names(model: nn.Module, modality: str, tower: TowerDescription) -> dict[str, str]:
    """transformers' name of each of the model's tensors that it has, with scores of the vocabulary too."""
    names = library_names(model, modality, tower)
    if not tower.get("predicts"):
        return names
    prefix = _prefix(tower)
    state, head = model.state_dict(), f"{modality}.head."
    scores = {f"{head}{name}": f"lm_head.{name}" for name in ("weight", "bias") if f"{head}{name}" in state}
    return {name: f"{prefix}{own}" for name, own in names.items()} | scores


def of_transformers(tower: TowerDescription) -> Any:
    """transformers' model of a described tower on the meta device; None for a tower that isn't one of its models."""
    if (part := library_part(tower)) is None:
        return None
    with torch.device("meta"):
        found = part.library(tower)
    from transformers import PreTrainedModel

    return found if isinstance(found, PreTrainedModel) else None


def _prefix(tower: TowerDescription) -> str:
    """What the names of a model begin with where it is a part of one with a head: ``model.``, ``bert.``."""
    return f"{of_transformers(tower).base_model_prefix}."


def _trains(adapter: AdapterDescription, name: str) -> bool:
    """Whether a tensor has other values than in the base: what trains, and the norm that stands for the base's."""
    return adapters.trains(adapter, name) or name.startswith("joint.")


def _trained_whole(whole: nn.Module, trained: set[str], layers: Mapping[str, str]) -> list[str]:
    """The layers that PEFT is to keep whole (``modules_to_save``).  Raises MethodError where it can't.

    PEFT takes all whose names end with one of them, ``layers.0.input_layernorm`` with ``norm`` too, and gives none of
    them factors.  Scores that are read by the embedding's own rows need its values too.
    """
    ends = {name.rpartition(".")[0] for name in trained}
    table = getattr(whole, "lm_head", None)
    if table is not None and table.weight is (inputs := cast(Any, whole).get_input_embeddings()).weight:
        ends |= {"lm_head"} if any(whole.get_submodule(end) is inputs for end in ends) else set()
    saved = sorted(n for n, _ in whole.named_modules(remove_duplicate=False) if n.endswith(tuple(ends)) and n)
    for name in saved:
        if name in layers or whole.get_submodule(name)._modules:
            why = "it has factors" if name in layers else "it holds other layers"
            raise MethodError(f"PEFT can't keep {name} whole, because {why}: train it without, by adapter.also")
    return saved


def _targets(whole: Any, layers: Mapping[str, str]) -> list[str]:
    """The shortest names by which PEFT finds these layers alone: their last words, or the whole names."""
    ends = {layer.rpartition(".")[2] for layer in layers}
    with torch.device("meta"):
        read = type(whole)(whole.config)  # what others load may have a pooler
    names = {name for model in (whole, read) for name, _ in model.named_modules()}
    found = {name for name in names if name.rpartition(".")[2] in ends}
    return sorted(ends if found == set(layers) else layers)


def _base_of(tower: TowerDescription, weights: str | None, whole: Any) -> str | None:
    """The name of a folder or repository with the whole base; None if there is none, or if the base is a part of it."""
    from transformers import AutoConfig

    if weights is None or not tower.get("load_norm", True):
        return None
    folder = minilm_folder() if weights == "minilm" else Path(weights).expanduser()
    if not (folder / "config.json").is_file():
        return None
    try:
        blocks = AutoConfig.from_pretrained(folder, local_files_only=True).num_hidden_layers
    except (OSError, ValueError, AttributeError):  # a configuration that isn't transformers'
        return None
    name = library_part(tower).hub_repository(tower) if weights == "minilm" else weights
    return str(name) if blocks == whole.config.num_hidden_layers else None


def _save(whole: Any, tower: TowerDescription, folder: Path) -> None:
    with quiet():
        whole.to(dtype_of(tower)).save_pretrained(folder)


def _write_read_out(model: Model, modality: str, folder: Path) -> None:
    """Write what of a tower, and of what towers share, transformers' model lacks; nothing if that is all."""
    names = _names(model, modality, _tower(model, modality))
    other = {
        name: value
        for name, value in model.state_dict().items()
        if name.startswith((f"{modality}.", "joint."))
        and name not in names
        and f"{name.rpartition('.')[0]}.weight" not in names
    }
    if other:
        _write_tensors(other, folder / READ_OUT)


def _write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    from safetensors.torch import save_file

    copies = {n: t.detach().clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}  # none shared
    save_file(copies, file, METADATA)


# --- from PEFT -------------------------------------------------------------------------------------------------------

HARMLESS = (
    "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "eva_config", "exclude_modules",
    "fan_in_fan_out", "inference_mode", "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout",
    "megatron_config", "megatron_core", "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r",
    "revision", "runtime_config", "target_modules", "task_type", "use_dora", "use_rslora",
)  # fmt: skip
"""Fields of PEFT's configuration that are told by the file's tensors, checked here, or don't change what they give."""
ALLOWED = {"bias": ("none",), "init_lora_weights": (True, False, "gaussian", "eva")}
"""Values of further fields that leave base and factors as they are here; of all others only empty ones do."""
MOST = 1e9
"""Alpha is below this, either way: NaN and infinity aren't, nor are integers that no float can hold."""


def load(module: nn.Module, description: ModelDescription, modality: str, source: str) -> frozenset[str]:
    """Copy the values of a PEFT folder into a model, with those that a task adds where they fit; return their names.

    Raises MethodError if the folder isn't one, or is of another base or of other layers.
    """
    given, own = read_peft_folder(module, description, modality, source), module.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, value in given.items():
            own[name].copy_(value)
    return frozenset(given)


def read_peft_folder(module: nn.Module, description: ModelDescription, modality: str, source: str) -> dict[str, Tensor]:
    """The values of a PEFT folder for a model, which may be on the meta device, by its own names.

    Raises MethodError as ``load`` does.
    """
    folder = Path(source).expanduser()
    tower, adapter, where = description["towers"][modality], description["adapter"], f"weights {source!r}"
    if of_transformers(tower) is None:
        raise MethodError(
            f"{where}: the tower {tower.get('tower', modality)} of {modality} is no model of transformers"
        )
    config = _checked_config(folder / CONFIG, adapter, where)
    prefix, state = _prefix(tower), module.state_dict()
    names = {own.removeprefix(prefix): name for name, own in _names(module, modality, tower).items()}
    factors = {
        f"{own.removesuffix('.weight')}{end}": f"{name.removesuffix('.weight')}.{factor}"
        for own, name in names.items()
        for factor, end in ENDS.items()
        if f"{name.removesuffix('.weight')}.{factor}" in state
    }
    stored = {n.removeprefix(BEFORE).removeprefix(prefix): t for n, t in _tensors(folder / FACTORS, where).items()}
    if tower.get("predicts") and "lm_head.weight" not in names:
        table = next(own for own, name in names.items() if name.startswith(f"{modality}.embedding."))
        rows, scores = stored.get(table), stored.pop("lm_head.weight", None)
        same = rows is not None and scores is not None and rows.dtype == scores.dtype and torch.equal(rows, scores)
        if not (same or rows is scores or (rows is not None and config.get("ensure_weight_tying"))):
            raise MethodError(f"{where}: its {table} isn't its lm_head.weight, and is here (tie_word_embeddings)")
    known = names | factors
    by = f"{modality} here; adapter.parts chooses the layers"
    if other := sorted(stored.keys() - known.keys()):
        raise MethodError(f"{where}: it has {_first(other)}, which is no part of {by}")
    if missing := sorted(factors.keys() - stored.keys()):
        raise MethodError(f"{where}: it lacks {_first(missing)}, a part of {by}")
    for name, value in stored.items():
        if value.shape != (shape := state[known[name]].shape):
            raise MethodError(
                f"{where}: {name} is {list(value.shape)}, but {list(shape)} in {modality}: it is of another base"
            )
    found = {known[name]: value for name, value in stored.items()}
    added = _tensors(folder / READ_OUT, where) if (folder / READ_OUT).exists() else {}
    return found | {n: t for n, t in added.items() if n in state and n not in found and t.shape == state[n].shape}


def _checked_config(file: Path, adapter: AdapterDescription, where: str) -> dict[str, Any]:
    """PEFT's configuration.  Raises MethodError if it isn't that of this LoRA."""
    try:
        config: Any = json.loads(read_regular(file))
    except OSError as error:
        raise MethodError(f"{where}: {file} can't be read ({error.strerror}): a folder of PEFT has it") from error
    except (ValueError, RecursionError) as error:
        raise MethodError(f"{where}: {file} isn't JSON: {error}") from error
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise MethodError(f"{where}: its peft_type is {kind!r:.40}, and only LORA is known here")
    dora = bool(config.get("use_dora"))
    if dora != (adapter["name"] == "dora"):
        raise MethodError(f"{where}: its use_dora is {dora}: set adapter.name: {'dora' if dora else 'lora'}")
    for name, value in config.items():
        allowed = ALLOWED.get(name)
        if name not in HARMLESS and (value not in allowed if allowed else value):
            raise MethodError(f"{where}: its {name}: {value!r:.40} is no part of LoRA here")
    rank, alpha = config.get("r", 8), config.get("lora_alpha", 8)
    if rank != adapter["rank"]:
        raise MethodError(f"{where}: its rank is {rank!r:.40}: set adapter.rank, which is {adapter['rank']}")
    scale, by = adapters.scale(adapter), math.sqrt(rank) if config.get("use_rslora") else rank
    if not isinstance(alpha, int | float) or not abs(alpha) < MOST:
        raise MethodError(f"{where}: its lora_alpha is no number of this kind: {alpha!r:.40}")
    if not math.isclose(alpha / by, scale):
        raise MethodError(f"{where}: it takes adapter.alpha: {alpha * rank / by:g}, which is {scale * rank:g}")
    return cast(dict[str, Any], config)


def _tensors(file: Path, where: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise MethodError(f"{where}: {file} is no file of safetensors ({error})") from error


def _first(names: list[str]) -> str:
    return f"{names[0]}{f' (and {len(names) - 1} more)' if len(names) > 1 else ''}"
