"""Orderings of methods over several seeds: whether each holds, is reversed, or is within the spread.

    python tools/orderings.py runs/orderings-fedcola [more runs ...]

Each folder is a finished or unfinished comparison (``edgefl run scenarios/papers/orderings-*.yaml``).  The output is
Markdown: mean and standard deviation (n - 1) of each variant's last evaluation, over the seeds with all variants, and a
verdict for each claimed ordering (worst first).  An ordering holds if its gap of means exceeds the larger of the two
standard deviations, and is reversed if the opposite gap does; otherwise there is no ordering.  The table also has the
gap's own deviation over seeds and the number of seeds in which the better variant is ahead: a seed draws the same data,
initial weights and cohorts for every variant, so seeds are paired.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from edgefl import read_run
from edgefl.errors import EdgeflError
from edgefl.runs import Run


@dataclass(frozen=True)
class Claim:
    """A claimed ordering, worst first; a term is a variant or a difference such as "prototype 50% - zero 50%"."""

    metric: str
    order: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """The comparison of a scenario; ``variants`` maps names to the scenario fields that identify each."""

    variants: Mapping[str, Mapping[str, Any]]
    metrics: tuple[str, ...]
    claims: tuple[Claim, ...]
    title: str


FEDCOLA = {
    "none": {"method.complementary": "none", "method.collaborate": "none", "method.compensation": False},
    "+CA": {"method.complementary": "none", "method.collaborate": "attention", "method.compensation": False},
    "+CA+CP": {"method.complementary": "none", "method.collaborate": "attention", "method.compensation": True},
    "+CA+CP+CL": {"method.complementary": "blocks", "method.collaborate": "attention", "method.compensation": True},
}
MASKS = {
    f"{mask} {rate:.0%}": {"method.mask": mask, "data.missing.image-text.image": rate}
    for rate in (0.1, 0.3, 0.5)
    for mask in ("zero", "random", "prototype")
}
WEAK = "fleet.devices.raspberry-pi-3b-plus"
ELIGIBILITY: dict[str, dict[str, Any]] = {
    "end-to-end 30%": {"schedule.name": "end-to-end", WEAK: 0.7},
    "end-to-end 50%": {"schedule.name": "end-to-end", WEAK: 0.5},
    "layer-wise": {"schedule.name": "layerwise", WEAK: 0.7},
    "heterofl 30%": {"schedule.name": "heterofl", WEAK: 0.7},
    "depthfl 30%": {"method.name": "depthfl", WEAK: 0.7},
    "elastic 30%": {"schedule.name": "elastic", "method.name": "fedavg", WEAK: 0.7},
    "elastic 50%": {"schedule.name": "elastic", WEAK: 0.5},
    "end-to-end 100%": {"schedule.name": "end-to-end", WEAK: None},
}
PAIRED = ("image-text.accuracy", "image-text.balanced_accuracy")
ALONE = ("image-text.accuracy[image]", "image-text.accuracy[text]")
RETRIEVAL = ("image-text.r@1_sum", "image-text.r@10")

STUDIES = {
    "orderings-fedcola": Study(
        FEDCOLA,
        (*RETRIEVAL, "image.accuracy", "text.accuracy"),
        tuple(Claim(metric, ("none", "+CA", "+CA+CP", "+CA+CP+CL")) for metric in RETRIEVAL),
        "FedCola's ablation",
    ),
    "orderings-fedcola-mat": Study(
        {share: {"method.share": share} for share in ("none", "attention", "ffn", "all")},
        ("image.accuracy", "image.balanced_accuracy", "text.accuracy", "text.balanced_accuracy"),
        tuple(
            Claim(f"{kind}.accuracy", order)
            for kind in ("image", "text")
            for order in (("none", "attention"), ("all", "attention"), ("ffn", "attention"))
        ),
        "shared parameters of the modality-agnostic transformer",
    ),
    "orderings-creamfl": Study(
        {rule: {"method.aggregation": rule} for rule in ("mean", "gca")},
        RETRIEVAL,
        tuple(Claim(metric, ("mean", "gca")) for metric in RETRIEVAL),
        "aggregation of representations",
    ),
    "orderings-pmcmfl": Study(
        MASKS,
        PAIRED,
        (
            *(
                Claim(PAIRED[0], (f"{mask} {q}", f"prototype {q}"))
                for q in ("10%", "30%", "50%")
                for mask in ("zero", "random")
            ),
            *(
                Claim(PAIRED[0], tuple(f"prototype {q} - {mask} {q}" for q in rates))
                for mask in ("zero", "random")
                for rates in (("10%", "30%", "50%"), ("10%", "50%"))
            ),
        ),
        "replacement of a missing modality in training",
    ),
    "orderings-pmcmfl-matching": Study(
        {by: {"method.inference": by} for by in ("zero", "random", "l1", "classifier")},
        (*ALONE, PAIRED[0]),
        tuple(Claim(metric, ("zero", "random", "l1", "classifier")) for metric in ALONE),
        "completion of a single modality at inference",
    ),
    "orderings-eligibility": Study(
        ELIGIBILITY,
        ("eligible", *RETRIEVAL),
        tuple(
            Claim(metric, order)
            for metric in RETRIEVAL
            for order in (
                ("end-to-end 30%", "end-to-end 50%", "end-to-end 100%"),
                ("end-to-end 30%", "layer-wise"),
                ("end-to-end 50%", "layer-wise"),
                ("end-to-end 30%", "elastic 30%"),
                ("end-to-end 50%", "elastic 50%"),
                ("layer-wise", "elastic 30%"),
                ("heterofl 30%", "elastic 30%"),
                ("depthfl 30%", "elastic 30%"),
                ("elastic 30%", "end-to-end 100%"),
            )
        ),
        "eligibility of clients",
    ),
}
"""Studies by the name of the scenario, or the beginning of its name."""


@dataclass
class Table:
    """Values by variant, metric and seed."""

    study: Study
    values: dict[str, dict[str, dict[int, float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )

    @property
    def variants(self) -> list[str]:
        """Variants with a finished run."""
        return [variant for variant in self.study.variants if self.values.get(variant)]

    @property
    def seeds(self) -> list[int]:
        """Seeds for which all these variants are finished."""
        seeds = [set(next(iter(self.values[v].values()))) for v in self.variants]
        return sorted(set.intersection(*seeds)) if seeds else []

    def of(self, term: str, metric: str) -> list[float]:
        """Values by seed of a variant, or of the difference of two variants."""
        first, *second = term.split(" - ")
        values = [self.values[first][metric][seed] for seed in self.seeds]
        return values if not second else [a - b for a, b in zip(values, self.of(second[0], metric), strict=True)]


@dataclass(frozen=True)
class Verdict:
    """Verdict on a pair: ``gap`` of the means with its ``own`` deviation over seeds, the ``spread`` to exceed, and the
    number of seeds in which the better variant is ahead."""

    gap: float
    own: float
    spread: float
    ahead: int
    seeds: int

    @property
    def word(self) -> str:
        """Whether the ordering holds beyond the spread."""
        if self.seeds < 2:
            return "one seed: no ordering"
        if abs(self.gap) <= self.spread:
            return "no ordering"
        return "holds" if self.gap > 0 else "reversed"


def judge(worse: Sequence[float], better: Sequence[float]) -> Verdict:
    """Compare the values of two variants, seed by seed."""
    spread = max(map(deviation, (worse, better)))
    ahead = sum(b > a for a, b in zip(worse, better, strict=True))
    gaps = [b - a for a, b in zip(worse, better, strict=True)]
    return Verdict(fmean(better) - fmean(worse), deviation(gaps), spread, ahead, len(worse))


def deviation(values: Sequence[float]) -> float:
    """Standard deviation of a sample; 0 for a single value."""
    return stdev(values) if len(values) > 1 else 0.0


def read(folders: Iterable[Path]) -> dict[str, Table]:
    """Tables of finished runs by the title of their study.  Raises EdgeflError if a folder isn't a run."""
    tables: dict[str, Table] = {}
    for folder in folders:
        comparison = read_run(folder)
        for run in list(comparison.runs.values()) or [comparison]:
            study = study_of(str(run.scenario["name"]))
            if study is None or not run.finished:
                continue
            table = tables.setdefault(study.title, Table(study))
            for variant in study.variants:
                if is_variant(study, variant, run.scenario):
                    for metric in study.metrics:
                        table.values[variant][metric][int(run.scenario["seed"])] = measured(run, metric)
    return tables


