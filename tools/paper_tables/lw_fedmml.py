"""docs/evidence/papers/lw-fedmml.md: LW-FedMML's traffic, MACs and memory on COCO and ADVANCE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.commands.profile.answer import ProfileRow
from edgefl.commands.profile.chart import stages_chart
from edgefl.drawing.figures import draw_figure
from tools.paper_tables.page_tables import CopiedCell, PageTable, alike, mib, ratio
from tools.paper_tables.profiles import LIVE, Profiles, highest
from tools.paper_tables.published_tables import published

RUNS = {"fedmml": "FedMML", "prog-fedmml": "Prog-FedMML", "lw-fedmml": "LW-FedMML"}
PAPER = published("fedmml")
TRAFFIC = {run: int(PAPER.fact(f"traffic-{run}")) for run in RUNS}
"""Published, of one client in 90 rounds, MiB."""
MACS = {run: PAPER.fact(f"macs-{run}") / 1e12 for run in RUNS}
"""Published, of a sample, 10^12."""
READINGS = {run: int(PAPER.fact(f"memory-{run}")) for run in RUNS}
"""Published, MiB of GPU memory of a process."""
RATIOS = {run: "1" if run == "fedmml" else f"{reading / READINGS['fedmml']:.3f}" for run, reading in READINGS.items()}
"""Of the published readings to FedMML's."""
ADVANCE_RATIOS = tuple(PAPER.facts[name].all for name in ("advance-prog", "advance-lw"))
"""Published, of Prog-FedMML's and LW-FedMML's memory, FLOPs and traffic to FedMML's on ADVANCE."""
ADVANCE_RATIO = ADVANCE_RATIOS[-1][0]
BATCHES = (32, 64, 128, 256, 512, 1024)
"""Doubled around BATCH, so that the page shows which part of the peak grows with the batch."""
BATCH = 256
"""The scenarios' batch size."""
LAST = 6
"""The last stage, where the peak of every schedule is."""
MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "inputs", "temporaries")
EFFICIENT = "training.attention=efficient"


def total(profiles: Profiles, run: str, data: str, *overrides: str) -> Mapping[str, Any]:
    """Costs of the whole schedule for the only client kind, and the peak of its live memory."""
    found = profiles.profile_of(f"{run}-{data}", *overrides)
    (costs,) = found.totals
    return {**costs.to_data(), LIVE: highest(found.rows)}


def peak(profiles: Profiles, run: str, batch: int = BATCH) -> float:
    """MiB of live memory on COCO: the peak of the last stage, which is the schedule's."""
    if batch == BATCH:
        rows = profiles.profile_of(f"{run}-coco").rows
    else:
        stage = None if run == "fedmml" else LAST
        rows = profiles.profile_of(f"{run}-coco", f"training.batch={batch}", stage=stage).rows
    return rows[-1].live_memory_bytes / 2**20


def constant(profiles: Profiles) -> float:
    """MiB beside the tensors that fit the three published readings best: their mean difference."""
    return sum(READINGS[run] - peak(profiles, run) for run in RUNS) / len(RUNS)


def figures(profiles: Profiles, folder: Path) -> list[Path]:
    """Draw the page's figures: each stage's costs on COCO, and on ADVANCE."""
    paths = {"coco": folder / "lw-fedmml.png", "advance": folder / "lw-fedmml-advance.png"}
    for data, path in paths.items():
        names = (f"{run}-{data}" for run in RUNS)
        draw_figure(stages_chart({name: profiles.profile_of(name) for name in names}, LIVE), path)
    return [*paths.values()]


def tables(profiles: Profiles) -> list[PageTable]:
    """The page's eight tables."""
    return [
        _schedules(profiles), _memory(profiles), _readings(profiles), _batches(profiles), _advance(profiles),
        _advance_memory(profiles), _advance_traffic(profiles), _advance_ratios(profiles),
    ]  # fmt: skip


