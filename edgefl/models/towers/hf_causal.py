"""The text tower ``hf-causal``: decoders of transformers by configuration (GPT-2, Llama, Phi, Qwen2 and their kin)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from pydantic import Field, PositiveInt, computed_field, field_validator, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.errors import MethodError, suggestion
from edgefl.models.model import Dtype, TowerDescription
from edgefl.models.tower import Tower, TowerFields, Weights, initialise, options_from, through
from edgefl.models.towers.vision import import_torchvision
from edgefl.models.weights import PARTS, PRETRAINED, Spelling, fill, locate
from edgefl.registry.part_fields import path_beside

ARCHITECTURES = ("gpt2", "llama", "mistral", "phi", "qwen2", "qwen3")
"""Model types whose parts this tower knows.  SmolLM2 is a Llama; phi are Phi-1, Phi-1.5 and Phi-2."""
IRRELEVANT = (
    "architectures", "bos_token_id", "dtype", "eos_token_id", "layer_types", "max_window_layers", "pad_token_id",
    "torch_dtype", "transformers_version", "use_cache", "vocab_size", "_name_or_path",
)  # fmt: skip
"""Fields of a published config.json that don't change the model here; the vocabulary is the data's."""
SPELLING: Spelling = (
    (r"^(transformer|model)\.", ""),
    (r"^wte\.", "embedding.tokens."),
    (r"^wpe\.", "embedding.positions."),
    (r"^embed_tokens\.", "embedding."),
    (r"^(h|layers)\.", "blocks."),
    (r"^(ln_f|final_layernorm)\.", "norm."),
    (r"^lm_head\.", "head."),
)
"""Maps the tensor names of transformers' decoders to the tower's names."""


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


class CausalOptions(TowerFields):
    """Fields of ``text: {tower: hf-causal}``."""

    tower: Literal["hf-causal"] = "hf-causal"
    config: dict[str, object] = Field(
        description="the model's configuration in transformers' words, {model_type: gpt2, n_embd: 128, n_layer: 4, "
        "n_head: 4}, or a folder with its config.json; vocab_size is the data's"
    )
    tokens: PositiveInt = Field(40, description="tokens of a text: shorter texts are padded, longer ones cut")
    weights: Weights = Field(
        None,
        description="weights to start from: a folder with model.safetensors or a .safetensors file; random if absent",
    )

    _dtype = model_validator(mode="before")(with_dtype)

    @field_validator("config", mode="before")
    @classmethod
    def _config(cls, given: Any) -> dict[str, object]:
        """The configuration's own fields.  Raises ValueError for a folder without one, or an unknown field."""
        fields = dict(given) if isinstance(given, Mapping) else of_folder(given)
        kind = fields.get("model_type")
        if kind not in ARCHITECTURES:
            raise ValueError(f"model_type {kind!r} isn't known{suggestion(str(kind), ARCHITECTURES)}")
        fields = {name: value for name, value in fields.items() if name not in IRRELEVANT}
        known = known_fields(kind)
        for name in fields:
            if name != "model_type" and name not in known:
                raise ValueError(f"{kind} has no field {name!r}{suggestion(name, known)}")
        return fields

    @model_validator(mode="after")
    def _fits(self) -> CausalOptions:
        config = read_only(self.config)
        if self.tokens > config.max_position_embeddings:
            raise ValueError(f"{self.tokens} tokens don't fit into {config.max_position_embeddings} positions")
        window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
        if window is not None and self.tokens > window:
            raise ValueError(f"{self.tokens} tokens exceed sliding_window: {window}, which this tower doesn't apply")
        if config.hidden_size % config.num_attention_heads and not getattr(config, "head_dim", None):
            raise ValueError(f"width {config.hidden_size} can't be split over {config.num_attention_heads} heads")
        if config.model_type == "phi" and (config.tie_word_embeddings or config.embd_pdrop):
            raise ValueError("phi is known with its own head and embd_pdrop: 0 only")
        return self

    @computed_field(description="transformer blocks at full depth")  # type: ignore[prop-decorator]
    @property
    def blocks(self) -> int:
        """The configuration's number of blocks."""
        return int(read_only(self.config).num_hidden_layers)

    @computed_field(description="dimension of a token")  # type: ignore[prop-decorator]
    @property
    def width(self) -> int:
        """The configuration's width."""
        return int(read_only(self.config).hidden_size)


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
    return [*config.to_dict(), *config.attribute_map, "rope_theta", "rope_scaling", *rotary]


def configuration(fields: Mapping[str, object], **more: Any) -> Any:
    """The library's configuration.  Raises ValueError if it refuses a value."""
    import_torchvision()
    from transformers import AutoConfig

    given = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **fields, **more}
    try:
        return AutoConfig.for_model(given.pop("model_type"), **given)
    except Exception as error:  # the library raises many classes
        said = " ".join(str(error).split())
        raise ValueError(f"transformers refuses this configuration: {said[:200]}") from error


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


