"""What the towers ``hf`` and ``hf-causal`` share: models of transformers by configuration, cut by their structure.

The library's own forward pass runs, so scaled embeddings, sliding windows and relative positions are as it has them.
The blocks are the list of modules that one pass over tensors without data calls one after the other.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, cast, get_args

import torch
from pydantic import Field, PositiveInt, computed_field, field_validator, model_validator
from torch import Tensor, nn

from edgefl import models, registry, seeds
from edgefl.errors import MethodError, suggestion
from edgefl.memo import cache_folder, recall, remember
from edgefl.models.model import Dtype
from edgefl.models.tower import SkipInitialisation, TowerFields, Weights, recompute, through
from edgefl.models.towers.vision import import_torchvision
from edgefl.models.weights import is_published
from edgefl.registry.part_fields import path_beside

IRRELEVANT = (
    "architectures", "bos_token_id", "dtype", "eos_token_id", "pad_token_id", "torch_dtype", "transformers_version",
    "use_cache", "vocab_size", "_name_or_path",
)  # fmt: skip
"""Fields of a published config.json that don't change the model here; the vocabulary is the data's."""
EXPERTS = re.compile(r'"\w*experts\w*": ([2-9]|\d\d)')
"""Several experts in a configuration's JSON."""
PADDING = 1
"""The token of padding of models whose positions begin behind that of padding: RoBERTa's."""
TRACED = 4
"""Tokens of the text by which a model is traced: the shortest windows and convolutions run with them."""
TRACED_WORDS = 8
"""Words of the vocabulary of that model; more than ``PADDING``."""


def with_dtype(given: Any) -> Any:
    """A tower's fields with the ``dtype`` or ``torch_dtype`` of its configuration as its own, unless it has one."""
    try:
        config = dict(given["config"]) if isinstance(given["config"], Mapping) else of_folder(given["config"])
    except (KeyError, TypeError, ValueError):  # told where the field is read
        return given
    said = [str(config.pop(name)).removeprefix("torch.") for name in ("dtype", "torch_dtype") if config.get(name)]
    if said and "dtype" not in given and said[0] not in (known := get_args(Dtype)):
        raise ValueError(f"config: dtype {said[0]!r} isn't known here: write dtype: {' or '.join(known)} beside config")
    return {**({"dtype": said[0]} if said else {}), **given, "config": config}


