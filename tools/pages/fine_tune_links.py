"""The tables of evidence/fine-tuning-costs.md over links: ten ways on devices from a small board to a laptop.

A way is priced once for all devices and links, because these change seconds alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.arrays import Floats
from edgefl.commands.sweep.on_devices import largest_workload
from edgefl.devices import available_memory_bytes, load_device, load_link
from edgefl.planning.subjects import subjects
from edgefl.planning.workload import LEFT_OUT
from edgefl.scenario import load
from edgefl.setup.compose import planner_of
from tools.pages.fine_tune import MIB, SMALLEST, WAYS, of_towers
from tools.pages.markdown import table

SCENARIOS = {"finetune/vit-s-bert": "image", "finetune/qwen2.5-0.5b": "text"}
"""Scenarios, and the kind of client that each table is about."""
DEVICES = ("raspberry-pi-4-4gb", "raspberry-pi-5-8gb", "phone-mid", "jetson-orin-nano-8gb", "macbook-air-m1")
LINKS = ("wifi-5", "lte", "3g")
HALF = "HALF"
"""Stands in a way for half of each tower's blocks, by tower."""
LORA = "adapter={name: lora, rank: 8}"
TEN = {
    "full": WAYS["full"],
    "full, step in the backward pass, 8-bit AdamW": WAYS["full, both"],
    **{
        way: WAYS[way]
        for way in (
            "LoRA, rank 8, all linear layers",
            "LoRA, rank 8, over nf4 and bfloat16",
            "layer-wise, 3 stages",
            "frozen prefix, half of the blocks",
            SMALLEST,
        )
    },
    "split after 1 block, LoRA": ["schedule={name: split, after: 1, rounds: 100}", LORA],
    "split after half of the blocks, LoRA": [f"schedule={{name: split, after: {HALF}, rounds: 100}}", LORA],
    "zeroth order, LoRA": WAYS["zeroth order, LoRA"],
}
HEAD = ("way", "peak, MiB", "MB", *(f"{name}, s" for name in DEVICES))


@dataclass(frozen=True)
class WayFigures:
    """What one client's round of a way takes: the peak of its hardest stage, and means over the rounds."""

    peak_bytes: float
    moved_bytes: float
    """Down and up."""
    seconds: Mapping[str, Sequence[float]]
    """By device, over each of LINKS."""

    def cells(self) -> list[str]:
        """Its cells of a table; seconds stand in brackets where the device lacks the memory."""
        cells = [f"{self.peak_bytes / MIB:,.0f}", f"{self.moved_bytes / 1e6:,.1f}"]
        for name, over in self.seconds.items():
            words = " / ".join(f"{each:,.0f}" for each in over)
            cells.append(words if self.peak_bytes <= available_memory_bytes(load_device(name)) else f"({words})")
        return cells


def figures_of(scenario: str | dict[str, Any], kind: str, sets: Sequence[str], *, smallest: bool = False) -> WayFigures:
    """A way's figures, or those of its ``smallest`` stage."""
    halves = ", ".join(f"{tower}: {blocks // 2}" for tower, blocks in load(scenario).model.blocks.items())
    given = [each.replace(HALF, f"{{{halves}}}") for each in of_towers(scenario, sets)]
    planner = planner_of(load(scenario, [*given, "compare=null"]))
    workload = largest_workload(planner, subjects(planner, [kind], planner.setup.schedule.offered))
    works = [
        (stage.rounds, int(of_groups[0]))
        for stage, offered in zip(workload.stages, workload.candidates, strict=True)
        for of_groups in offered.values()
        if of_groups[0] != LEFT_OUT
    ]
    table = workload.table
    if smallest:
        works = [min(works, key=lambda each: table["memory"][each[1]])]
    rounds, at = (list(each) for each in zip(*works, strict=True))

    def mean(values: Floats) -> float:
        return float(np.average(values[at], weights=rounds))

    pairs = [(load_device(device), load_link(link)) for device in DEVICES for link in LINKS]
    seconds = [mean(each) for each in workload.prices.on(pairs, planner.setup.fleet.throttling).costs["seconds"]]
    return WayFigures(
        float(table["memory"][at].max()),
        mean(table["download_bytes"] + table["upload_bytes"]),
        dict(zip(DEVICES, np.reshape(seconds, (len(DEVICES), len(LINKS))).tolist(), strict=True)),
    )


def link_blocks() -> dict[str, str]:
    """A table for each scenario, by the name of its block."""
    return {
        f"{scenario} over links": table(
            HEAD,
            [[way, *figures_of(scenario, kind, sets, smallest=way == SMALLEST).cells()] for way, sets in TEN.items()],
            align=["---", *["---:"] * (len(HEAD) - 1)],
        )
        for scenario, kind in SCENARIOS.items()
    }