class TokensAndPositions(nn.Module):
    """GPT-2's embedding: token ids ``[batch, tokens]`` to ``[batch, tokens, width]``."""

    def __init__(self, tokens: nn.Module, positions: nn.Module, dropout: nn.Module):
        super().__init__()
        self.tokens, self.positions, self.dropout = tokens, positions, dropout

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both tables' rows."""
        places = torch.arange(x.shape[1], device=x.device)[None]
        embedded: Tensor = self.dropout(self.tokens(x) + self.positions(places))
        return embedded


class CausalTower(Tower):
    """A decoder: each token sees those before it.  Padding comes last, so no other token sees it.

    Rotary positions are computed in each forward pass: they depend on the configuration alone.
    """

    rotary: Any = None
    head: nn.Module

    def run(self, x: Tensor, begin: int = 0, until: int | None = None) -> Tensor:
        """As every tower's."""
        hidden, more = x if begin else self.embed(x), {}
        if self.rotary is not None:
            with torch.device(x.device):
                positions = torch.arange(x.shape[1])[None]
                more["position_embeddings"] = self.rotary()(hidden, positions)
        for block in self.blocks[begin:until]:
            hidden = through(block, hidden, **more)
        return hidden

    def pool_tokens(self, tokens: Tensor) -> Tensor:
        """The mean of all tokens, ``[batch, width]``: the first one sees itself alone."""
        return tokens.mean(1)

    def vocabulary_scores(self, tokens: Tensor) -> Tensor:
        """Scores of the next token: ``[batch, tokens, width] -> [batch, tokens, vocabulary]``.

        The embedding's own rows, unless the configuration unties them.
        """
        if hasattr(self, "head"):
            return self.head(tokens)  # type: ignore[no-any-return]
        table = self.embedding.tokens if isinstance(self.embedding, TokensAndPositions) else self.embedding
        if isinstance(dtype := getattr(table, "adapter_dtype", None), torch.dtype):
            tokens = tokens.to(dtype)
        return F.linear(tokens, table.weight)  # type: ignore[arg-type]


class HFCausal:
    """Decoders of transformers by configuration: GPT-2, Llama (SmolLM2 too), Mistral, Phi, Qwen2 and Qwen3.

    ``config`` is transformers' configuration, written out or a folder's ``config.json`` (GPT-2: 124,439,808
    parameters).  Each token sees those before it, and padding, which comes last, is seen by no other token.  Scores
    equal the library's to the bit.  Those of the next token are read by the embedding's own rows, unless
    ``tie_word_embeddings: false`` gives them a head, Phi's with biases; a class is read from the mean of the tokens.
    """

    modality = "text"
    causal = True
    Options = CausalOptions

    @staticmethod
    def build(description: TowerDescription, norm: bool) -> CausalTower:
        """Build a tower from ``{vocabulary, depth, ...options}``; it always has its own norm."""
        return HFCausal.of_library(HFCausal.library(description), description, norm)

    @staticmethod
    def library(description: TowerDescription) -> Any:
        """transformers' own model, without scores of the vocabulary.

        Raises MethodError if the library refuses a value only now, such as a rope_theta that is a list.
        """
        config = configuration(
            options_from(CausalOptions, description).config,
            vocab_size=description["vocabulary"],
            num_hidden_layers=description["depth"],
            attn_implementation="sdpa",
        )
        import transformers

        library: Any = transformers
        try:
            return library.AutoModel.from_config(config)
        except Exception as error:  # the library raises many classes
            said = " ".join(str(error).split())
            raise MethodError(f"transformers can't build a model of this configuration: {said[:200]}") from error

    @staticmethod
    def of_library(model: Any, description: TowerDescription, norm: bool) -> CausalTower:
        """The tower of transformers' model."""
        config = model.config
        if hasattr(model, "wte"):
            embedding = TokensAndPositions(model.wte, model.wpe, model.drop)
            parts, final, rotary = model.h, model.ln_f, None
        else:
            embedding, parts = model.embed_tokens, model.layers
            final = model.final_layernorm if config.model_type == "phi" else model.norm
            rotary = partial(cast(Callable[[Any], Any], type(model.rotary_emb)), config)
        tower = CausalTower(embedding, parts, final, config.hidden_size, description.get("checkpointing", False))
        tower.rotary = rotary
        if description.get("predicts") and not config.tie_word_embeddings:
            tower.head = nn.Linear(config.hidden_size, description["vocabulary"], bias=config.model_type == "phi")
            initialise(tower.head)
        return tower

    @staticmethod
    def load(module: nn.Module, weights: str, description: TowerDescription) -> None:
        """Load the tower's weights from a file with transformers' tensor names.  A configuration names no repository:
        raises MethodError for ``pretrained``."""
        if weights == PRETRAINED:
            raise MethodError("weights 'pretrained': a configuration names no published file; give a folder instead")
        scores = ("head",) if description.get("predicts") else ()  # else a classifier, which no file has
        fill(module, locate(weights, ""), SPELLING, parts=(*PARTS, *scores))
