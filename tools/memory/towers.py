"""Encoders written by hand in torch, timm, torchvision and transformers, as their papers and libraries describe them.

Every tower has what is before the first block, ``blocks`` and ``norm`` (None without one), and turns an input batch
into tokens ``[batch, tokens, width]``.  Parameters are in the order of the forward pass: an optimizer's for-loop holds
temporaries of two neighbours at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from memory.drawing import NETS

Json = dict[str, Any]


class Tower(nn.Module):
    """Embedding, blocks and norm; ``recompute`` of the first blocks drop their activations."""

    norm: nn.Module | None
    blocks: Any
    width: int
    projection: nn.Module | None
    recompute = 0

    def embed(self, x: Tensor) -> Tensor:
        """Tokens that the first block receives."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Tokens after the last block and the norm."""
        x = self.embed(x)
        more = self.beside(x)
        for place, block in enumerate(self.blocks):
            x = apply(block, x, place < self.recompute, **more)
        return x if self.norm is None else self.norm(x)

    def beside(self, tokens: Tensor) -> Json:
        """Further arguments of every block."""
        return {}

    def pool(self, tokens: Tensor) -> Tensor:
        """One feature for each sample: the first token."""
        return tokens[:, 0]

    def early(self) -> Iterator[nn.Parameter]:
        """Parameters before the first block, and those that no loss reaches."""
        late = [part for part in (self.blocks, self.norm, self.projection) if part is not None]
        later = {id(p) for part in late for p in part.parameters()}
        return (p for p in self.parameters() if id(p) not in later)


def _first(block: nn.Module, x: Any, **more: Any) -> Any:
    out = block(x, **more)
    return out[0] if isinstance(out, tuple) else out


def apply(block: nn.Module, x: Any, recompute: bool, **more: Any) -> Any:
    """A block's tokens, recomputed in the backward pass if asked for."""
    if recompute and torch.is_grad_enabled():
        return checkpoint(_first, block, x, use_reentrant=False, **more)
    return _first(block, x, **more)


def rates(last: float, blocks: int, depth: int) -> list[float]:
    """Probabilities with which stochastic depth leaves out each block, rising to ``last`` at the last of ``blocks``."""
    return [last * i / (blocks - 1) if blocks > 1 else 0.0 for i in range(depth)]


# transformers -----------------------------------------------------------------------------------------------------


class Drop(nn.Module):
    """Stochastic depth: a branch's output, zero for dropped samples."""

    def __init__(self, probability: float):
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, tokens, width]`` to the same shape."""
        if not self.training:
            return x
        mask = x.new_empty((len(x), 1, 1)).bernoulli_(1 - self.probability)
        return x * mask / (1 - self.probability)


def _blocks(options: Json, depth: int) -> nn.ModuleList:
    """timm's blocks, with norms before attention and MLP (Dosovitskiy et al. 2021)."""
    from timm.models.vision_transformer import Block

    blocks: Any = nn.ModuleList(
        Block(options["width"], options["heads"], options["mlp_ratio"], qkv_bias=True) for _ in range(depth)
    )
    for block, probability in zip(blocks, rates(options["drop_path"], options["blocks"], depth), strict=True):
        if probability:
            block.drop_path1, block.drop_path2 = Drop(probability), Drop(probability)
    return blocks