class LibraryOptions(TowerFields):
    """Fields of both towers.  ``from_data`` are those of the configuration that the data determine."""

    from_data: ClassVar[tuple[str, ...]] = ("vocab_size", "num_channels", "image_size")
    config: dict[str, object] = Field(
        description="the model's configuration in transformers' words, {model_type: gpt2, n_embd: 128, n_layer: 4, "
        "n_head: 4}, or a folder with its config.json; vocabulary, channels and sizes are the data's"
    )
    tokens: PositiveInt = Field(40, description="tokens of a text: shorter texts are padded, longer ones cut")
    weights: Weights = Field(
        None, description="a folder with config.json and model.safetensors to start from; random if absent"
    )

    _dtype = model_validator(mode="before")(with_dtype)

    @field_validator("config", mode="before")
    @classmethod
    def _config(cls, given: Any) -> dict[str, object]:
        """The configuration's own fields.  Raises ValueError for a folder without one, or an unknown field."""
        fields = dict(given) if isinstance(given, Mapping) else of_folder(given)
        kind = str(fields.get("model_type"))
        cls.check_kind(kind)
        fields = {name: value for name, value in fields.items() if name not in (*IRRELEVANT, *cls.from_data)}
        known = known_fields(kind)
        for name in fields:
            if name != "model_type" and name not in known and not _is_read(kind, name):
                raise ValueError(f"{kind} has no field {name!r}{suggestion(name, known)}")
        return fields

    @classmethod
    def check_kind(cls, kind: str) -> None:
        """Raise ValueError, which says what would work, for a model type that isn't for this tower."""
        import_torchvision()
        from transformers import CONFIG_MAPPING, __version__

        if kind not in CONFIG_MAPPING:
            near = suggestion(kind, list(CONFIG_MAPPING))
            near = near if "did you mean" in near else ""
            raise ValueError(f"model_type {kind!r} isn't known to transformers {__version__}{near}")

    @model_validator(mode="after")
    def _fits(self) -> LibraryOptions:
        config, kind = read_only(self.config), self.family
        if EXPERTS.search(json.dumps(config.to_dict(), default=str)):
            raise ValueError(
                f"{kind} is a mixture of experts, in which the data decide what runs, so no cost is known before; take "
                "a dense model, such as llama or qwen3"
            )
        heads = getattr(config, "num_attention_heads", None)
        if isinstance(heads, int) and config.hidden_size % heads and not getattr(config, "head_dim", None):
            raise ValueError(f"width {config.hidden_size} can't be split over {heads} heads")
        most = getattr(config, "max_position_embeddings", None)
        structure = self.structure
        if self.modality == "text" and most is not None:
            most -= (PADDING + 1) * structure.offset
            if self.tokens > most:
                raise ValueError(f"{self.tokens} tokens don't fit into {most} positions")
        return self

    @property
    def family(self) -> str:
        """The configuration's ``model_type``."""
        return str(self.config["model_type"])

    @property
    def modality(self) -> str:
        """What it reads: text, image or audio."""
        return "text"

    @property
    def structure(self) -> Structure:
        """Where the model can be cut.  Raises ValueError if it can't be traced."""
        return _structure(json.dumps(self.config, sort_keys=True), self.tokens)

    def fields_at(self, depth: int) -> dict[str, object]:
        """The configuration's fields with the first ``depth`` blocks; as it is where they can't be cut."""
        return dict(self.config) if self.whole else at_depth(self.config, depth)

    @property
    def whole(self) -> str:
        """Why schedules can't cut it; empty if they can."""
        return self.structure.whole

    @computed_field(description="blocks at full depth; 1 where they can't be cut")  # type: ignore[prop-decorator]
    @property
    def blocks(self) -> int:
        """The configuration's number of blocks."""
        return 1 if self.whole else int(read_only(self.config).num_hidden_layers)

    @computed_field(description="dimension of a token")  # type: ignore[prop-decorator]
    @property
    def width(self) -> int:
        """The width of what the model gives."""
        return self.structure.width


# --- configurations --------------------------------------------------------------------------------------------------


def of_folder(given: Any) -> dict[str, object]:
    """The fields of a folder's ``config.json``.  Raises ValueError."""
    if not isinstance(given, str):
        raise ValueError(f"write a mapping with model_type, or a folder with config.json, not {given!r:.60}")
    path = Path(path_beside(given)).expanduser()
    path = path / "config.json" if path.is_dir() else path
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} can't be read ({error.strerror}): config is a folder with config.json") from error
    except ValueError as error:
        raise ValueError(f"{path} isn't JSON: {error}") from error
    if not isinstance(read, dict):
        raise ValueError(f"{path} holds no configuration")
    return read


def known_fields(kind: str) -> list[str]:
    """The fields of a model type, under their own names and transformers' common ones."""
    config = read_only({"model_type": kind})
    rotary = {"partial_rotary_factor"} & (getattr(config, "rope_parameters", None) or {}).keys()
    return [*config.to_dict(), *config.attribute_map, "rope_theta", "rope_scaling", "rope_local_base_freq", *rotary]


def _is_read(kind: str, name: str) -> bool:
    """Whether the library reads a field that its configuration doesn't declare, such as DeBERTa's position_buckets."""
    source = inspect.getsource(inspect.getmodule(model_class(read_only({"model_type": kind}))))  # type: ignore[arg-type]
    return name.startswith("_") or f'config, "{name}"' in source


