"""The tables of evidence/fine-tuning-costs.md: what a client's round costs by ways of fine-tuning.

Peaks are of the hardest stage, other figures means over the schedule's rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import edgefl
from edgefl.scenario import load
from tools.pages.markdown import table

SCENARIOS = {"finetune/vit-s-bert": "image-text", "finetune/qwen2.5-0.5b": "text"}
"""Scenarios, and the kind of client that each table is about."""
SMALLEST = "elastic, 3 stages: its smallest part"
"""The way of which the figures are those of the cheapest part that a client may train."""
WAYS: dict[str, list[str]] = {
    "full": [],
    "full, step in the backward pass": ["training.step_in_backward=true"],
    "full, 8-bit AdamW": ["training.optimizer=adamw-8bit"],
    "full, both": ["training.step_in_backward=true", "training.optimizer=adamw-8bit"],
    "LoRA, rank 8, all linear layers": ["adapter={name: lora, rank: 8}"],
    "LoRA, rank 8, over nf4 and bfloat16": [
        "adapter={name: lora, rank: 8}",
        "model.*.dtype=bfloat16",
        "model.*.quantize=nf4",
    ],
    "BitFit": ["adapter=bitfit"],
    "layer-wise, 3 stages": ["schedule={name: layerwise, stages: 3, rounds: 100}"],
    "layer-wise, 3 stages, LoRA": [
        "schedule={name: layerwise, stages: 3, rounds: 100}",
        "adapter={name: lora, rank: 8}",
    ],
    "frozen prefix, half of the blocks": ["schedule={name: frozen-prefix, rounds: 100}"],
    "frozen prefix, LoRA": ["schedule={name: frozen-prefix, rounds: 100}", "adapter={name: lora, rank: 8}"],
    "split after 3 blocks, LoRA": ["schedule={name: split, after: 3, rounds: 100}", "adapter={name: lora, rank: 8}"],
    SMALLEST: ["schedule={name: elastic, stages: 3, rounds: 100}"],
    "zeroth order (MeZO)": ["method=mezo", "training.optimizer=mezo"],
    "zeroth order, LoRA": ["method=mezo", "training.optimizer=mezo", "adapter={name: lora, rank: 8}"],
}
OF_PAIRS: dict[str, list[str]] = {"split after 3 blocks": ["schedule={name: split, after: 3, rounds: 100}"]}
"""Ways for models of which no parameter is in both halves."""
OF_TOKENS: dict[str, list[str]] = {
    "LoRA, loss of 64 tokens at a time": ["adapter={name: lora, rank: 8}", "training.loss_chunk=64"],
    "LoRA, checkpointing, loss of 64 tokens at a time": [
        "adapter={name: lora, rank: 8}",
        "training.checkpointing=true",
        "training.loss_chunk=64",
    ],
}
"""Ways for clients that predict tokens."""
DEVICES = ("raspberry-pi-5-8gb", "jetson-orin-nano-8gb", "phone-mid")
HEAD = (
    "way", "peak, MiB", "parameters", "gradients", "optimizer", "activations", "the rest", "TFLOP", "MB down", "MB up",
    *(f"{name}, s" for name in DEVICES), "devices",
)  # fmt: skip
MIB = 2**20


def row(scenario: str, kind: str, sets: Sequence[str], *, smallest: bool = False) -> list[str]:
    """A way's figures, or those of its ``smallest`` stage."""
    stages = [r for r in edgefl.profile(scenario, overrides=sets)["rows"] if r["kind"] == kind]
    hardest = max(stages, key=lambda r: r["peak_memory_bytes"])
    if smallest:
        stages = [hardest := min(stages, key=lambda r: r["peak_memory_bytes"])]
    numbers = {stage["stage"] for stage in stages}
    parts = hardest["memory_bytes"]
    named = [parts[name] for name in ("parameters", "gradients", "optimizer", "activations")]
    (check,) = edgefl.sweep(scenario, overrides=[*sets, "compare=null"], devices="all")["devices"].values()
    rows = check["rows"]
    fits = {r["device"] for r in rows if r["kind"] == kind and r["eligible_stages"] >= (1 if smallest else r["stages"])}
    cells = [
        f"{b / MIB:,.0f}" for b in (hardest["peak_memory_bytes"], *named, hardest["peak_memory_bytes"] - sum(named))
    ]
    cells.append(f"{mean(stages, lambda r: r['forward_flops'] + r['backward_flops']) / 1e12:.2f}")
    cells += [f"{mean(stages, lambda r, d=d: r[f'{d}load_bytes']) / 1e6:,.2f}" for d in ("down", "up")]
    for device in DEVICES:
        timed = edgefl.profile(scenario, overrides=[*sets, f"fleet.devices={device}"])["rows"]
        timed = [r for r in timed if r["kind"] == kind and r["stage"] in numbers]
        seconds = f"{mean(timed, lambda r: r['virtual_seconds']):,.0f}"
        cells.append(seconds if device in fits else f"({seconds})")
    return [*cells, f"{len(fits)} of {len({r['device'] for r in rows})}"]


def of_towers(scenario: str | dict[str, Any], sets: Sequence[str]) -> list[str]:
    """A way's changes; one of ``model.*`` is made of every tower."""
    towers = load(scenario).model.towers
    return [each.replace("*", tower) for each in sets for tower in (towers if "*" in each else ("",))]


def ways(kind: str) -> dict[str, list[str]]:
    """The ways for a kind of client."""
    return WAYS | (OF_TOKENS if kind == "text" else OF_PAIRS)


def mean(stages: Sequence[Mapping[str, Any]], of: Any) -> float:
    """The mean of a figure over the rounds of all stages."""
    return float(sum(stage["rounds"] * of(stage) for stage in stages) / sum(stage["rounds"] for stage in stages))


def fine_tune_blocks() -> dict[str, str]:
    """A table for each scenario, by its name."""
    return {
        scenario: table(
            HEAD,
            [
                [way, *row(scenario, kind, of_towers(scenario, sets), smallest=way == SMALLEST)]
                for way, sets in ways(kind).items()
            ],
            align=["---", *["---:"] * (len(HEAD) - 1)],
        )
        for scenario, kind in SCENARIOS.items()
    }
