"""Random configurations: what a client or the server does in one round, as plain data that both sides read.

A configuration is ``{id, kind, stage, round, work, scenario}``.  The scenario is one of edgefl's with declared data and
no field left to a default that changes memory; ``kind`` is the client kind whose work is looked at, in ``round`` at
``stage`` (both from 1); ``work`` is ``train`` for a client's round and ``evaluate`` for the scoring of its model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Json = dict[str, Any]

METHODS = {
    "fedavg": 9, "fedmml": 1, "fedprox": 3, "fedcola": 3, "fedmd": 2, "creamfl": 2,
    "fedpac": 1, "fedhkd": 1, "pmcmfl": 2,
}  # fmt: skip
"""Methods, with how often each is drawn."""
IMAGE_TOWERS = {"vit": 6, "timm-vit": 2, "hf-vit": 2, "resnet": 2}
TEXT_TOWERS = {"transformer": 6, "gru": 2, "bert": 1, "distilbert": 2}
KINDS = {"image": 6, "text": 5, "image-text": 6, "audio": 1}
SCHEDULES = {"end-to-end": 5, "layerwise": 4, "progressive": 2, "heterofl": 2}
WIDTHS = [1.0, 0.5, 0.25]
"""Shares of attention heads that HeteroFL offers."""
OPTIMIZERS = ("sgd", "adam", "adamw")
IMPLEMENTATIONS = ("for-loop", "foreach", "fused")
NETS = {
    "mobilenetv3_small_050": 6, "mobilenetv3_small_100": 6, "mobilenetv2_050": 7, "efficientnet_lite0": 7,
    "mnasnet_small": 7, "semnasnet_075": 7, "tinynet_e": 7, "lcnet_050": 6, "ghostnet_050": 10, "hardcorenas_a": 7,
    "mobilenetv4_conv_small": 5, "convnext_atto": 4, "convnextv2_atto": 4, "edgenext_xx_small": 4, "mobilevit_xxs": 5,
    "mobilevitv2_050": 5, "repvgg_a0": 4, "poolformer_s12": 4, "mobileone_s0": 4, "fastvit_t8": 4,
    "efficientvit_b0": 4, "starnet_s050": 4, "levit_128s": 1, "regnetx_002": 1, "regnety_002": 1, "resnet10t": 1,
}  # fmt: skip
"""Nets of timm, with the stages by which they are cut; 1 where they can't be."""
EVERY_NET = 5
"""Every so many configurations one is of a net of timm."""
EVERY_DECODER, DECODER = 10, 6
"""Every so many configurations, and at which of them, one is of a decoder that predicts the next token."""
DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
VOCABULARIES = (30_522, 32_000, 50_257, 128_256, 151_936)
"""Words of BERT, Llama 2, GPT-2, Llama 3 and Qwen 2."""
LONG = 256
"""Tokens of a decoder whose scores of a batch take more than a prediction runs at once."""
QUANTISED = ("nf4", "nf4-double", "int8")
"""How frozen layers under an adapter are held."""
SIZES = (16, 20, 24, 28, 32, 32, 40, 48, 56, 64)
MOST_PATCHES = 256


@dataclass
class Draw:
    """Draws from a numpy generator that return plain Python values."""

    rng: np.random.Generator

    def between(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return int(self.rng.integers(low, high, endpoint=True))

    def one_of(self, values: Sequence[Any]) -> Any:
        """One of the values, each as likely."""
        return values[self.between(0, len(values) - 1)]

    def weighed(self, weights: dict[str, int]) -> str:
        """One of the names, in proportion to their weights."""
        names = [name for name, weight in weights.items() for _ in range(weight)]
        return str(self.one_of(names))

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self.rng.random() < probability)