def configuration(fields: Mapping[str, object], **more: Any) -> Any:
    """The library's configuration.  Raises ValueError if it refuses a value."""
    import_torchvision()
    from transformers import AutoConfig

    given = {**fields, **more}
    kind, failure = given.pop("model_type"), ""
    for token in (None, 0):  # some families ask for numbers
        marks = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), token)
        try:
            return AutoConfig.for_model(kind, **{**marks, **given})
        except Exception as error:  # the library raises many classes
            failure = failure or one_line(error)
            if "token_id" not in failure:
                break
    raise ValueError(f"transformers refuses this configuration: {failure}")


def one_line(error: Exception) -> str:
    """What the library says, in a line."""
    return " ".join(str(error).split())[:200]


def read_only(fields: Mapping[str, object]) -> Any:
    """``configuration`` that is shared by all who only read it: the library takes five milliseconds to make one.

    Raises ValueError.
    """
    try:
        text = json.dumps(fields, sort_keys=True)
    except (TypeError, ValueError):  # a value that isn't JSON, which the library may refuse
        return configuration(fields)
    return _read_only(text)


@lru_cache(256)
def _read_only(text: str) -> Any:
    return configuration(json.loads(text))


def at_depth(fields: Mapping[str, object], depth: int) -> dict[str, object]:
    """The fields of the same model with its first blocks: lists with a value for each block are cut too."""
    config = read_only(fields)
    name = config.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    full = config.num_hidden_layers
    cut = {n: v[:depth] for n, v in fields.items() if isinstance(v, list) and len(v) == full}
    return {**{n: v for n, v in fields.items() if n != "num_hidden_layers"}, **cut, name: depth}


@contextmanager
def quiet() -> Iterator[None]:
    """Let transformers neither log nor show progress."""
    import_torchvision()
    from transformers.utils import logging as library_logging

    logging: Any = library_logging
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


# --- structure -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Structure:
    """Where a model of transformers can be cut.

    ``lists`` are the paths of its lists of blocks, one if it can be cut, and ``norms`` of what follows the last block.
    ``whole`` says why it can't be cut, and is empty if it can.  ``tuples`` is how many values a block gives, 0 if it is
    a tensor alone.  ``offset`` says whether positions begin behind that of padding, and ``begins`` whether the model
    takes embedded tokens in place of a text.
    """

    lists: tuple[str, ...]
    norms: tuple[str, ...]
    whole: str
    width: int
    tuples: int
    offset: bool
    begins: bool


@lru_cache(256)
def _structure(text: str, tokens: int) -> Structure:
    """The structure of a configuration's model; the library's own are cached on disk, as a trace takes a second."""
    is_own = type(read_only(json.loads(text))).__module__.startswith("transformers.")
    rooms = registry.package_digest("edgefl", models.ROOMS)
    key = json.dumps(["structure", text, tokens, *models.versions(), rooms])
    folder, name = cache_folder() / "shapes", hashlib.blake2b(key.encode(), digest_size=12).hexdigest()
    found = recall(folder, name, _structure_of, "shapes") if is_own else None
    if found is None:
        found = _trace_configuration(text, tokens)
        if is_own:
            remember(folder, name, asdict(found))
    return found


def _structure_of(fields: Mapping[str, Any]) -> Structure:
    given: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in fields.items()}
    return Structure(**given)


def _trace_configuration(text: str, tokens: int) -> Structure:
    fields = json.loads(text)
    config = read_only(fields)
    given = {n: TRACED_WORDS for n in ("vocab_size",) if hasattr(config, n)}
    try:
        with torch.device("meta"), SkipInitialisation(), seeds.seeding_globals(0), quiet():
            return trace(make_model(configuration({**fields, **given}), tokens))
    except ValueError:
        raise
    except MethodError as error:
        raise ValueError(str(error)) from error
    except Exception as error:  # each model fails in its own way
        raise ValueError(f"{fields['model_type']} can't be traced: {one_line(error)}") from error


