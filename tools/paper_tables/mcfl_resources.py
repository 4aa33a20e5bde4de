"""docs/evidence/papers/mcfl-resources.md: a round's FLOPs and bytes in the paper on the modality-agnostic FedCola."""

from __future__ import annotations

from tools.paper_tables.page_tables import CopiedCell, PageTable, mib, ratio
from tools.paper_tables.profiles import Profiles
from tools.paper_tables.published_tables import published

PUBLISHED = published("mcfl").fact("computation")
"""CreamFL's computation to FedAvg's, the paper's only number."""
HEAT = "method.warmup.heat=5"
TABLE = "method.old=table"
JOINT = "method.steps=joint"
METHODS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Uni-FedAVG (`share: none`)", "fedavg", ()),
    ("FedCola (`share: attention`)", "fedcola", ()),
    ("FedCola with warm-up, 5 rounds of images", "fedcola-warmup", ()),
    ("the same, then 5 of heat distribution", "fedcola-warmup", (HEAT,)),
    ("CreamFL", "creamfl", ()),
)
LOSSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("an epoch over the 500 public pairs after each private epoch (default, CreamFL's public code)", ()),
    ("the same with `method.old=table`", (TABLE,)),
    ("a public batch beside every private one (`method.steps=joint`, the loss of CreamFL's paper)", (JOINT,)),
    ("the same with `method.old=table`", (JOINT, TABLE)),
)


def mean(profiles: Profiles, name: str, field: str, *overrides: str) -> float:
    """A cost of a round, clients and server together, as the mean over the schedule's rounds."""
    totals = profiles.profile_of(f"mcfl-resources-{name}", *overrides).round_totals
    return float(sum(getattr(t, field) * t.rounds for t in totals) / sum(t.rounds for t in totals))


def flops(profiles: Profiles, name: str, *overrides: str) -> float:
    """Forward and backward FLOPs of a round."""
    return sum(mean(profiles, name, f"{way}_flops", *overrides) for way in ("forward", "backward"))


def both_ways(profiles: Profiles, name: str, *overrides: str) -> float:
    """Bytes of a round, down and up."""
    return sum(mean(profiles, name, f"{way}_bytes", *overrides) for way in ("download", "upload"))


def tables(profiles: Profiles) -> list[PageTable]:
    """The page's two tables."""
    base, base_bytes = flops(profiles, "fedavg"), both_ways(profiles, "fedavg")
    rows = []
    for title, name, overrides in METHODS:
        computed, moved = flops(profiles, name, *overrides), both_ways(profiles, name, *overrides)
        rows.append((title, _e15(computed), _to(computed, base), mib(moved, 2), _to(moved, base_bytes)))
    losses: list[tuple[str, ...]] = [("published", "", CopiedCell(PUBLISHED))]
    for title, overrides in LOSSES:
        computed = flops(profiles, "creamfl", *overrides)
        losses.append((title, _e15(computed), ratio(computed, base)))
    header = ("", "FLOPs", "against FedAvg", "bytes both ways, MiB", "against FedAvg")
    return [
        PageTable("", "rounds", header, tuple(rows)),
        PageTable("CreamFL's computation", "creamfl", header[:3], tuple(losses)),
    ]


def _e15(value: float) -> str:
    return f"{value / 1e15:.3f}e15"


def _to(value: float, base: float) -> str:
    return "1" if value == base else ratio(value, base)
