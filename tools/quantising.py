"""What quantising a base costs in quality, on models that have learnt something: a Llama and MiniLM.

    python tools/quantising.py FOLDER [--seeds 1 2 3]

The Llama is ``finetune/names-lora`` trained whole in float32: its weights are quantised after the last round.  MiniLM
(the extra ``minilm``) learns the categories of emoji by their names under LoRA in float32; then what stands under the
adapter is quantised.  Runs are kept in FOLDER, and not made again.  Prints a table in Markdown: the test metric before
and after, each seed's and the mean of what it moved by.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import torch

import edgefl
from edgefl import models
from edgefl.models import quantised
from edgefl.models.model import Quantiser
from edgefl.runs import read_run
from edgefl.scenario import load
from edgefl.setup.compose import compose, federation_of
from edgefl.training.assignment import Assignment
from edgefl.training.node import Node
from edgefl.work import Work

KINDS: tuple[Quantiser | None, ...] = (None, "nf4", "nf4-double", "int8")
EMOJI: dict[str, Any] = {
    "edgefl": 1,
    "name": "emoji-minilm",
    "data": {"source": "emoji", "clients": {"text": 4}, "samples": 120, "vocabulary": "minilm"},
    "model": {
        "text": {
            "tower": "bert", "weights": "minilm", "blocks": 6, "width": 384, "heads": 12, "read": "mean",
            "tokens": 12, "positions": 512,
        }
    },
    "adapter": {"name": "lora", "rank": 8},
    "training": {"optimizer": "adamw", "lr": 1e-3, "batch": 16, "epochs": 2},
    "schedule": {"name": "end-to-end", "rounds": 3},
    "round": {"cohort": 1.0},
    "evaluation": {"every": 3},
}  # fmt: skip
BASES: dict[str, tuple[Any, list[str], str]] = {
    "Llama, names": ("finetune/names-lora", ["adapter=none"], "perplexity"),
    "MiniLM, emoji": (EMOJI, [], "accuracy"),
}
"""Scenarios with their overrides, and the metric."""


def metric(run: Path, name: str, to: Quantiser | None) -> float:
    """A metric of a finished run's text model on its test data, with the linear layers of its blocks quantised."""
    kept = read_run(run)
    scenario = load(kept.scenario)
    described: Any = kept.models["text"]
    module = kept.model("text", merged=False)
    if to is not None:
        described = {
            **described,
            "quantize": {"text": {"to": to, "blocks": list(range(models.blocks(described)["text"]))}},
        }
        quantised.quantise(module, described)
    scoring = compose(scenario).method.evaluate("text", "test")
    work = Work("text", described, (), scoring.passes, attention=scoring.attention)
    tensors = {n: t.detach() for n, t in (*module.named_parameters(), *module.named_buffers())}
    node = Node(federation_of(scenario, lambda _: None), torch.device("cpu"))
    return float(node.run_assignment(Assignment(work.form, work.scalars, tensors, None, 0)).metrics[name])


def main() -> None:
    """Train what isn't there, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the runs are kept")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds of the runs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| base | quantised to | " + " | ".join(f"seed {seed}" for seed in options.seeds) + " | moved by |")
    print("| --- | --- |" + " ---: |" * (len(options.seeds) + 1))
    for base, (scenario, overrides, name) in BASES.items():
        runs = []
        for seed in options.seeds:
            runs.append(options.folder / f"{base.split(',')[0].lower()}-{seed}")
            if not (runs[-1] / "weights.safetensors").exists():
                edgefl.run(scenario, out=runs[-1], overrides=[*overrides, f"seed={seed}"])
        before = [metric(run, name, None) for run in runs]
        for to in KINDS:
            found = [metric(run, name, to) for run in runs]
            moved = sum(a - b for a, b in zip(found, before, strict=True)) / len(found)
            cells = [f"{value:.4g}" for value in found]
            print(f"| {base} ({name}) | {to or 'nothing'} | {' | '.join(cells)} | {moved:+.4f} |", flush=True)


if __name__ == "__main__":
    main()