def model_class(config: Any) -> Any:
    """The library's class of a configuration's model, of whose outputs no task is a part.  Raises ValueError."""
    import transformers

    library: Any = transformers
    named = {"siglip_text_model": "SiglipTextModel", "siglip_vision_model": "SiglipVisionModel"}.get(config.model_type)
    if named:
        return getattr(library, named)
    if type(config) not in library.MODEL_MAPPING:
        raise ValueError(f"transformers has no model of a {config.model_type} alone")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # older DeBERTas are scripted by torch
        found = library.MODEL_MAPPING[type(config)]
    made = found[0] if isinstance(found, tuple) else found
    module = inspect.getmodule(made)
    for name, function in list(vars(module).items()):
        if isinstance(function, torch.jit.ScriptFunction):  # which no tensor without data runs
            setattr(module, name, cast(Any, function)._torchdynamo_inline)
    return made


def make_model(config: Any, tokens: int) -> nn.Module:
    """The library's model, of Whisper the encoder, without poolers; what isn't trained of it is computed.

    Rotary positions are those of a text of so many ``tokens``.  Raises MethodError if the library refuses a value only
    now, such as a rope_theta that is a list.
    """
    if config.model_type == "siglip_vision_model":
        config.vision_use_head = False
    if config.model_type == "whisper":
        config.decoder_layers, config.vocab_size, config.pad_token_id, config.decoder_start_token_id = 1, 8, 0, 0
    try:
        model = model_class(config)(config)
    except Exception as error:  # the library raises many classes
        raise MethodError(f"transformers can't build a model of this configuration: {one_line(error)}") from error
    return prepare(model, tokens)


def prepare(model: nn.Module, tokens: int) -> nn.Module:
    """The library's model as ``make_model`` gives it."""
    if model.config.model_type == "whisper":  # type: ignore[union-attr]
        model = model.get_submodule("encoder")
    _without(model, "pooler", None)
    for part in list(model.modules()):
        if isinstance(part._modules.get("head"), nn.Linear):  # of SigLIP's text tower
            _without(part, "head", nn.Identity())
    for part in list(model.modules()):
        _compute_constants(model, part, tokens)
    model.computing = [part for part in model.modules() if hasattr(part, "placed")]  # type: ignore[assignment]
    return model


def _compute_constants(model: Any, part: Any, tokens: int) -> None:
    """Make a module compute the buffers that aren't in its state, such as positions and the speeds of rotary ones.

    Their values are the library's own; what depends on the length of a text is settled for ``tokens``.
    """
    names = [name for name in part._non_persistent_buffers_set if part._buffers.get(name) is not None]
    if not names:
        return
    marked = [value for value in part._parameters.values() if value is not None]
    with torch.device("cpu"), torch.no_grad():
        without_values = any(part._buffers[name].is_meta for name in names)
        for name in names:
            buffer = part._buffers[name]
            part._buffers[name] = torch.empty_like(buffer, device="cpu") if without_values else buffer.cpu()
        if without_values:
            for value in marked:  # the library leaves what is marked so as it is
                value._is_hf_initialized = True
            model._init_weights(part)
        kind = getattr(part, "rope_type", None)
        if isinstance(kind, str) and ("dynamic" in kind or kind == "longrope"):
            part(torch.zeros(1, 1, 1), torch.arange(tokens)[None])
            part.rope_type = "default"
    constants = {name: part._buffers.pop(name).clone() for name in names}
    part._non_persistent_buffers_set.clear()
    # properties need a class of this part's own; tried with transformers 5.4 and 5.23
    found: dict[str, object] = {name: _constant(value) for name, value in constants.items()} | {"placed": None}
    part.__class__ = type(type(part).__name__, (type(part),), found)


