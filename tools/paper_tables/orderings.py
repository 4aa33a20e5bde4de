"""papers/orderings.md: runs of the scenarios ``papers/orderings-*``, and their means and verdicts as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from edgefl.commands.compare.answer import Ordering, OrderingFigure
from edgefl.commands.compare.table import CLAIM_HEADER, claim_cells
from edgefl.commands.run.command import run
from edgefl.errors import RunError
from edgefl.runs import Run, is_comparison, read_run
from edgefl.runs.progress import OnProgress, silent
from edgefl.scenario import Scenario, load
from tools.paper_tables.page_tables import PageTable, Tolerance

# 0.02 is a choice: processors round sums differently, which training amplifies
TRAINED = Tolerance("training on another processor; verdicts and counts of seeds must be equal", absolute=0.02)
FOLLOW = ("95 % interval", "detectable", "seeds for 80 %")
"""Columns that follow from the gap and its deviation."""


@dataclass(frozen=True)
class OrderingSection:
    """A section of the page: its title, the name of its tables, and the scenarios that it runs with overrides."""

    heading: str
    name: str
    scenarios: tuple[str, ...]
    overrides: tuple[str, ...] = ()


SECTIONS = (
    OrderingSection("FedCola's ablation", "fedcola", ("orderings-fedcola",)),
    OrderingSection("Shared layers of a modality-agnostic transformer", "fedcola-mat", ("orderings-fedcola-mat",)),
    OrderingSection(
        "Shared layers of pre-trained blocks",
        "pretrained",
        ("orderings-pretrained-none", "orderings-pretrained-shared"),
    ),
    OrderingSection("CreamFL: GCA compared with the mean", "creamfl", ("orderings-creamfl",)),
    OrderingSection("Replacing a missing modality in training", "pmcmfl", ("orderings-pmcmfl",)),
    OrderingSection(
        "Replacing a missing modality in training", "pmcmfl-iid", ("orderings-pmcmfl",), ("data.partition=iid",)
    ),
    OrderingSection("Completing a single modality at inference", "pmcmfl-matching", ("orderings-pmcmfl-matching",)),
    OrderingSection(
        "Training with excluded clients",
        "eligibility",
        tuple(f"orderings-eligibility-{share}" for share in ("30", "50", "100", "depthfl")),
    ),
)
"""In the page's order."""


def trained_tables(
    folder: Path,
    on_progress: OnProgress = silent,
    *,
    sections: Sequence[OrderingSection] = SECTIONS,
    overrides: Sequence[str] = (),
) -> list[PageTable]:
    """Train the scenarios of the sections in folders below ``folder``, or resume them, and make two tables of each.

    Raises RunError for a folder with the runs of another scenario, and what ``edgefl.run`` raises.
    """
    orderings = import_module("edgefl.commands.compare.orderings")
    found = []
    for section in sections:
        runs: list[Run] = []
        for name in section.scenarios:
            scenario = load(f"papers/{name}", [*section.overrides, *overrides])
            place = name if len(section.scenarios) > 1 else f"orderings-{section.name}"
            runs += train_runs(scenario, folder / place, on_progress)
        (table,) = orderings.tables_of(runs)
        found += tables_of(section, orderings.ordering_of_study(table))
    return found


def train_runs(scenario: Scenario, folder: Path, on_progress: OnProgress) -> list[Run]:
    """The finished runs of what a scenario compares; those of an earlier call are read, and resumed if cut off."""

    def on_event(event: str, facts: Mapping[str, object]) -> None:
        if event != "done":  # the runs are only part of the page
            on_progress(event, facts)

    if not is_comparison(folder):
        return list(run(scenario, out=folder, on_progress=on_event).runs.values())
    wanted = {label: _what_counts(combination.to_data()) for label, combination in scenario.combinations()}
    for label, known in read_run(folder).runs.items():
        if _what_counts(known.scenario) != wanted.get(label):
            raise RunError(f"{folder} holds the run of another scenario ({label}); choose another folder")
    return list(run(resume=folder, on_progress=on_event).runs.values())


def _what_counts(resolved: Mapping[str, object]) -> dict[str, object]:
    """A resolved scenario without where it trains, which doesn't change results."""
    return {name: value for name, value in resolved.items() if name != "executor"}


def tables_of(section: OrderingSection, ordering: Ordering) -> list[PageTable]:
    """The means of the variants and the verdicts on the claims; ``ordering`` is an entry of ``edgefl.compare``'s."""
    metrics = {metric: metric.removeprefix("image-text.") for metric in ordering.metrics}
    means = tuple(
        (row.label, *(_mean(row.figures[metric]) for metric in metrics)) for row in ordering.rows
    )  # fmt: skip
    verdicts = tuple(
        (f"{claim.worse} < {claim.better}", metrics[claim.metric], *claim_cells(claim)) for claim in ordering.claims
    )
    return [
        PageTable(section.heading, section.name, ("variant", *metrics.values()), means, 1, TRAINED),
        PageTable(section.heading, f"{section.name}-claims", CLAIM_HEADER, verdicts, 2, TRAINED, FOLLOW),
    ]


def _mean(cell: OrderingFigure) -> str:
    return f"{cell.mean:.3f} ± {cell.deviation:.3f}"