def _rounds(rows: Sequence[ProfileRow]) -> str:
    rounds = [row.rounds for row in rows]
    if len(rounds) == 1:
        return f"{rounds[0]}, all at once"
    return f"{rounds[0]} each" if len(set(rounds)) == 1 else ", ".join(map(str, rounds))


def _schedules(profiles: Profiles) -> PageTable:
    totals = {run: total(profiles, run, "coco") for run in RUNS}
    rows = (
        ("rounds of stages 1 to 6", *(_rounds(profiles.profile_of(f"{run}-coco").rows) for run in RUNS)),
        ("traffic, MiB: published", *(CopiedCell(f"{TRAFFIC[run]:,}") for run in RUNS)),
        ("traffic, MiB: edgefl", *(mib(totals[run]["traffic_bytes"], 2) for run in RUNS)),
        ("MACs of a sample: published", *(CopiedCell(f"{MACS[run]:.2f}e12") for run in RUNS)),
        (
            "MACs of a sample: edgefl",
            *(f"{totals[run]['fvcore_macs_per_sample_all_rounds'] / 1e12:.3f}e12" for run in RUNS),
        ),
        ("live memory, MiB: edgefl", *(mib(totals[run][LIVE], 1) for run in RUNS)),
        ("GPU memory of the process, MiB: published", *(CopiedCell(f"{READINGS[run]:,}") for run in RUNS)),
    )
    return PageTable("", "schedules", ("one client, 90 rounds", *RUNS.values()), rows)


def _memory(profiles: Profiles) -> PageTable:
    rows = []
    for run, title in RUNS.items():
        for row in profiles.profile_of(f"{run}-coco").rows:
            stage = row.stage
            label = title if run == "fedmml" else f"{title} {stage}" if stage == 1 else str(stage)
            held = profiles.live_parts(f"{run}-coco", row.kind, stage)
            rows.append((label, *(mib(held[part], 1) for part in MEMORY_PARTS), mib(row.live_memory_bytes, 1)))
    return PageTable("Memory by part", "memory", ("", *MEMORY_PARTS, "peak"), tuple(rows))


def _readings(profiles: Profiles) -> PageTable:
    peaks = {run: peak(profiles, run) for run in RUNS}
    more = constant(profiles)
    whole = peaks["fedmml"]

    def to_first(added: float) -> list[str]:
        return ["1", *(ratio(peaks[run] + added, whole + added) for run in list(RUNS)[1:])]

    rows = (
        ("published reading", *(CopiedCell(f"{READINGS[run]:,}") for run in RUNS)),
        ("edgefl, tensors", *(f"{peaks[run]:,.1f}" for run in RUNS)),
        ("reading less tensors", *(f"{READINGS[run] - peaks[run]:,.0f}" for run in RUNS)),
        (f"tensors + {more:,.0f}", *(f"{peaks[run] + more:,.0f}" for run in RUNS)),
        ("**ratio to FedMML**: published", *(CopiedCell(RATIOS[run]) for run in RUNS)),
        ("of tensors", *to_first(0.0)),
        ("with the constant", *to_first(more)),
    )
    return PageTable("Comparison with the published readings", "readings", ("MiB", *RUNS.values()), rows)


def _batches(profiles: Profiles) -> PageTable:
    found = {run: [f"{peak(profiles, run, batch):,.1f}" for batch in BATCHES] for run in ("fedmml", "lw-fedmml")}
    rows = (("FedMML, Prog-FedMML", *found["fedmml"]), ("LW-FedMML", *found["lw-fedmml"]))
    return PageTable("Batch size", "batch-size", ("batch", *(f"{batch:,}" for batch in BATCHES)), rows)


ADVANCE = "ADVANCE: pictures and sounds"