def _constant(value: Tensor) -> property:
    # a copy each time, which is a fake tensor while costs are predicted
    return property(lambda self: torch.ops.aten.lift_fresh(value).to(self.placed or "cpu", copy=True))


def place_constants(model: Any, device: torch.device) -> None:
    """Have the constants of a prepared model computed on a device."""
    for part in model.computing:
        part.placed = device


def without_cache(model: Any) -> dict[str, bool]:
    """The argument by which a model keeps no keys and values for further tokens, if it might."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def example(model: Any) -> dict[str, Any]:
    """Inputs of a batch of one, without data."""
    config, name = model.config, model.main_input_name
    if name == "input_ids":
        return {name: torch.zeros(1, TRACED, dtype=torch.int64)}
    if name == "pixel_values":
        size = config.image_size
        return {name: torch.zeros(1, config.num_channels, *([size, size] if isinstance(size, int) else size))}
    if name == "input_features":
        return {name: torch.zeros(1, config.num_mel_bins, 2 * config.max_source_positions)}
    if not hasattr(config, "num_mel_bins"):
        raise ValueError(
            f"{config.model_type} doesn't read spectrograms: take audio-spectrogram-transformer or whisper"
        )
    return {name: torch.zeros(1, config.max_length, config.num_mel_bins)}


def trace(model: Any) -> Structure:
    """The structure of a prepared model on the meta device.  Raises ValueError for one without a list of blocks."""
    model.eval()  # some drop whole layers while they train
    calls: list[str] = []
    outputs: dict[str, Any] = {}
    handles = []
    for name, part in model.named_modules():
        handles.append(part.register_forward_pre_hook(lambda *_, name=name: calls.append(name)))
        handles.append(part.register_forward_hook(lambda *given, name=name: outputs.update({name: given[-1]})))
    place_constants(model, torch.device("meta"))
    offset = any(hasattr(part, "create_position_ids_from_inputs_embeds") for part in model.modules())
    more = {"position_ids": torch.arange(TRACED)[None]} if offset else {}
    with without_masks():
        given = model(**example(model), **more, **without_cache(model), return_dict=True)
    for handle in handles:
        handle.remove()
    tokens = getattr(given, "last_hidden_state", None)
    if not isinstance(tokens, Tensor) or tokens.dim() != 3:
        raise ValueError(
            f"a {model.config.model_type} doesn't give tokens [batch, tokens, width]; the tower timm has most models "
            "whose stages differ in width"
        )
    held = {name: part for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part)}
    outer = [name for name in held if not any(name.startswith(f"{other}.") for other in held if other != name)]
    if not outer:
        raise ValueError(f"a {model.config.model_type} has no list of blocks")
    lists = [name for name in outer if len(held[name]) == max(len(held[other]) for other in outer)]
    path = lists[0]
    whole = _why_whole(model, path, held[path], calls)
    members = {f"{path}.{i}" for i in range(len(held[path]))}
    last = max((i for i, call in enumerate(calls) if _within(call, members)), default=-1)
    norms: list[str] = []
    for call in calls[last + 1 :]:
        if not _within(call, {*members, *norms}) and has_parameters(model.get_submodule(call)):
            norms.append(call)
    text = model.main_input_name == "input_ids"
    embedded = getattr(model.config, "embedding_size", None) or tokens.shape[-1]
    return Structure(
        tuple(outer) if whole else (path,), tuple(norms), whole, tokens.shape[-1],
        len(out) if isinstance(out := outputs.get(f"{path}.0"), tuple) else 0,
        offset,
        text and not whole and embedded == tokens.shape[-1],
    )  # fmt: skip


def has_parameters(part: nn.Module) -> bool:
    """Whether a module or one inside has any."""
    return next(part.parameters(), None) is not None


def _within(name: str, parts: set[str]) -> bool:
    return any(f"{name}.".startswith(f"{part}.") for part in parts)


def _why_whole(model: nn.Module, path: str, blocks: nn.ModuleList, calls: list[str]) -> str:
    names = [f"{path}.{i}" for i in range(len(blocks))]
    made = [call for call in calls if call in names]
    if len(made) > len(names):
        return "its blocks share their weights"
    first, *others = [{n: p.shape for n, p in block.named_parameters()} for block in blocks]
    # ModernBERT's first block lacks a norm
    if others and (any(other != others[0] for other in others) or not first.items() <= others[0].items()):
        return "its blocks differ in form"
    between = calls[calls.index(made[0]) : calls.index(made[-1])] if made else []
    aside = [
        c for c in between if not _within(c, set(names)) and any(True for _ in model.get_submodule(c).parameters())
    ]
    if made != names or aside:
        return "its blocks aren't called one after the other"
    if len(names) != model.config.num_hidden_layers:  # type: ignore[union-attr]
        return "its configuration counts other blocks"
    return ""


@contextmanager
def without_masks() -> Iterator[None]:
    """Within it the library takes a text for one sequence without padding, as it is here.

    It would read that from positions and masks, which have no values while costs are predicted.
    """
    from transformers import masking_utils

    masks: Any = masking_utils
    names = ("find_packed_sequence_indices", "prepare_padding_mask")
    before = [getattr(masks, name) for name in names]
    try:
        for name in names:
            setattr(masks, name, lambda *_, **__: None)
        yield
    finally:
        for name, own in zip(names, before, strict=True):
            setattr(masks, name, own)


# --- the tower -------------------------------------------------------------------------------------------------------


class LibraryModel(nn.Module):
    """A model of transformers whose blocks and final norm are parts of their own: ``[batch, tokens, width]``.

    ``embedding`` is the library's model without them; its forward pass still finds them.  Where blocks can't be cut,
    they are one.
    """

    begin = 0
    norm: nn.Module

    def __init__(self, model: Any, structure: Structure, checkpointing: int = False):
        super().__init__()
        if structure.whole and checkpointing:
            raise MethodError(
                f"a {model.config.model_type} can't recompute its activations by block, because {structure.whole}: set "
                "training.checkpointing: false"
            )
        self.width, self.structure, self.divisible = structure.width, structure, structure.begins
        self.input = "input_features" if model.config.model_type == "whisper" else model.main_input_name
        self.more = without_cache(model)
        self.embedding = model
        held = [_beside(*_place(model, path)) for path in structure.lists]
        self.blocks = nn.ModuleList(held) if structure.whole else recompute(held[0], checkpointing)
        norms = {path.rpartition(".")[2]: _beside(*_place(model, path)) for path in structure.norms}
        if norms:
            self.norm = next(iter(norms.values())) if len(norms) == 1 else nn.ModuleDict(norms)

    def forward(self, x: Tensor) -> Tensor:
        """Encode texts ``[batch, tokens]``, images ``[batch, channels, size, size]`` or spectrograms
        ``[batch, frames, bins]``; while ``begin`` is set, the tokens that this block receives.

        There is no mask of padding, as in all towers.
        """
        return self.run(x, self.begin, None)

    def run(self, x: Tensor, begin: int = 0, until: int | None = None) -> Tensor:
        """Tokens ``[batch, tokens, width]`` after block ``until - 1``, or of the whole model.

        ``x`` is an input batch, or with ``begin`` the tokens that block ``begin`` receives.
        """
        more: dict[str, object] = dict(self.more)
        if begin:
            more["inputs_embeds"] = x
        else:
            more[self.input] = x.transpose(1, 2) if self.input == "input_features" else x
        if self.structure.offset:
            first = PADDING + 1
            more["position_ids"] = torch.arange(first, first + x.shape[1], device=x.device)[None]
        place_constants(self.embedding, x.device)
        with without_masks(), self._standing(x, begin, until):
            tokens: Tensor = self.embedding(**more, return_dict=True).last_hidden_state
        return tokens

    @contextmanager
    def _standing(self, x: Tensor, begin: int, until: int | None) -> Iterator[None]:
        """Let the library's model find other blocks: recomputed ones, none before ``begin`` or from ``until`` on."""
        plain = not begin and until is None and not any("recomputed" in vars(block) for block in self.blocks)
        if plain or self.structure.whole:
            yield
            return
        passed = self._as_block(x)
        standing = [
            _Standing(block, (lambda *_, **__: passed) if i < begin else partial(self._through, block))
            for i, block in enumerate(self.blocks[:until])
        ]
        places: list[tuple[nn.Module, str, Any]] = [(*_place(self.embedding, self.structure.lists[0]), standing)]
        if until is not None:
            places += [(*_place(self.embedding, path), nn.Identity()) for path in self.structure.norms]
        before = [getattr(holder, name) for holder, name, _ in places]
        try:
            for holder, name, other in places:
                object.__setattr__(holder, name, other)
            yield
        finally:
            for (holder, name, _), own in zip(places, before, strict=True):
                object.__setattr__(holder, name, own)

    def _through(self, block: nn.Module, x: Tensor, *given: Any, **more: Any) -> Any:
        return self._as_block(through(block, x, *given, **more))

    def _as_block(self, tokens: Tensor) -> Any:
        """Tokens as a block gives them: alone, or before what it gives besides, such as attention that nobody reads."""
        count = self.structure.tuples
        return (tokens, *[None] * (count - 1)) if count else tokens


