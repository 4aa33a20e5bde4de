"""The text tower ``hf-causal``: any causal language model of transformers by configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgefl.errors import MethodError
from edgefl.models.model import TowerDescription
from edgefl.models.tower import initialise, options_from
from edgefl.models.towers.library_model import (
    LibraryModel,
    LibraryOptions,
    configuration,
    copy_folder,
    has_parameters,
    make_model,
    model_class,
    prepare,
    read_only,
)


class CausalOptions(LibraryOptions):
    """Fields of ``text: {tower: hf-causal}``."""

    tower: Literal["hf-causal"] = "hf-causal"

    @classmethod
    def check_kind(cls, kind: str) -> None:
        """Raise ValueError, which says what would work, for what isn't a decoder alone."""
        super().check_kind(kind)
        from transformers.models.auto import modeling_auto

        names: Any = modeling_auto
        config = read_only({"model_type": kind})
        inner = getattr(config, "text_config", None)
        if inner is not None and inner.model_type != kind:
            raise ValueError(
                f"{kind} has further modalities: take its text model alone, model_type: {inner.model_type}"
            )
        if getattr(config, "is_encoder_decoder", False):
            raise ValueError(
                f"{kind} is an encoder and a decoder that reads it: take a decoder alone, such as llama or gemma3_text"
            )
        if kind in names.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
            raise ValueError(f"{kind} is an encoder, whose tokens see those after them: take tower: hf")
        if kind not in names.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            raise ValueError(f"{kind} is no causal language model: take one, such as llama, qwen3 or gemma3_text")


class _Given:
    """Stands for the model below the scores: it gives tokens that are there already."""

    tokens: Tensor | None = None

    @property
    def decoder(self) -> _Given:
        """OPT's scores ask the decoder inside."""
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return _Answer(last_hidden_state=self.tokens)


class _Answer(SimpleNamespace):
    """What a model below the scores gives: tokens, and nothing else that it might."""

    last_hidden_state: Tensor | None

    def __getitem__(self, at: Any) -> Any:
        return self.last_hidden_state if at == 0 else ()

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Rows:
    """Scores by the rows of the embedding."""

    def __init__(self, table: nn.Module):
        self.table = table

    @property
    def weight(self) -> Tensor:
        """As of a linear layer."""
        return self.table.weight  # type: ignore[return-value]

    def __call__(self, tokens: Tensor) -> Tensor:
        if isinstance(dtype := getattr(self.table, "adapter_dtype", None), torch.dtype):
            tokens = tokens.to(dtype)
        return F.linear(tokens, self.weight)


class CausalTower(LibraryModel):
    """A decoder: each token sees those before it.  Padding comes last, so no other token sees it."""

    head: nn.Module

    def pool_tokens(self, tokens: Tensor) -> Tensor:
        """The mean of all tokens, ``[batch, width]``: the first one sees itself alone."""
        return tokens.mean(1)

    def add_scores(self, vocabulary: int) -> None:
        """Have the library's own forward pass turn tokens into scores, above a model that gives tokens as they are.

        They are read by the embedding's own rows, or by a ``head`` if the configuration unties them.  Raises
        MethodError for scores of further layers.
        """
        import transformers

        library: Any = transformers
        below: Any = self.embedding
        with torch.device("meta"):
            scores: Any = library.MODEL_FOR_CAUSAL_LM_MAPPING[type(below.config)](below.config)
        head, self.given = scores.get_output_embeddings(), _Given()
        name = next((n for n, part in scores._modules.items() if part is head), "")
        others = {n for n, part in scores._modules.items() if has_parameters(part)}
        tied = head is not None and head.weight is scores.get_input_embeddings().weight
        if others != {scores.base_model_prefix, name} or (tied and head.bias is not None):
            raise MethodError(f"scores of a {below.config.model_type} have layers that aren't known here")
        if not tied:
            self.head = nn.Linear(head.in_features, vocabulary, bias=head.bias is not None)
            initialise(self.head)
        del scores._modules[name], scores._modules[scores.base_model_prefix]
        # as plain attributes: what has parameters is the tower's own
        object.__setattr__(scores, name, _Rows(below.get_input_embeddings()) if tied else self.head)
        object.__setattr__(scores, scores.base_model_prefix, self.given)
        object.__setattr__(self, "scores", scores)

    def vocabulary_scores(self, tokens: Tensor) -> Tensor:
        """Scores of the next token: ``[batch, tokens, width] -> [batch, tokens, vocabulary]``, or of a list of tokens
        ``[tokens, width]``."""
        batch = self.given.tokens = tokens if tokens.dim() == 3 else tokens[None]
        try:
            scores: Tensor = self.scores(inputs_embeds=batch).logits  # type: ignore[operator]
        finally:
            self.given.tokens = None
        return scores if tokens.dim() == 3 else scores[0]


class HFCausal:
    """Any causal language model of transformers by configuration: Gemma 3, SmolLM3, Llama, Qwen3, Phi-4-mini, LFM2.

    ``config`` is transformers' configuration, written out or a folder's ``config.json`` (GPT-2: 124,439,808
    parameters).  Each token sees those before it, and padding, which comes last, is seen by no other token.  Scores
    equal the library's to the bit, with sliding windows, scaled embeddings and capped scores.  Those of the next token
    are read by the embedding's own rows, unless the configuration unties them; a class is read from the mean of the
    tokens.  Schedules cut the list of blocks that is called one after the other.  Blocks that differ in form (LFM2) are
    one block, which schedules of several stages refuse.  Mixtures of experts and encoder-decoders are refused.
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
        options = options_from(CausalOptions, description)
        return make_model(_config(options, description), options.tokens)

    @staticmethod
    def of_library(model: Any, description: TowerDescription, norm: bool) -> CausalTower:
        """The tower of transformers' model, which it takes apart."""
        options = options_from(CausalOptions, description)
        tower = CausalTower(model, options.structure, description.get("checkpointing", False))
        if description.get("predicts"):
            tower.add_scores(description["vocabulary"])
        return tower

    @staticmethod
    def load(module: nn.Module, weights: str, description: TowerDescription) -> None:
        """Copy the weights of a folder, read by the library itself.  Raises MethodError."""
        import transformers

        library: Any = transformers
        config = _config(options_from(CausalOptions, description), description)
        predicts = description.get("predicts", False)

        def take_apart(whole: Any) -> nn.Module:
            below = getattr(whole, whole.base_model_prefix) if predicts else whole
            tower = HFCausal.of_library(prepare(below, description["tokens"]), description, True)
            if hasattr(tower, "head"):
                tower.head.load_state_dict(whole.get_output_embeddings().state_dict())
            return tower

        cls = library.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)] if predicts else model_class(config)
        parts = {"embedding", "blocks", "norm", *(["head"] if predicts else [])}  # else a classifier, which no file has
        copy_folder(module, weights, cls, config, take_apart, parts)


def _config(options: CausalOptions, description: TowerDescription) -> Any:
    return configuration(options.fields_at(description["depth"]), vocab_size=description["vocabulary"])
