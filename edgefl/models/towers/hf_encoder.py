"""The tower ``hf``: encoders of transformers by configuration, for texts, images and audio."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

import torch
from pydantic import Field, PositiveInt, computed_field, field_validator, model_validator
from torch import Tensor, nn

from edgefl.errors import MethodError, suggestion
from edgefl.models.layers import BlockLayers
from edgefl.models.model import TowerDescription
from edgefl.models.tower import TowerFields, Weights, options_from
from edgefl.models.towers.hf_causal import (
    IRRELEVANT,
    configuration,
    known_fields,
    of_folder,
    quiet,
    read_only,
    with_dtype,
)
from edgefl.models.towers.hugging_face import VISION_BLOCK, Bert, DistilBert
from edgefl.models.towers.vision import import_torchvision

TEXTS = ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "modernbert", "siglip_text_model")
FAMILIES = MappingProxyType(
    {
        **dict.fromkeys(TEXTS, "text"),
        **dict.fromkeys(("vit", "deit", "dinov2", "siglip_vision_model"), "image"),
        **dict.fromkeys(("audio-spectrogram-transformer", "whisper"), "audio"),
    }
)
"""Model types of transformers that this tower knows, each with its modality."""
FROM_DATA = MappingProxyType({"text": ("vocab_size",), "image": ("num_channels", "image_size"), "audio": ()})
"""Fields of a configuration that the data set determines."""
OFFSET = ("roberta", "xlm-roberta", "mpnet")
"""Model types whose positions begin behind that of padding."""
PADDING = 1
"""The token of padding of these models, whose position is its number."""
NORMS = ("layernorm", "post_layernorm", "final_layer_norm", "layer_norm", "final_norm")
"""Names of a final norm, which stands beside the blocks or around what holds them."""


class HFEncoderOptions(TowerFields):
    """Fields of ``{tower: hf}``."""

    tower: Literal["hf"] = "hf"
    config: dict[str, object] = Field(
        description="the model's configuration in transformers' words, {model_type: roberta, hidden_size: 128, "
        "num_hidden_layers: 4, num_attention_heads: 4}, or a folder with its config.json; vocabulary, channels and "
        "sizes are the data's"
    )
    tokens: PositiveInt = Field(40, description="tokens of a text: shorter texts are padded, longer ones cut")
    read: Literal["first", "mean"] = Field(
        "first", description="what is read of a sample: the first token, or the mean of all tokens"
    )
    weights: Weights = Field(
        None, description="a folder with config.json and model.safetensors to start from; random if absent"
    )

    _dtype = model_validator(mode="before")(with_dtype)

    @field_validator("config", mode="before")
    @classmethod
    def _config(cls, given: Any) -> dict[str, object]:
        fields = dict(given) if isinstance(given, Mapping) else of_folder(given)
        family = str(fields.get("model_type"))
        if family in ("convnextv2", "swin"):
            raise ValueError(
                f"model_type {family}: its stages differ in width; timm has it: {{tower: timm, variant: ...}}"
            )
        if family not in FAMILIES:
            raise ValueError(f"model_type {family!r} isn't known{suggestion(family, FAMILIES)}")
        dropped = (*IRRELEVANT, *FROM_DATA[FAMILIES[family]])
        fields = {name: value for name, value in fields.items() if name not in dropped}
        known = known_fields(family)
        for name in fields:
            if name != "model_type" and name not in known:
                raise ValueError(f"{family} has no field {name!r}{suggestion(name, known)}")
        return fields

    @model_validator(mode="after")
    def _fits(self) -> HFEncoderOptions:
        config = read_only(self.config)
        if config.hidden_size % config.num_attention_heads:
            raise ValueError(f"width {config.hidden_size} can't be split over {config.num_attention_heads} heads")
        if self.modality == "text":
            most = config.max_position_embeddings - (PADDING + 1) * (self.family in OFFSET)
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
        return FAMILIES[self.family]

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


class Encoder(nn.Module):
    """A model of transformers whose blocks and final norm are parts of their own: ``[batch, tokens, width]``.

    ``embedding`` is the library's model without them; its forward pass still finds them.
    """

    def __init__(self, model: nn.Module, family: str, width: int, mean: bool):
        super().__init__()
        self.width, self.family, self.mean = width, family, mean
        _without(model, "pooler", None)
        for part in list(model.modules()):
            if isinstance(part._modules.get("head"), nn.Linear):  # of SigLIP's text tower
                _without(part, "head", torch.nn.Identity())
        for part in model.modules():
            _computed_positions(part)
        if isinstance(rotary := model._modules.get("rotary_emb"), nn.Module):
            _without(model, "rotary_emb", Rotary(type(rotary), rotary.config))
        path = min((n for n, m in model.named_modules() if isinstance(m, nn.ModuleList)), key=lambda n: n.count("."))
        holder, _, name = path.rpartition(".")
        self.embedding = model
        self.blocks = _beside(model.get_submodule(holder), name)
        parts = holder.split(".")
        for depth in range(len(parts) + 1):
            place = model.get_submodule(".".join(parts[:depth]))
            for norm in NORMS:
                if norm in place._modules:
                    self.norm = _beside(place, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Encode texts ``[batch, tokens]``, images ``[batch, channels, size, size]`` or spectrograms
        ``[batch, frames, bins]``; texts attend to padding, as in all towers."""
        given: dict[str, Tensor] = {"text": {"input_ids": x}, "image": {"pixel_values": x}}.get(
            FAMILIES[self.family], {"input_values": x}
        )
        if self.family == "whisper":
            given = {"input_features": x.transpose(1, 2)}
        if self.family in OFFSET:
            first = PADDING + 1
            given["position_ids"] = torch.arange(first, first + x.shape[1], device=x.device)[None]
        tokens: Tensor = self.embedding(**given, return_dict=True).last_hidden_state
        return tokens

    def pool_tokens(self, tokens: Tensor) -> Tensor:
        """The first token, or the mean of all: ``[batch, width]``."""
        return tokens.mean(1) if self.mean else tokens[:, 0]