def _advance(profiles: Profiles) -> PageTable:
    totals = {run: total(profiles, run, "advance") for run in RUNS}
    rows = []
    shown: tuple[tuple[str, str, Callable[[float], str]], ...] = (
        ("peak memory, MiB", LIVE, lambda value: mib(value, 1)),
        ("MACs of a sample", "fvcore_macs_per_sample_all_rounds", lambda value: f"{value / 1e13:.3f}e13"),
        ("traffic, MiB", "traffic_bytes", lambda value: mib(value, 2)),
    )
    for (title, field, show), *printed in zip(shown, *ADVANCE_RATIOS, strict=True):
        whole, prog, layers = (totals[run][field] for run in RUNS)
        rows.append((title, show(whole), show(prog), ratio(prog, whole), show(layers), ratio(layers, whole)))
        of_prog, of_layers = (CopiedCell(f"{value:.2f}") for value in printed)
        rows.append((f"{title.partition(',')[0]}: published", "", "", of_prog, "", of_layers))
    header = ("", "FedMML", "Prog-FedMML", "ratio", "LW-FedMML", "ratio")
    return PageTable(ADVANCE, "advance", header, tuple(rows))


def _advance_memory(profiles: Profiles) -> PageTable:
    cells = {}
    for run in RUNS:
        last = profiles.profile_of(f"{run}-advance").rows[-1]
        held = profiles.live_parts(f"{run}-advance", last.kind, last.stage)
        cells[run] = [mib(held[part], 1) for part in MEMORY_PARTS]
    rows = (
        ("FedMML, Prog-FedMML", *map(alike, zip(cells["fedmml"], cells["prog-fedmml"], strict=True))),
        ("LW-FedMML", *cells["lw-fedmml"]),
    )
    return PageTable(ADVANCE, "advance-memory", ("", *MEMORY_PARTS), rows)


PARTS = {
    "embedding": "embedding", "blocks": "blocks", "norms": "norm", "projections": "rep",
    "classifier": "head", "pooler": "pooler", "buffers": "buffers",
}  # fmt: skip
"""Parts of a model's state as the page names them, and their names in a profile."""


def traffic_by_part(profiles: Profiles, run: str) -> dict[str, int]:
    """Bytes both ways over the schedule on ADVANCE, by part; final blocks of a stage are sent once more."""
    rows = profiles.profile_of(f"{run}-advance").rows
    both = ("download_bytes_by_part", "upload_bytes_by_part")
    sent = {
        part: sum(row.rounds * getattr(row, field).get(part, 0) for row in rows for field in both)
        for part in PARTS.values()
    }
    # what a schedule delivers beyond its rounds (deliver_final) are blocks only
    sent["blocks"] += int(total(profiles, run, "advance")["traffic_bytes"]) - sum(
        row.rounds * (row.download_bytes + row.upload_bytes) for row in rows
    )
    return sent


def _advance_traffic(profiles: Profiles) -> PageTable:
    rows = []
    for run, title in RUNS.items():
        sent = traffic_by_part(profiles, run)
        rows.append((title, *(mib(sent[part], 2) if sent[part] else "0" for part in PARTS.values())))
    return PageTable(ADVANCE, "advance-traffic", ("", *PARTS), tuple(rows))


def _advance_ratios(profiles: Profiles) -> PageTable:
    more = round(constant(profiles))
    columns = []
    for overrides in ((), (EFFICIENT,)):
        whole, layers = (total(profiles, run, "advance", *overrides)[LIVE] / 2**20 for run in ("fedmml", "lw-fedmml"))
        beside = (ADVANCE_RATIO * whole - layers) / (1 - ADVANCE_RATIO)
        columns.append(
            (CopiedCell(ADVANCE_RATIO), ratio(layers, whole), ratio(layers + more, whole + more), f"{beside:,.0f}")
        )
    labels = (
        "published", "tensors", f"with the {more:,} MiB that fit COCO's readings",
        f"MiB beside the tensors that would give {ADVANCE_RATIO}",
    )  # fmt: skip
    header = ("ratio of LW-FedMML's memory to FedMML's", "`attention: math`", "`attention: efficient`")
    return PageTable(ADVANCE, "advance-ratios", header, tuple(zip(labels, *columns, strict=True)))