class _Standing:
    """What a model calls in place of a block, whose attributes it finds."""

    def __init__(self, block: nn.Module, call: Callable[..., Any]):
        self.block, self.call = block, call

    def __call__(self, *given: Any, **more: Any) -> Any:
        return self.call(*given, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.block, name)


def _place(model: nn.Module, path: str) -> tuple[nn.Module, str]:
    holder, _, name = path.rpartition(".")
    return model.get_submodule(holder), name


def _without(module: nn.Module, name: str, value: Any) -> Any:
    """Take a part out of a module, whose attribute of that name is ``value`` from then on."""
    part = module._modules.pop(name, None)
    object.__setattr__(module, name, value)
    return part


def _beside(module: nn.Module, name: str) -> Any:
    """Take a part out of a module that goes on finding it."""
    part = module._modules[name]
    return _without(module, name, part)


def copy_folder(
    module: nn.Module, weights: str, cls: Any, config: Any, take_apart: Callable[[Any], nn.Module], parts: set[str]
) -> None:
    """Copy the ``parts`` of a tower from a folder, which the library's class itself reads.  Raises MethodError."""
    folder = Path(weights).expanduser()
    if not (folder / "config.json").is_file():
        raise MethodError(f"weights {weights!r}: a folder with config.json and model.safetensors is needed")
    try:
        with quiet():  # its report is told below in a line
            whole, said = cls.from_pretrained(
                folder, config=config, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True,
            )  # fmt: skip
    except Exception as error:  # the library raises many classes
        raise MethodError(f"weights {weights!r}: {one_line(error)}") from error
    unused = ("pooler.", "decoder.")
    if missing := [n for n in said["missing_keys"] if not n.startswith(unused)]:
        raise MethodError(f"weights {weights!r}: there is no tensor for {min(missing)}; is it another model's?")
    if other := [entry for entry in said["mismatched_keys"] if not entry[0].startswith(unused)]:
        name, stored_shape, shape = min(other)
        raise MethodError(f"weights {weights!r}: {name} is {tuple(stored_shape)}, and {tuple(shape)} is needed")
    stored = take_apart(whole)
    values = {**dict(stored.named_parameters()), **dict(stored.named_buffers())}
    with torch.no_grad():
        for name, value in (*module.named_parameters(), *module.named_buffers()):
            if name.partition(".")[0] in parts and is_published(name):
                value.copy_(values[name])