class Rotary:
    """The library's table of rotary positions, computed in each forward pass: it depends on the configuration alone."""

    def __init__(self, made: Any, config: Any):
        self.made, self.config = made, config

    def __call__(self, x: Tensor, *given: Any) -> Any:
        """As the library's module: cosines and sines."""
        with torch.device(x.device):
            return self.made(self.config)(x, *given)


def _without(module: nn.Module, name: str, value: Any) -> Any:
    """Take a part out of a module, whose attribute of that name is ``value`` from then on."""
    part = module._modules.pop(name, None)
    object.__setattr__(module, name, value)
    return part


def _beside(module: nn.Module, name: str) -> Any:
    """Take a part out of a module that goes on finding it."""
    part = module._modules[name]
    return _without(module, name, part)


def _computed_positions(part: nn.Module) -> None:
    """Make a module compute its constant tables of integers, which are neither trained nor sent."""
    tables = {"position_ids": torch.arange, "token_type_ids": torch.zeros}
    names = [name for name in tables if name in part._buffers]
    if not names:
        return
    found: dict[str, object] = {}
    for name in names:
        buffer = part._buffers.pop(name)
        assert buffer is not None
        found[name] = _property(tables[name], buffer.shape[-1])
    # properties need a class of this part's own; tried with transformers 5.23, whose embeddings read both tables
    part.__class__ = type(type(part).__name__, (type(part),), found)


def _property(make: Any, length: int) -> property:
    return property(lambda self: make(length, dtype=torch.int64, device=next(self.parameters()).device)[None])


BLOCK: BlockLayers = {
    **Bert.block_layers,
    **DistilBert.block_layers,
    **VISION_BLOCK,
    # MPNet
    "attention.attn.q": ("query",),
    "attention.attn.k": ("key",),
    "attention.attn.v": ("value",),
    "attention.attn.o": ("proj",),
    "attention.LayerNorm": ("post-norm1",),
    # ModernBERT, whose MLP has a gate
    "attn.Wqkv": ("query", "key", "value"),
    "attn.Wo": ("proj",),
    "attn_norm": ("norm1",),
    "mlp_norm": ("norm2",),
    # SigLIP, Whisper, DINOv2
    "self_attn.q_proj": ("query",),
    "self_attn.k_proj": ("key",),
    "self_attn.v_proj": ("value",),
    "self_attn.out_proj": ("proj",),
    "fc1": ("fc1",),
    "fc2": ("fc2",),
    "layer_norm1": ("norm1",),
    "layer_norm2": ("norm2",),
    "self_attn_layer_norm": ("norm1",),
    "final_layer_norm": ("norm2",),
    "norm1": ("norm1",),
    "norm2": ("norm2",),
}
"""Layers of a block of any of these models."""