def draw(seed: int, index: int) -> Json:
    """Configuration ``index`` of the sequence that ``seed`` begins; its id is ``<seed>-<index>``."""
    configuration = _drawn(seed, index)
    scenario, apart = configuration["scenario"], Draw(np.random.default_rng([seed, index, 1]))
    training = scenario["training"]
    wrong = training["optimizer"] == "sgd" and training["implementation"] == "fused"  # torch's fused SGD in bfloat16
    simple = scenario["method"]["name"] in ("fedavg", "fedmml", "fedprox") and configuration["work"] == "train"
    if simple and not wrong and apart.chance(0.3):
        for tower in towers_of(scenario["model"]).values():
            tower["dtype"] = "bfloat16"
    towers = towers_of(scenario["model"]).values()
    transformers = all(_halves(tower) for tower in towers)
    whole = scenario["schedule"]["name"] == "end-to-end" and training["precision"] == "float32"
    if simple and transformers and whole and "-" not in configuration["kind"] and apart.chance(0.7):
        scenario["adapter"] = {"name": "lora", "rank": apart.between(1, 4)}
        for tower in towers:
            tower["quantize"] = apart.one_of(QUANTISED)
    apart = Draw(np.random.default_rng([seed, index, 2]))
    training["step_in_backward"] = apart.chance(0.3) and training["accumulation"] == 1 and not training["clip"]
    if training["optimizer"] == "adamw" and not training["step_in_backward"] and apart.chance(0.3):
        training["optimizer"] = "adamw-8bit"
    apart = Draw(np.random.default_rng([seed, index, 3]))
    if "text" in configuration["kind"] and apart.chance(0.3):
        scenario["data"]["shapes"]["text"]["vocabulary"] = words = apart.one_of(VOCABULARIES)
        if scenario["model"].get("text", {}).get("tower") == "hf-causal" and apart.chance(0.5):
            _lengthen(scenario, round(apart.between(500, 900) * 2**20 / (4 * LONG * words)))
    return configuration


def _lengthen(scenario: Json, batch: int) -> None:
    """Let a decoder's batches have so many texts of ``LONG`` tokens."""
    tower, data = scenario["model"]["text"], scenario["data"]
    tower["tokens"] = LONG
    if "n_positions" in tower["config"]:
        tower["config"]["n_positions"] = LONG
    scenario["training"] |= {"batch": batch, "accumulation": 1, "epochs": 1, "loss_chunk": None}
    data["samples"]["text"], data["test"], scenario["evaluation"]["batch"] = 2 * batch, batch, batch


def _halves(tower: Json) -> bool:
    """Whether it is a transformer whose rows have an even length, as bitsandbytes' kernels for 4 bits ask for."""
    return "mlp_ratio" in tower and not any(int(tower["width"] * n) % 2 for n in (1, tower["mlp_ratio"]))


def _drawn(seed: int, index: int) -> Json:
    """The configuration in float32."""
    d = Draw(np.random.default_rng([seed, index]))
    if index % EVERY_NET == EVERY_NET - 1:
        return {"id": f"{seed}-{index}", **_net(d)}
    if index % EVERY_DECODER == DECODER:
        return {"id": f"{seed}-{index}", **_decoder(d)}
    method = d.weighed(METHODS)
    kinds = _kinds(d, method)
    kind = str(d.one_of(kinds))
    classifies = method in ("fedpac", "fedhkd", "pmcmfl") or d.chance(0.5)
    facts = _facts(d)
    model = _model(d, method, kinds, facts, classifies)
    training = _some_blocks(d, _training(d, model), model)
    smallest = 2 if _needs_two(model) else 1
    training["batch"] = max(smallest, d.between(1, _largest_batch(model, facts)))
    samples = {name: _samples(d, training, smallest) for name in kinds}
    stages, stage, schedule = _schedule(d, model, method)
    rounds = 2 if schedule["name"] == "heterofl" else 2 * stages
    evaluates = method == "fedavg" and (classifies or "-" not in kind) and d.chance(0.2)
    scored = d.between(1, 48)
    public = max(2, _near(d, training["batch"], 3))
    scenario: Json = {
        "edgefl": 1,
        "name": "memory",
        "data": {
            "source": "declared",
            "clients": dict.fromkeys(kinds, 1),
            "samples": samples,
            "shapes": facts,
            "tasks": {name: "classify" if classifies else "retrieve" for name in kinds if "-" in name},
            "validation": 0,
            "test": _near(d, scored, 4),
            "public": public,
        },
        "model": model,
        "training": training,
        "schedule": {**schedule, "rounds": rounds},
        "method": _method(d, method, model),
        "evaluation": {"batch": scored},
        "executor": {"device": "cpu"},
    }
    return {
        "id": f"{seed}-{index}",
        "kind": kind,
        "stage": stage,
        "round": min(2 * stage, rounds) - d.between(0, 1),
        "work": "evaluate" if evaluates else "train",
        "scenario": scenario,
    }


