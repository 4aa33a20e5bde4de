"""The models whose memory ``gpu_check.py`` predicts and measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu.results import Json


@dataclass(frozen=True)
class Model:
    """A client whose memory is predicted and measured, in a scenario of declared data; ``kind`` is the client's."""

    name: str
    kind: str
    model: Json
    training: Json
    size: int = 224
    vocabulary: int = 30522
    method: Any = "fedavg"
    schedule: Any = "end-to-end"
    tasks: Json | None = None
    others: tuple[str, ...] = ()
    public: int = 0

    def scenario(self, device: str) -> Json:
        """The scenario; each client has four batches."""
        shapes = {
            "image": {"size": self.size, "classes": 10},
            "text": {"vocabulary": self.vocabulary, "classes": 10},
            "audio": {"bins": 128, "frames": 1024, "classes": 10},
            "motion": {"channels": 9, "readings": 128, "classes": 6},
        }
        data: Json = {
            "source": "declared",
            "clients": dict.fromkeys((self.kind, *self.others), 1),
            "samples": 4 * self.training["batch"],
            "public": self.public,
            "shapes": shapes,
            "tasks": self.tasks or {},
        }
        schedule = {"name": self.schedule} if isinstance(self.schedule, str) else self.schedule
        return {
            "edgefl": 1,
            "name": "gpu-check",
            "data": data,
            "model": self.model,
            "method": self.method,
            "schedule": {"rounds": 6, **schedule},
            "training": self.training,
            "executor": {"device": device},
        }

    @property
    def stage(self) -> int:
        """The measured stage, which is the last."""
        return int(self.schedule["stages"]) if isinstance(self.schedule, dict) else 1

    @property
    def title(self) -> str:
        """The name and the training options that affect memory."""
        options = self.training
        optimizer = options.get("optimizer", "adamw") + (" with momentum" if options.get("momentum") else "")
        extras = [f"attention {options['attention']}"] if "attention" in options else []
        extras += [name for name in ("clip", "checkpointing") if options.get(name)]
        extras += [f"accumulation {options['accumulation']}"] if "accumulation" in options else []
        words = [self.name, f"batch {options['batch']}", options.get("precision", "float32")]
        return ", ".join([*words, f"{options.get('implementation', 'fused')} {optimizer}", *extras])