class HFEncoder:
    """Encoders of transformers by configuration: BERT, RoBERTa, MPNet, ModernBERT, ViT, DINOv2, SigLIP, AST, Whisper.

    ``config`` is transformers' configuration, written out or a folder's ``config.json`` (RoBERTa: 108,893,184
    parameters).  Poolers and heads are left out; what comes before the blocks is the embedding, with MPNet's table of
    relative positions.  ``pool_tokens`` says what is read of a sample: the first token, or the mean of all, which fits
    SigLIP and Whisper.  ``weights`` is a folder that the library itself reads.  Outputs equal the library's (to 1e-6).
    It has no gradient checkpointing, and ``frozen-prefix`` needs ``keep: false`` with it.  Whisper's table of positions
    is trained, unlike the library's.
    """

    Options = HFEncoderOptions
    block_layers = BLOCK

    @staticmethod
    def build(description: TowerDescription, norm: bool) -> Encoder:
        """Build a tower from ``{depth, ...options, ...data}``; it has its own norm, if any.

        Raises MethodError if the library refuses the sizes of the data, or for checkpointing.
        """
        if description.get("checkpointing"):
            raise MethodError("tower hf can't recompute its activations: set training.checkpointing: false")
        return HFEncoder.of_library(HFEncoder.library(description), description, norm)

    @staticmethod
    def library(description: TowerDescription) -> nn.Module:
        """transformers' own model; of Whisper the encoder."""
        return _model(options_from(HFEncoderOptions, description), description)

    @staticmethod
    def of_library(model: nn.Module, description: TowerDescription, norm: bool) -> Encoder:
        """The tower of transformers' model, which it takes apart."""
        options = options_from(HFEncoderOptions, description)
        return Encoder(model, options.family, options.width, options.read == "mean")

    @staticmethod
    def load(module: nn.Module, weights: str, description: TowerDescription) -> None:
        """Copy the weights of a folder, read by the library itself.  Raises MethodError."""
        options = options_from(HFEncoderOptions, description)
        folder = Path(weights).expanduser()
        if not (folder / "config.json").is_file():
            raise MethodError(f"weights {weights!r}: a folder with config.json and model.safetensors is needed")
        made: Any = _model(options, description, empty=True)
        try:
            with quiet():  # its report is told below in a line
                whole, said = type(made).from_pretrained(
                    folder, config=made.config, local_files_only=True, output_loading_info=True,
                    ignore_mismatched_sizes=True,
                )  # fmt: skip
        except Exception as error:  # the library raises many classes
            raise MethodError(f"weights {weights!r}: {' '.join(str(error).split())[:200]}") from error
        unused = ("pooler.", "decoder.")
        if missing := [n for n in said["missing_keys"] if not n.startswith(unused)]:
            raise MethodError(f"weights {weights!r}: there is no tensor for {min(missing)}; is it another model's?")
        if other := [entry for entry in said["mismatched_keys"] if not entry[0].startswith(unused)]:
            name, stored_shape, shape = min(other)
            raise MethodError(f"weights {weights!r}: {name} is {tuple(stored_shape)}, and {tuple(shape)} is needed")
        stored = Encoder(_encoder(whole, options.family), options.family, options.width, False)
        values = {**dict(stored.named_parameters()), **dict(stored.named_buffers())}
        with torch.no_grad():
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                if name.partition(".")[0] in ("embedding", "blocks", "norm") and ".lora_" not in name:
                    value.copy_(values[name])


def _config(options: HFEncoderOptions, description: TowerDescription) -> Any:
    data = {
        "vocab_size": description.get("vocabulary"), "num_channels": description.get("channels"),
        "image_size": description.get("size"),
    }  # fmt: skip
    more: dict[str, object] = {name: data[name] for name in FROM_DATA[options.modality]}
    if options.modality == "audio":
        bins, frames = description["bins"], description["frames"]
        more = {"num_mel_bins": bins, "max_length": frames}
        if options.family == "whisper":
            if frames % 2:
                raise MethodError(f"whisper halves the frames, and {frames} are odd: set an even data.audio length")
            more = {"num_mel_bins": bins, "max_source_positions": frames // 2}
    more |= {
        "num_hidden_layers": description["depth"],
        "attn_implementation": "eager" if options.family == "mpnet" else "sdpa",
    }
    if options.family in OFFSET:
        more["pad_token_id"] = PADDING
    if "layer_types" in options.config:
        more["layer_types"] = cast(list[str], options.config["layer_types"])[: description["depth"]]
    if options.family == "siglip_vision_model":
        more["vision_use_head"] = False
    try:
        return configuration({n: v for n, v in options.config.items() if n not in more}, **more)
    except ValueError as error:
        raise MethodError(str(error)) from error


def _model(options: HFEncoderOptions, description: TowerDescription, *, empty: bool = False) -> nn.Module:
    """The library's encoder; with ``empty`` on the meta device, whole."""
    import_torchvision()
    import transformers

    library: Any = transformers
    config = _config(options, description)
    if options.modality == "image" and description["size"] % config.patch_size:
        raise MethodError(
            f"a {options.family}'s patch of {config.patch_size} doesn't divide images of {description['size']} pixels"
        )
    named = {"siglip_text_model": "SiglipTextModel", "whisper": "WhisperModel"}.get(options.family)
    if options.family == "whisper":
        config.decoder_layers, config.vocab_size = 1, 8
        config.pad_token_id = config.decoder_start_token_id = 0
    try:
        with torch.device("meta") if empty else torch.device(torch.get_default_device()):
            model = getattr(library, named)(config) if named else library.AutoModel.from_config(config)
    except Exception as error:  # each model refuses in its own way
        raise MethodError(f"a {options.family} can't be built: {' '.join(str(error).split())[:200]}") from error
    return model if empty else _encoder(model, options.family)


def _encoder(model: nn.Module, family: str) -> nn.Module:
    return model.get_submodule("encoder") if family == "whisper" else model