class Vit(Tower):
    """A vision transformer: patches by a strided convolution, a class token, learned positions."""

    def __init__(self, options: Json, shape: Json, depth: int, norm: bool):
        super().__init__()
        self.width, patch = options["width"], options["patch"]
        self.patches = nn.Conv2d(shape["channels"], self.width, patch, stride=patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, self.width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + (shape["size"] // patch) ** 2, self.width))
        self.blocks = _blocks(options, depth)
        self.norm = nn.LayerNorm(self.width, eps=1e-6) if norm else None

    def embed(self, x: Tensor) -> Tensor:
        """Class token and patches, with positions."""
        patches = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([self.cls.expand(len(x), -1, -1), patches], dim=1) + self.positions


class TextTransformer(Tower):
    """BERT's embedding (word, position and token type, normalised) before the blocks of a ViT."""

    def __init__(self, options: Json, shape: Json, depth: int, norm: bool):
        super().__init__()
        self.width = options["width"]
        self.word = nn.Embedding(shape["vocabulary"], self.width)
        self.position = nn.Embedding(options["tokens"], self.width)
        self.kind = nn.Embedding(2, self.width)
        self.embedding_norm = nn.LayerNorm(self.width, eps=1e-12)
        self.blocks = _blocks(options, depth)
        self.norm = nn.LayerNorm(self.width, eps=1e-6) if norm else None

    def embed(self, x: Tensor) -> Tensor:
        """Sum of three embeddings, normalised; all tokens have type 0."""
        tokens = self.word(x) + self.position.weight[: x.shape[1]] + self.kind.weight[0]
        return self.embedding_norm(tokens)


class TimmVit(Tower):
    """timm's own vision transformer."""

    def __init__(self, options: Json, shape: Json, depth: int, norm: bool):
        super().__init__()
        import timm
        from timm.layers import DropPath

        self.width = options["width"]
        self.model: Any = timm.create_model(
            f"vit_{options['variant']}_patch16_224", num_classes=0, img_size=shape["size"], in_chans=shape["channels"],
            patch_size=options["patch"], depth=depth, embed_dim=self.width, num_heads=options["heads"],
            mlp_ratio=options["mlp_ratio"],
        )  # fmt: skip
        for block, drop in zip(self.model.blocks, rates(options["drop_path"], options["blocks"], depth), strict=True):
            if drop:
                block.drop_path1, block.drop_path2 = DropPath(drop), DropPath(drop)
        if not norm:
            self.model.norm = nn.Identity()
        self.norm, self.blocks = self.model.norm, self.model.blocks

    def embed(self, x: Tensor) -> Tensor:
        """timm's patches, class token and positions."""
        return self.model.norm_pre(self.model._pos_embed(self.model.patch_embed(x)))


def _settings(options: Json, depth: int) -> Json:
    """Fields that several configurations of transformers have in common."""
    return {
        "hidden_size": options["width"], "num_hidden_layers": depth, "num_attention_heads": options["heads"],
        "intermediate_size": int(options["width"] * options["mlp_ratio"]),
        "hidden_dropout_prob": options["dropout"], "attention_probs_dropout_prob": options["dropout"],
        "attn_implementation": "sdpa",
    }  # fmt: skip


class HuggingFaceVision(Tower):
    """transformers' ViT or AST: its embeddings, layers and final norm, and perhaps a pooler that nothing reads."""

    def __init__(self, options: Json, shape: Json, depth: int, norm: bool):
        super().__init__()
        from transformers import ASTConfig, ASTModel, ViTConfig, ViTModel

        self.width = options["width"]
        model: Any
        if options["tower"] == "ast":
            model = ASTModel(ASTConfig(
                **_settings(options, depth), patch_size=options["patch"], frequency_stride=options["stride"],
                time_stride=options["stride"], max_length=shape["frames"], num_mel_bins=shape["bins"],
            ))  # fmt: skip
        else:
            model = ViTModel(
                ViTConfig(
                    **_settings(options, depth), image_size=shape["size"], patch_size=options["patch"],
                    num_channels=shape["channels"],
                ),
                add_pooling_layer=options["pooler"],
            )  # fmt: skip
        self.embedding = model.embeddings
        self.blocks = model.layers if hasattr(model, "layers") else model.encoder.layer
        self.norm = model.layernorm if norm else None
        if options.get("pooler"):
            self.pooler = model.pooler

    def embed(self, x: Tensor) -> Tensor:
        """The library's embeddings."""
        return self.embedding(x)


class Bert(Tower):
    """transformers' BERT without its pooler."""

    def __init__(self, options: Json, shape: Json, depth: int, norm: bool):
        super().__init__()
        from transformers import BertConfig, BertModel

        self.width, self.mean, self.norm = options["width"], options["read"] == "mean", None
        config = BertConfig(
            **_settings(options, depth), vocab_size=shape["vocabulary"], type_vocab_size=2,
            max_position_embeddings=options["positions"],
        )  # fmt: skip
        model: Any = BertModel(config, add_pooling_layer=False)
        self.embedding, self.blocks = model.embeddings, model.encoder.layer
        for name in ("position_ids", "token_type_ids"):
            self.embedding._buffers.pop(name, None)

    def embed(self, x: Tensor) -> Tensor:
        """The library's embeddings, of token type 0."""
        positions = torch.arange(x.shape[1])[None]
        types = torch.zeros_like(positions).expand(x.shape)
        return self.embedding(x, token_type_ids=types, position_ids=positions)

    def pool(self, tokens: Tensor) -> Tensor:
        """The first token, or the mean of all."""
        return tokens.mean(1) if self.mean else tokens[:, 0]


class DistilBert(Tower):
    """transformers' DistilBERT."""

    def __init__(self, options: Json, shape: Json, depth: int, norm: bool):
        super().__init__()
        from transformers import DistilBertConfig, DistilBertModel

        self.width, self.norm, self.keeps = options["width"], None, options["position_ids"]
        model: Any = DistilBertModel(DistilBertConfig(
            vocab_size=shape["vocabulary"], max_position_embeddings=options["positions"], dim=self.width,
            n_layers=depth, n_heads=options["heads"], hidden_dim=int(self.width * options["mlp_ratio"]),
            dropout=options["dropout"], attention_dropout=options["dropout"], attn_implementation="sdpa",
        ))  # fmt: skip
        self.embedding, self.blocks = model.embeddings, model.transformer.layer
        self.embedding._buffers.pop("position_ids", None)
        if self.keeps:
            self.embedding.register_buffer("position_ids", torch.arange(options["positions"])[None])

    def embed(self, x: Tensor) -> Tensor:
        """The library's embeddings; positions are a buffer or counted anew."""
        length = x.shape[1]
        positions = self.embedding.position_ids[:, :length] if self.keeps else torch.arange(length)[None]
        return self.embedding(x, position_ids=positions)


class Decoder(Tower):
    """A causal decoder of transformers: its embeddings, layers and final norm.

    Rotary positions (Su et al. 2021) are computed in every forward pass.
    """

    def __init__(self, options: Json, shape: Json, depth: int, norm: bool):
        super().__init__()
        import transformers

        given = dict(options["config"])
        name = {"gpt2": "GPT2"}.get(given["model_type"], given.pop("model_type").capitalize())
        given.pop("model_type", None)
        config = getattr(transformers, f"{name}Config")(
            **given, vocab_size=shape["vocabulary"], attn_implementation="sdpa",
            bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )  # fmt: skip
        config.num_hidden_layers = depth
        model: Any = getattr(transformers, f"{name}Model")(config)
        self.width, self.tied, self.turned = config.hidden_size, config.tie_word_embeddings, name != "GPT2"
        if self.turned:
            self.word, self.blocks, self.norm = model.embed_tokens, model.layers, model.norm
            self.each = config.hidden_size // config.num_attention_heads
        else:
            self.word, self.position, self.drop = model.wte, model.wpe, model.drop
            self.blocks, self.norm = model.h, model.ln_f

    def embed(self, x: Tensor) -> Tensor:
        """Word vectors, GPT-2's with learned positions."""
        if self.turned:
            return self.word(x)
        return self.drop(self.word(x) + self.position(torch.arange(x.shape[1])[None]))

    def beside(self, tokens: Tensor) -> Json:
        """Cosines and sines ``[1, tokens, width of a head]`` by which queries and keys are turned."""
        if not self.turned:
            return {}
        speed = 1 / 10000.0 ** (torch.arange(0, self.each, 2) / self.each)
        angles = torch.cat([torch.arange(tokens.shape[1])[:, None] * speed] * 2, 1)[None]
        return {"position_embeddings": (angles.cos().to(tokens.dtype), angles.sin().to(tokens.dtype))}


# others -----------------------------------------------------------------------------------------------------------


class ResNet(Tower):
    """torchvision's ResNet, whose blocks are its stages; without those above ``depth``."""

    def __init__(self, options: Json, shape: Json, depth: int, norm: bool):
        super().__init__()
        from torchvision.models import resnet

        counts = {18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3]}[options["layers"]]
        kind = resnet.BasicBlock if options["layers"] < 50 else resnet.Bottleneck

        class Cut(resnet.ResNet):
            made = 0

            def _make_layer(self, *args: Any, **kwargs: Any) -> nn.Sequential:
                self.made += 1
                return super()._make_layer(*args, **kwargs) if self.made <= depth else nn.Sequential()

        net = Cut(kind, counts, num_classes=1)
        small = options["stem"] == "small"
        if small or shape["channels"] != 3:
            side, stride = (3, 1) if small else (7, 2)
            net.conv1 = nn.Conv2d(shape["channels"], 64, side, stride, side // 2, bias=False)
        self.stem = nn.Sequential(net.conv1, net.bn1, net.relu, *([] if small else [net.maxpool]))
        self.blocks = nn.ModuleList([net.layer1, net.layer2, net.layer3, net.layer4][:depth])
        self.norm, self.width = None, 512 * kind.expansion

    def embed(self, x: Tensor) -> Tensor:
        """Feature maps of the first convolution."""
        return self.stem(x)

    def forward(self, x: Tensor) -> Tensor:
        """Positions of the last maps as tokens ``[batch, positions, channels]``."""
        return super().forward(x).flatten(2).transpose(1, 2)

    def pool(self, tokens: Tensor) -> Tensor:
        """Mean over positions, with zeros for the channels of missing stages."""
        pooled = tokens.mean(1)
        missing = self.width - pooled.shape[1]
        return F.pad(pooled, (0, missing)) if missing else pooled


class Gru(Tower):
    """Word vectors and bidirectional GRU layers."""

    def __init__(self, options: Json, shape: Json, depth: int, norm: bool):
        super().__init__()
        hidden, self.pooling = options["hidden"], options["pooling"]
        self.width, self.norm = 2 * hidden, None
        self.word = nn.Embedding(shape["vocabulary"], options["embedding"])
        widths = [options["embedding"]] + [self.width] * (depth - 1)
        self.blocks = nn.ModuleList(nn.GRU(w, hidden, batch_first=True, bidirectional=True) for w in widths)

    def embed(self, x: Tensor) -> Tensor:
        """Word vectors."""
        return self.word(x)

    def pool(self, tokens: Tensor) -> Tensor:
        """Mean or maximum of all states, or the last state of each direction."""
        if self.pooling == "mean":
            return tokens.mean(1)
        if self.pooling == "max":
            return tokens.amax(1)
        half = self.width // 2
        return torch.cat([tokens[:, -1, :half], tokens[:, 0, half:]], dim=-1)


class Net(Tower):
    """A net of timm without its classifier; of ``depth`` stages, the positions of whose maps are averaged."""

    def __init__(self, options: Json, shape: Json, depth: int, norm: bool):
        super().__init__()
        import timm

        given = {"num_classes": 0, "in_chans": shape["channels"]}
        self.whole = depth == NETS[options["variant"]]
        with nullcontext() if self.whole else torch.device("meta"):  # later stages are never in memory
            try:
                net: Any = timm.create_model(options["variant"], img_size=shape["size"], **given)
            except TypeError:  # a net of any size
                net = timm.create_model(options["variant"], **given)
        self.width, self.norm = getattr(net, "head_hidden_size", None) or net.num_features, None
        self.net = net
        name = "stages" if hasattr(net, "stages") else "blocks"
        if NETS[options["variant"]] == 1:
            self.blocks = nn.ModuleList([net])
            self.after: list[nn.Module] = []
            return
        names = list(net._modules)
        later = names[names.index(name) + 1 :]
        setattr(net, name, getattr(net, name)[:depth])
        self.blocks = getattr(net, name)
        if not self.whole:
            for each in later:
                setattr(net, each, nn.Identity())
            net.to_empty(device="cpu")
            for tensor in (*net.parameters(), *net.buffers()):
                tensor.data.zero_()
        self.after = [part for each in later if (part := getattr(net, each)) is not None]

    def early(self) -> Iterator[nn.Parameter]:
        """Parameters before the first stage."""
        later = {id(p) for part in (self.blocks, *self.after) for p in part.parameters()}
        return (p for p in self.net.parameters() if id(p) not in later)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, width]``."""
        if self.whole:
            return self.net(x)
        maps = self.net.forward_features(x)
        pooled = maps.mean((1, 2) if getattr(self.net, "output_fmt", "NCHW") == "NHWC" else (2, 3))
        return F.pad(pooled, (0, self.width - pooled.shape[1]))

    def pool(self, tokens: Tensor) -> Tensor:
        """What the net gives."""
        return tokens


TOWERS: dict[str, type[Tower]] = {
    "vit": Vit, "transformer": TextTransformer, "timm-vit": TimmVit, "hf-vit": HuggingFaceVision,
    "ast": HuggingFaceVision, "bert": Bert, "distilbert": DistilBert, "resnet": ResNet, "gru": Gru,
    "timm": Net, "hf-causal": Decoder,
}  # fmt: skip