def _net(d: Draw) -> Json:
    """A client that trains a net of timm, whole or cut by a schedule."""
    variant = str(d.one_of(list(NETS)))
    facts = _facts(d)
    facts["image"]["size"] = 224 if variant.startswith("levit") else d.one_of([32, 64, 64, 96])
    training = _training(d, {})
    training |= {"checkpointing": False, "attention": "device", "batch": d.between(2, 8)}
    stages, stage, schedule = 1, 1, {"name": "end-to-end"}
    if NETS[variant] > 1 and d.chance(0.75):
        stages = d.between(2, NETS[variant])
        stage, schedule = d.between(1, stages), {"name": d.one_of(["layerwise", "layerwise", "progressive"])}
        schedule["stages"] = stages
    scenario = {
        "edgefl": 1, "name": "memory",
        "data": {
            "source": "declared", "clients": {"image": 1}, "samples": {"image": _samples(d, training, 2)},
            "shapes": facts, "tasks": {}, "validation": 0, "test": 4, "public": 2,
        },
        "model": {"image": {"tower": "timm", "variant": variant}},
        "training": training,
        "schedule": {**schedule, "rounds": 2 * stages},
        "method": _method(d, d.one_of(["fedavg", "fedavg", "fedprox"]), {}),
        "evaluation": {"batch": 4},
        "executor": {"device": "cpu"},
    }  # fmt: skip
    return {
        "kind": "image", "stage": stage, "round": 2 * stage - d.between(0, 1), "work": "train", "scenario": scenario,
    }  # fmt: skip


def _decoder(d: Draw) -> Json:
    """A client that predicts tokens, of whose loss some are computed in chunks."""
    facts, kind = _facts(d), str(d.one_of(DECODERS))
    facts["text"]["vocabulary"] = d.between(32, 6000)
    tower = {"tower": "hf-causal", "config": _decoder_config(d, kind), "tokens": d.between(2, 24)}
    model = {"text": tower}
    training = _training(d, {"text": {"dropout": tower["config"].get("attn_pdrop", 0.0)}})
    training = _some_blocks(d, training, {"text": tower})
    training["batch"] = d.between(1, 16)
    whole = training["batch"] * tower["tokens"]
    training["loss_chunk"] = d.one_of([None, 1, d.between(1, whole), d.between(1, whole), whole + 1])
    stages, stage, schedule = _schedule(d, model, "fedavg")
    scored = d.between(1, 24)
    scenario = {
        "edgefl": 1, "name": "memory",
        "data": {
            "source": "declared", "clients": {"text": 1}, "samples": {"text": _samples(d, training, 1)},
            "shapes": facts, "tasks": {"text": "next-token"}, "validation": 0, "test": _near(d, scored, 3), "public": 2,
        },
        "model": model, "training": training, "schedule": {**schedule, "rounds": 2 * stages},
        "method": _method(d, d.one_of(["fedavg", "fedavg", "fedprox"]), {}),
        "evaluation": {"batch": scored}, "executor": {"device": "cpu"},
    }  # fmt: skip
    return {
        "kind": "text", "stage": stage, "round": 2 * stage - d.between(0, 1),
        "work": "evaluate" if d.chance(0.2) else "train", "scenario": scenario,
    }  # fmt: skip