def study_of(scenario: str) -> Study | None:
    """The study with the longest name that the scenario's name begins with; None if there is none."""
    matches = [name for name in STUDIES if scenario == name or scenario.startswith(f"{name}-")]
    return STUDIES[max(matches, key=len)] if matches else None


def is_variant(study: Study, variant: str, scenario: Mapping[str, Any]) -> bool:
    """Whether a resolved scenario is this variant."""
    return all(looked_up(scenario, path) == value for path, value in study.variants[variant].items())


def looked_up(scenario: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path of a resolved scenario; None if there is none."""
    value: Any = scenario
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def measured(run: Run, metric: str) -> float:
    """A metric of the last evaluation; ``eligible`` is the share of clients that were eligible at least once."""
    if metric == "eligible":
        eligible = defaultdict[int, bool](bool)
        for row in run.each("eligibility"):
            eligible[row["client"]] |= bool(row["eligible"])
        return fmean(map(float, eligible.values()))
    kind, name = metric.split(".", 1)
    return float(run.result["metrics"][kind][name])


def markdown(table: Table) -> list[str]:
    """Markdown lines with the table of means and the verdicts."""
    study, seeds = table.study, table.seeds
    if not seeds:
        return ["no seed has a finished run of every variant yet"]
    lines = [
        f"Mean ± standard deviation over seeds {', '.join(map(str, seeds))}.",
        "",
        f"| variant | {' | '.join(study.metrics)} |",
        f"| --- |{' --- |' * len(study.metrics)}",
    ]
    for variant in table.variants:
        cells = [table.of(variant, metric) for metric in study.metrics]
        lines.append(f"| {variant} | {' | '.join(f'{fmean(c):.3f} ± {deviation(c):.3f}' for c in cells)} |")
    lines += ["", "| claimed | metric | gap | spread | seeds | verdict |", "| --- | --- | --- | --- | --- | --- |"]
    for claim in study.claims:
        for worse, better in zip(claim.order, claim.order[1:], strict=False):
            if not {part for term in (worse, better) for part in term.split(" - ")} <= set(table.variants):
                continue
            verdict = judge(table.of(worse, claim.metric), table.of(better, claim.metric))
            lines.append(
                f"| {worse} < {better} | {claim.metric} | {verdict.gap:+.3f} ± {verdict.own:.3f} | "
                f"{verdict.spread:.3f} | {verdict.ahead} of {verdict.seeds} | {verdict.word} |"
            )
    if missing := [variant for variant in study.variants if variant not in table.variants]:
        lines += ["", f"Not run: {', '.join(missing)}."]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every study of the folders; exit code 2 for a folder that can't be read or has no finished run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of comparisons")
    try:
        tables = read(parser.parse_args(arguments).runs)
    except EdgeflError as error:
        print(f"orderings: error: {error}", file=sys.stderr)
        return 2
    if not tables:
        print(f"orderings: error: no finished run of {', '.join(STUDIES)} in these folders", file=sys.stderr)
        return 2
    for title, table in tables.items():
        print(f"### {title}\n", *markdown(table), "", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