def plain(blocks: int, width: int, **more: Any) -> Json:
    """Options of a tower with heads of dimension 64, or 16 if ``width`` is under 192."""
    return {"blocks": blocks, "width": width, "heads": width // (64 if width >= 192 else 16), **more}


VIT, TEXT = plain(4, 64, patch=8), plain(4, 64, tokens=24)
SGD = {"optimizer": "sgd", "momentum": 0.9}
ADAM = {"optimizer": "adam"}
BFLOAT16, FLOAT16 = {"precision": "bfloat16"}, {"precision": "float16"}
FOREACH, LOOP = {"implementation": "foreach"}, {"implementation": "for-loop"}
GPT2 = {"model_type": "gpt2", "n_embd": 128, "n_layer": 4, "n_head": 4}
ROBERTA = {
    "model_type": "roberta", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 1024,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 4, "intermediate_size": 2816, "max_position_embeddings": 2048,
}  # fmt: skip
PAIRS = {"image-text": "classify"}

MODELS = (
    # small models of every type
    Model("vit 4x64 at 32 px", "image", {"image": VIT}, {"batch": 32}, 32),
    Model("transformer 4x64", "text", {"text": TEXT}, {"batch": 32, "optimizer": "sgd", **LOOP}, vocabulary=8000),
    Model("exits of vit 4x64 at 32 px", "image", {"image": VIT}, {"batch": 64}, 32, method="depthfl"),
    Model("gru 2x128", "text", {"text": {"tower": "gru", "blocks": 2, "hidden": 128}}, {"batch": 32, **SGD}),
    Model("resnet-18 at 32 px", "image", {"image": {"tower": "resnet", "stem": "small"}},
          {"batch": 32, **SGD, **FOREACH}, 32),
    Model("multiway 4x192 at 64 px", "image-text", {"multiway": plain(4, 192, tokens=32)}, {"batch": 16}, 64,
          vocabulary=8000, method="pmcmfl", tasks=PAIRS),
    Model("probabilistic vit and transformer 4x64", "image-text", {"image": VIT, "text": TEXT, "dimension": 64},
          {"batch": 32}, 32, method={"name": "creamfl", "pcme": {}, "server": "federated"}, public=256),
    Model("timm-vit tiny", "image", {"image": {"tower": "timm-vit", "variant": "tiny"}}, {"batch": 8}),
    Model("hf-vit tiny", "image", {"image": {"tower": "hf-vit"}}, {"batch": 16, **BFLOAT16, **FOREACH}),
    Model("bert, MiniLM's size", "text", {"text": {"tower": "bert"}}, {"batch": 32, **LOOP}),
    Model("conv1d 3x64", "motion", {"motion": {"tower": "conv1d"}}, {"batch": 32, **ADAM}),
    Model("ast 2x192", "audio", {"audio": {"tower": "ast", **plain(2, 192)}}, {"batch": 4, **ADAM}),
    Model("timm's mobilenetv3 small", "image", {"image": {"tower": "timm"}}, {"batch": 32}),
    Model("gpt2 4x128, next token", "text", {"text": {"tower": "hf-causal", "config": GPT2}}, {"batch": 8},
          vocabulary=8000, tasks={"text": "next-token"}),
    Model("roberta 4x256 by configuration", "text", {"text": {"tower": "hf", "config": ROBERTA}}, {"batch": 16}),
    Model("llama 4x1024, 4 heads of keys for 16 of queries, 1,024 tokens", "text",
          {"text": {"tower": "hf-causal", "config": LLAMA, "tokens": 1024}}, {"batch": 4, **BFLOAT16}, vocabulary=8000,
          tasks={"text": "next-token"}),
    Model("the same llama in float32", "text", {"text": {"tower": "hf-causal", "config": LLAMA, "tokens": 512}},
          {"batch": 2}, vocabulary=8000, tasks={"text": "next-token"}),
    # published sizes
    Model("timm-vit small", "image", {"image": {"tower": "timm-vit"}}, {"batch": 32}),
    Model("timm-vit small with FedCola's gates", "image",
          {"image": {"tower": "timm-vit"}, "text": plain(12, 384, tokens=40)}, {"batch": 32, **BFLOAT16},
          method={"name": "fedcola", "complementary": "blocks"}, others=("text",)),
    Model("timm-vit base", "image", {"image": {"tower": "timm-vit", "variant": "base"}},
          {"batch": 16, **BFLOAT16, "accumulation": 2}),
    Model("exits of hf-vit tiny", "image", {"image": {"tower": "hf-vit"}},
          {"batch": 16, "checkpointing": True}, method={"name": "depthfl", "exits": 4}),
    Model("resnet-50", "image", {"image": {"tower": "resnet", "layers": 50}}, {"batch": 32, **SGD}),
    Model("resnet-101", "image", {"image": {"tower": "resnet", "layers": 101}},
          {"batch": 16, **BFLOAT16, **SGD, **FOREACH}),
    Model("distilbert", "text", {"text": {"tower": "distilbert"}}, {"batch": 32, "clip": 1.0}),
    Model("distilbert, 128 tokens", "text", {"text": {"tower": "distilbert", "tokens": 128}},
          {"batch": 32, **BFLOAT16, "attention": "math"}),
    Model("bert 12x768, 128 tokens", "text", {"text": {"tower": "bert", **plain(12, 768), "tokens": 128}},
          {"batch": 16, **FLOAT16, "clip": 1.0}),
    Model("gru, word vectors of 300", "text", {"text": {"tower": "gru"}}, {"batch": 64, **ADAM, **FOREACH}),
    Model("ast 6x768, 1,214 tokens", "audio", {"audio": {"tower": "ast"}}, {"batch": 8, **BFLOAT16}),
    Model("multiway, BEiT-3 base", "image-text", {"multiway": {}}, {"batch": 8, **FLOAT16}, method="pmcmfl",
          tasks=PAIRS),
    Model("probabilistic resnet-18 and gru", "image-text",
          {"image": {"tower": "resnet"}, "text": {"tower": "gru"}, "dimension": 512}, {"batch": 32, **SGD},
          method={"name": "creamfl", "pcme": {}, "server": "federated"}, public=256),
    Model("hf-vit tiny and distilbert, layer-wise stage 6", "image-text",
          {"image": {"tower": "hf-vit"}, "text": {"tower": "distilbert"}, "dimension": 256},
          {"batch": 32, **FOREACH, "attention": "math"}, method="fedmml", schedule={"name": "layerwise", "stages": 6}),
)  # fmt: skip
