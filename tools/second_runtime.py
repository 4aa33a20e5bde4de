"""Memory of training steps by ExecuTorch's planner beside predicted peaks: the table of "A second runtime".

    python tools/second_runtime.py [--only vit] [--record docs/evidence/figures/second-runtime.json]

Needs the extra executorch.  Each model's step is exported, checked and timed on one thread; minutes, most of them for
the residual network, whose portable kernels are slow.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

import edgefl
from edgefl.errors import MethodError
from edgefl.machine.observed_work import RandomBatches, time_steps
from edgefl.models.towers.vision import import_torchvision
from edgefl.planning.subjects import largest_works
from edgefl.setup.compose import planner_of, scenario_of
from edgefl.work import distinct

BATCH = 4
SHAPES = {
    "image": {"channels": 3, "size": 32, "classes": 10},
    "text": {"vocabulary": 1000, "classes": 4},
    "tokens": {"vocabulary": 1000},
}


class FrozenResNet(nn.Module):
    """torchvision's ResNet-18 whose BatchNorm stays in evaluation mode; with ``pool`` it has the stem of ImageNet."""

    def __init__(self, channels: int, pool: bool = False):
        super().__init__()
        import_torchvision()
        from torchvision.models import resnet18

        self.net: Any = resnet18()
        self.net.fc = nn.Identity()
        if not pool:
            self.net.conv1, self.net.maxpool = nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.Identity()
        self.width = 512

    def forward(self, image: Tensor) -> Tensor:
        """``[batch, channels, size, size]`` -> ``[batch, 512]``."""
        features: Tensor = self.net(image)
        return features

    def train(self, mode: bool = True) -> FrozenResNet:
        """All but BatchNorm."""
        super().train(mode)
        for part in self.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.eval()
        return self


DECODER = {"tower": "hf-causal", "tokens": 32}
LLAMA = {
    "model_type": "llama", "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 96, "n_layer": 4, "n_head": 4, "n_positions": 64}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GRU = {"tower": "gru", "blocks": 1, "hidden": 64, "embedding": 64, "tokens": 16}
MODELS: dict[str, tuple[str, str, Mapping[str, Any]]] = {
    "vit": ("ViT, 4 blocks x 96", "image", {"tower": "vit", "blocks": 4, "width": 96, "heads": 4, "patch": 4}),
    "text": (
        "text transformer, 4 x 96", "text",
        {"tower": "transformer", "blocks": 4, "width": 96, "heads": 4, "tokens": 32},
    ),
    "gpt2": ("GPT-2, 4 x 96, without dropout", "tokens", {**DECODER, "config": {**GPT2, **NO_DROPOUT}}),
    "gru": ("GRU, 64, both directions, 16 tokens", "text", GRU),
    "resnet": ("ResNet-18, small stem, BatchNorm frozen", "image", {"tower": "resnet18-frozen"}),
    "pooled": ("ResNet-18, max pooling, BatchNorm frozen", "image", {"tower": "resnet18-frozen", "pool": True}),
    "batchnorm": ("ResNet-18, BatchNorm trains", "image", {"tower": "resnet", "stem": "small"}),
    "dropout": ("GPT-2, 4 x 96, its dropout of .1", "tokens", {**DECODER, "config": GPT2}),
    "llama": ("Llama, 4 x 96", "tokens", {**DECODER, "config": LLAMA}),
}  # fmt: skip


def measure(title: str, data: str, tower: Mapping[str, Any]) -> dict[str, Any]:
    """A row: bytes by ExecuTorch and by edgefl, the largest difference of a gradient, seconds; or why it is refused."""
    modality = "image" if data == "image" else "text"
    scenario = {
        "name": "step",
        "data": {
            "source": "declared", "clients": {modality: 1}, "samples": 2 * BATCH, "shapes": {modality: SHAPES[data]},
            **({"tasks": {"text": "next-token"}} if data == "tokens" else {}),
        },
        "model": {modality: tower},
        "schedule": {"name": "end-to-end", "rounds": 1},
        "training": {"batch": BATCH, "optimizer": "sgd", "lr": 0.1, "attention": "math"},
        "executor": {"device": "cpu"},
    }  # fmt: skip
    with TemporaryDirectory() as folder:
        try:
            (row,) = edgefl.export(scenario, "executorch", folder).programs
        except MethodError as error:
            return {"model": title, "refused": str(error).partition("ExecuTorch: ")[2]}
        from executorch.extension.training import _load_for_executorch_for_training

        loaded = _load_for_executorch_for_training(row.file)
        ((_, _, work, source),) = largest_works(planner_of(scenario_of(scenario)))
        (batch,) = [batch for _, batch in RandomBatches(source, work.model, 1).batches(work.passes[0], 0)]
        started = time.process_time()
        loaded.forward_backward("forward", tuple(batch.values()))
        seconds = time.process_time() - started
        once = replace(work, passes=tuple(distinct(work)))
        ((_, torchs),) = time_steps(once, source, torch.device("cpu")).values()
        return {
            "model": title, "parameter_bytes": sum(4 * p.numel() for p in loaded.named_parameters().values()),
            "arena_bytes": row.arena_bytes, "peak_memory_bytes": row.peak_memory_bytes,
            "gradient_difference": float(f"{row.gradient_difference:.1e}"),
            "seconds": round(seconds, 4), "torch_seconds": round(torchs, 4),
        }  # fmt: skip


def main() -> None:
    """Measure and print each row; write the file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MODELS, help="this model alone")
    parser.add_argument("--record", type=Path, help="the file that the page is made from")
    given = parser.parse_args()
    torch.set_num_threads(1)
    edgefl.register("tower", "resnet18-frozen")(FrozenResNet)  # not by import, because a test counts edgefl's towers
    rows = []
    for name in [given.only] if given.only else MODELS:
        rows.append(measure(*MODELS[name]))
        print(json.dumps(rows[-1]), flush=True)
    if given.record:
        kept = {
            "from": f"`tools/second_runtime.py` on {date.today():%d %B %Y}",
            "machine": {
                "executorch": version("executorch"), "torch": torch.__version__, "python": platform.python_version(),
            },
            "columns": "bytes of the planner's arena and of the predicted peak, both with parameters; the largest "
            "difference of a gradient over its largest number; processor seconds of a step in either",
            "rows": rows,
        }  # fmt: skip
        given.record.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
