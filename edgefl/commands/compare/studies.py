"""Orderings that papers claim, and the shipped scenarios that test them at small scale (papers/orderings.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Fields = Mapping[str, str | float | bool | None]
"""Values of a scenario by dotted path."""


@dataclass(frozen=True)
class Claim:
    """A claimed ordering, worst first; a term is a variant or a difference such as "prototype 50% - zero 50%"."""

    metric: str
    order: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """The comparison of a scenario; ``variants`` maps names to the scenario fields that identify each."""

    variants: Mapping[str, Fields]
    metrics: tuple[str, ...]
    claims: tuple[Claim, ...]
    title: str


FEDCOLA: dict[str, Fields] = {
    "none": {"method.complementary": "none", "method.collaborate": "none", "method.compensation": False},
    "+CA": {"method.complementary": "none", "method.collaborate": "attention", "method.compensation": False},
    "+CA+CP": {"method.complementary": "none", "method.collaborate": "attention", "method.compensation": True},
    "+CA+CP+CL": {"method.complementary": "blocks", "method.collaborate": "attention", "method.compensation": True},
}
PRETRAINED: dict[str, Fields] = {
    f"{share}{how}": {"method.share": share, "pretrain.seed": seed}
    for how, seed in (("", 1), (" from scratch", None))
    for share in ("none", "attention", "ffn", "all")
}
MASKS = {
    f"{mask} {rate:.0%}": {"method.mask": mask, "data.missing.image-text.image": rate}
    for rate in (0.1, 0.3, 0.5)
    for mask in ("zero", "random", "prototype")
}
WEAK = "fleet.devices.raspberry-pi-3b-plus"
ELIGIBILITY: dict[str, Fields] = {
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
RETRIEVAL = ("image-text.r@1_both", "image-text.r@10")

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
    "orderings-pretrained": Study(
        PRETRAINED,
        ("image.accuracy", "image.balanced_accuracy", "text.accuracy", "text.balanced_accuracy"),
        tuple(
            Claim("image.accuracy", order)
            for order in (
                ("all", "none"),
                ("all", "attention"),
                ("all", "ffn"),
                ("none", "attention"),
                ("ffn", "attention"),
                ("all from scratch", "none from scratch"),
                ("none from scratch - all from scratch", "none - all"),
            )
        ),
        "shared parameters of pre-trained blocks",
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


def study_of(scenario: str) -> Study | None:
    """The study with the longest name that the scenario's name begins with; None if there is none."""
    matches = [name for name in STUDIES if scenario == name or scenario.startswith(f"{name}-")]
    return STUDIES[max(matches, key=len)] if matches else None