def _decoder_config(d: Draw, kind: str) -> Json:
    """A configuration in transformers' words."""
    heads, blocks = d.between(1, 4), d.between(1, 4)
    width, tied = heads * d.one_of([8, 12, 16, 24, 32]), d.chance(0.6)
    if kind == "gpt2":
        drop = d.one_of([0.0, 0.0, 0.1])
        return {
            "model_type": kind, "n_embd": width, "n_layer": blocks, "n_head": heads, "n_positions": d.between(24, 60),
            "embd_pdrop": drop, "resid_pdrop": drop, "attn_pdrop": drop, "tie_word_embeddings": tied,
        }  # fmt: skip
    shared = d.one_of([n for n in range(1, heads + 1) if heads % n == 0])
    config = {
        "model_type": kind, "hidden_size": width, "num_hidden_layers": blocks, "num_attention_heads": heads,
        "num_key_value_heads": shared, "intermediate_size": d.between(8, 4 * width), "tie_word_embeddings": tied,
    }  # fmt: skip
    return config if kind == "qwen2" else {**config, "head_dim": width // heads}


def identified(name: str) -> Json:
    """The configuration with this id.  Raises ValueError for text that is no id."""
    seed, dash, index = name.partition("-")
    if not dash or not seed.isdigit() or not index.isdigit():
        raise ValueError(f"{name!r} is no id of a configuration: SEED-INDEX, such as 1-17")
    return draw(int(seed), int(index))


# data -------------------------------------------------------------------------------------------------------------


def _kinds(d: Draw, method: str) -> list[str]:
    """Kinds of clients, each with one client."""
    if method == "fedcola":
        return ["image", "text"]
    if method in ("fedmd", "creamfl"):
        return ["image", "text", "image-text"] if d.chance(0.6) else ["image", "text"]
    if method in ("fedpac", "fedhkd", "pmcmfl"):
        return ["image", "text", "image-text"] if d.chance(0.7) else ["image-text"]
    return [d.weighed(KINDS)]


def _facts(d: Draw) -> Json:
    classes = d.one_of([2, 5, 10, 17, 40])
    return {
        "image": {"channels": d.one_of([1, 3, 3]), "size": d.one_of(SIZES), "classes": classes},
        "text": {"vocabulary": d.between(32, 2500), "classes": classes},
        "audio": {"bins": d.between(20, 48), "frames": d.between(24, 80), "classes": classes},
    }


def _samples(d: Draw, training: Json, smallest: int) -> int:
    """Samples of a client: one batch to an update and two batches more, or too few for a batch."""
    batch, every = training["batch"], training["accumulation"]
    if d.chance(0.1):
        return max(smallest, d.between(1, batch))
    batches = d.between(1, every + 2)
    return int(batch * batches + d.between(0, batch - 1))


def _near(d: Draw, batch: int, most: int) -> int:
    """Samples of one to ``most`` batches, the last of which may be incomplete."""
    return batch * d.between(1, most) - d.between(0, batch - 1)


# models -----------------------------------------------------------------------------------------------------------


def _model(d: Draw, method: str, kinds: list[str], facts: Json, classifies: bool) -> Json:
    """The model section."""
    modalities = {m for kind in kinds for m in kind.split("-")}
    if method in ("fedpac", "fedhkd", "pmcmfl") and len(kinds) > 1:
        return {"multiway": _multiway(d, facts)}
    model: Json = {}
    width = _width(d)
    if method == "fedcola":
        alike = {"width": width[0], "heads": width[1], "mlp_ratio": d.one_of([1.0, 2.0, 4.0])}
        image = d.one_of(["vit", "vit", "timm-vit", "timm-vit", "hf-vit"])
        text = d.one_of(["transformer", "transformer", "bert", "bert", "distilbert"])
        model["image"] = _image_tower(d, image, width, facts) | alike
        model["text"] = _text_tower(d, text, width) | alike
        return model
    if "image" in modalities:
        model["image"] = _image_tower(d, d.weighed(IMAGE_TOWERS), width, facts)
    if "text" in modalities:
        model["text"] = _text_tower(d, d.weighed(TEXT_TOWERS), width)
    if "audio" in modalities:
        model["audio"] = _audio_tower(d, width)
    exchanges = method in ("fedmd", "creamfl")
    if exchanges or (len(modalities) > 1 and (_widths_differ(model) or d.chance(0.4))):
        model["dimension"] = d.between(4, 96)
        model["dimension_for"] = "all" if exchanges else "pairs"
        if d.chance(0.3):
            model["projection"] = {"hidden": [d.between(4, 96)], "batch_norm": d.chance(0.5), "dropout": 0.0}
    if len(modalities) > 1:
        hidden = [d.between(4, 96)] if d.chance(0.4) else []
        model["fusion"] = {"hidden": hidden, "dropout": d.one_of([0.0, 0.1]) if hidden else 0.0}
    return model


def _width(d: Draw) -> tuple[int, int]:
    """Width and heads of a transformer."""
    heads = d.between(1, 6)
    return heads * d.one_of([4, 6, 8, 8, 12, 16, 16, 20, 24, 32]), heads


def _drop(d: Draw) -> float:
    return float(d.one_of([0.0, 0.0, 0.0, 0.1, 0.3]))


def _transformer(d: Draw, width: tuple[int, int]) -> Json:
    blocks = d.one_of([1, 2, 2, 3, 3, 4, 5, 6])
    return {"blocks": blocks, "width": width[0], "heads": width[1], "mlp_ratio": d.one_of([1.0, 2.0, 2.5, 4.0])}


def _patch(d: Draw, facts: Json) -> int:
    size = facts["image"]["size"]
    return int(d.one_of([p for p in range(2, size + 1) if not size % p and (size // p) ** 2 <= MOST_PATCHES]))


def _image_tower(d: Draw, tower: str, width: tuple[int, int], facts: Json) -> Json:
    if tower == "resnet":
        return {"tower": tower, "layers": d.one_of([18, 18, 18, 18, 34, 50]), "stem": d.one_of(["imagenet", "small"])}
    patch = _patch(d, facts)
    if tower == "vit":
        return {"tower": tower, **_transformer(d, width), "patch": patch, "drop_path": _drop(d)}
    options = {"tower": tower, "variant": "tiny", **_transformer(d, width), "patch": patch}
    if d.chance(0.25):
        options |= {"blocks": d.one_of([2, 3, 4, 12]), "width": 192, "heads": 3, "mlp_ratio": 4.0}
    if tower == "timm-vit":
        return {**options, "drop_path": _drop(d)}
    return {**options, "dropout": d.one_of([0.0, 0.0, 0.1]), "pooler": d.chance(0.5)}


def _text_tower(d: Draw, tower: str, width: tuple[int, int]) -> Json:
    tokens = d.between(2, 40)
    if tower == "gru":
        return {
            "tower": tower, "blocks": d.between(1, 2), "embedding": d.between(8, 128), "hidden": d.between(4, 96),
            "tokens": d.between(2, 12), "pooling": d.one_of(["last", "max", "mean"]),
        }  # fmt: skip
    options = {"tower": tower, **_transformer(d, width), "tokens": tokens}
    if tower == "transformer":
        return {**options, "drop_path": _drop(d)}
    options |= {"positions": tokens + d.between(0, 100), "dropout": d.one_of([0.0, 0.1])}
    more = {"read": d.one_of(["first", "mean"])} if tower == "bert" else {"position_ids": d.chance(0.3)}
    return options | more


def _audio_tower(d: Draw, width: tuple[int, int]) -> Json:
    return {
        "tower": "ast", **_transformer(d, width), "patch": d.one_of([8, 16]), "stride": d.one_of([6, 10]),
        "dropout": d.one_of([0.0, 0.1]),
    }  # fmt: skip


def _multiway(d: Draw, facts: Json) -> Json:
    tokens = d.between(2, 30)
    return {
        **_transformer(d, _width(d)), "drop_path": _drop(d), "patch": _patch(d, facts), "tokens": tokens,
        "positions": tokens + 2 + d.between(0, 60), "shared_attention": d.chance(0.5),
    }  # fmt: skip


def width_of(tower: Json) -> int:
    """Width of a tower's pooled tokens."""
    if tower["tower"] == "resnet":
        return 512 if tower["layers"] < 50 else 2048
    if tower["tower"] == "hf-causal":
        return int(tower["config"].get("hidden_size") or tower["config"]["n_embd"])
    return int(2 * tower["hidden"] if tower["tower"] == "gru" else tower["width"])


def blocks_of(tower: Json) -> int:
    """Blocks of a tower at full depth."""
    if tower.get("tower") == "timm":
        return NETS[tower["variant"]]
    if tower.get("tower") == "hf-causal":
        return int(tower["config"].get("num_hidden_layers") or tower["config"]["n_layer"])
    return 4 if tower.get("tower") == "resnet" else int(tower["blocks"])


def _widths_differ(model: Json) -> bool:
    return len({width_of(tower) for tower in towers_of(model).values()}) > 1


def towers_of(model: Json) -> dict[str, Json]:
    """Options of the encoders by name."""
    return {name: tower for name, tower in model.items() if name in ("image", "text", "audio", "multiway")}


def _needs_two(model: Json) -> bool:
    """Whether a batch norm needs two samples."""
    return "projection" in model or model.get("image", {}).get("tower") == "resnet"


def _largest_batch(model: Json, facts: Json) -> int:
    image = model.get("image") or {}
    if image.get("tower") == "resnet":
        return 4 if image["layers"] > 34 else 8
    return 32


# training ---------------------------------------------------------------------------------------------------------


def _training(d: Draw, model: Json) -> Json:
    optimizer = d.one_of(OPTIMIZERS)
    drops = any(tower.get("dropout") for tower in towers_of(model).values())
    training: Json = {
        "optimizer": optimizer,
        "implementation": d.one_of(IMPLEMENTATIONS),
        "lr": 1e-4,
        "weight_decay": d.one_of([0.0, 0.05]),
        "epochs": d.one_of([1, 1, 2]),
        "accumulation": d.one_of([1, 1, 1, 2, 3, 4]),
        "precision": d.one_of(["float32", "float32", "float32", "bfloat16", "bfloat16"]),
        # torch's flash kernel on a CPU takes no dropout
        "attention": d.one_of(["device", "device", "device", "math", "device" if drops else "flash"]),
        "clip": d.one_of([None, None, 1.0]),
        "checkpointing": d.chance(0.35),
    }
    if optimizer == "sgd":
        training["momentum"] = d.one_of([0.0, 0.9])
    return training


def _some_blocks(d: Draw, training: Json, model: Json) -> Json:
    """The training, which may recompute some of the blocks if it recomputes any."""
    if not training["checkpointing"] or d.chance(0.5):
        return training
    count = d.between(1, max(map(blocks_of, towers_of(model).values())))
    return training | {"checkpointing": f"{count} blocks" if count > 1 else "1 block"}


def _schedule(d: Draw, model: Json, method: str) -> tuple[int, int, Json]:
    """Number of stages, the stage that is looked at, and the schedule without its rounds."""
    name, towers = d.weighed(SCHEDULES), towers_of(model).values()
    if name == "heterofl":
        cuttable = all(tower.get("tower") in ("vit", "transformer") for tower in towers)
        if cuttable and method in ("fedavg", "fedmml", "fedprox"):
            return 3, d.between(1, 3), {"name": name, "widths": WIDTHS, "scaler": d.chance(0.5)}
    depth = min(map(blocks_of, towers))
    if name in ("end-to-end", "heterofl") or depth < 2:
        return 1, 1, {"name": "end-to-end"}
    stages = d.between(2, depth)
    return stages, d.between(1, stages), {"name": name, "stages": stages}


def _method(d: Draw, name: str, model: Json) -> Json:
    options: Json = {"name": name}
    if name == "fedprox":
        return options | {"mu": 0.01, "norm": d.one_of(["squared", "tensor"])}
    if name == "fedcola":
        return options | {
            "complementary": d.one_of(["none", "attention", "mlp", "blocks", "blocks"]),
            "partner": d.one_of(["trainable", "frozen"]),
            "partner_payload": d.one_of(["all", "weights"]),
        }
    if name == "fedmd":
        return options | {"digest": d.one_of([0.0, 1.0, 1.0]), "distance": d.one_of(["mse", "norm"])}
    if name == "creamfl":
        return options | {
            "inter": d.chance(0.8), "intra": d.chance(0.8), "old": d.one_of(["copy", "table"]),
            "rescale": d.chance(0.3), "steps": "separate", "contrast": 0.5,
        }  # fmt: skip
    if name == "fedpac":
        return options | {"weight": 1.0, "mask": d.one_of(["zero", "random"])}
    if name == "fedhkd":
        return options | {
            "predictions": d.one_of([0.0, 0.05]), "representations": 0.05, "mask": d.one_of(["zero", "random"]),
        }  # fmt: skip
    if name == "pmcmfl":
        return options | {
            "mask": d.one_of(["prototype", "zero", "random"]) if "multiway" in model else "zero",
            "contrast": 0.01, "alignment": d.one_of([0.0, 0.5]), "distillation": d.one_of([0.0, 0.05]),
            "inference": "zero", "prototypes_of": d.one_of(["pairs", "all"]),
        }  # fmt: skip
    return options


def described(configuration: Json) -> str:
    """A configuration in one line."""
    scenario = configuration["scenario"]
    model, training = scenario["model"], scenario["training"]
    towers = []
    for name in ("image", "text", "audio", "multiway"):
        if (tower := model.get(name)) and (name == "multiway" or name in configuration["kind"].split("-")):
            size = f"{tower['layers']}" if "layers" in tower else tower.get("variant", "")
            if "blocks" in tower:
                size = f"{tower['blocks']}x{width_of({'tower': '', **tower})}"
            if "config" in tower:
                size = f"{tower['config']['model_type']} {blocks_of(tower)}x{width_of(tower)}"
            size += f" {tower['dtype']}" if "dtype" in tower else ""
            size += f" LoRA over {tower['quantize']}" if "quantize" in tower else ""
            towers.append(f"{tower.get('tower', name)} {size}")
    schedule, method = scenario["schedule"], scenario["method"]
    words = [
        configuration["work"], configuration["kind"], " + ".join(towers),
        f"{scenario['data']['shapes']['image']['size']} px" if "image" in configuration["kind"] else "",
        f"batch {training['batch']} of {scenario['data']['samples'][configuration['kind']]}",
        f"{training['optimizer']} {training['implementation']}",
        training["precision"] if training["precision"] != "float32" else "",
        f"checkpointing {training['checkpointing']}" if training["checkpointing"] else "",
        f"loss of {training['loss_chunk']} tokens at a time" if training.get("loss_chunk") else "",
        f"accumulation {training['accumulation']}" if training["accumulation"] > 1 else "",
        "clip" if training["clip"] else "", "step in backward" if training["step_in_backward"] else "",
        f"attention {training['attention']}",
        f"{method['name']} round {configuration['round']}",
        f"{schedule['name']} {configuration['stage']}" if schedule["name"] != "end-to-end" else "",
    ]  # fmt: skip
    return ", ".join(word for word in words if word)
