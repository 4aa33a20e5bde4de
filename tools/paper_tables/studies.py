"""Orderings that papers claim, and questions that they leave open, each with the small scenario that tests it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A claimed ordering, worst first; a term is a row or a difference such as ``prototype 50% - zero 50%``."""

    metrics: tuple[str, ...]
    order: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """A shipped scenario with its rows, and what is claimed of them.

    ``where`` says where the claim stands.  ``minutes`` of one core a seed takes, about.
    """

    name: str
    where: str
    scenario: str
    metrics: tuple[str, ...]
    claims: tuple[Claim, ...]
    minutes: float
    overrides: tuple[str, ...] = ()


RETRIEVAL = ("image-text.r@1_both", "image-text.r@10")
SINGLE = ("image.accuracy", "text.accuracy")
PAIRED = ("image-text.accuracy",)
ALONE = ("image-text.accuracy[image]", "image-text.accuracy[text]")
SORTED = ("image-audio.accuracy",)
SCHEDULES = ("end-to-end", "progressive", "layer-wise")
MEAN = ("mean.accuracy",)
BOTH = (*MEAN, *SINGLE)


def _claims(metrics: tuple[str, ...], *orders: tuple[str, ...]) -> tuple[Claim, ...]:
    return tuple(Claim(metrics, order) for order in orders)


def _behind(best: str, others: Sequence[str]) -> list[tuple[str, ...]]:
    return [(other, best) for other in others]


MASKS = (
    *((f"{mask} {q}", f"prototype {q}") for q in ("30%", "50%") for mask in ("zero", "random")),
    *(tuple(f"prototype {q} - {mask} {q}" for q in ("10%", "30%", "50%")) for mask in ("zero", "random")),
)
CLAIMED = (
    Study(
        "fedcola", "FedCola, Table 2", "papers/orderings-fedcola", (*RETRIEVAL, *SINGLE),
        _claims(RETRIEVAL, ("none", "+CA", "+CA+CP", "+CA+CP+CL")), 3.5,
    ),
    Study(
        "fedcola-layers", "FedCola, Table 3 and Fig. 5", "papers/orderings-fedcola-layers", RETRIEVAL,
        _claims(
            RETRIEVAL,
            *_behind("-> blocks", ("-> none", "-> frozen blocks", "-> mlp", "-> attention")),
            *_behind("attention", ("mlp", "blocks", "attention of all")),
        ), 10.0,
    ),
    Study(
        "fedcola-cohorts", "FedCola, Table 1", "papers/orderings-fedcola-cohorts", RETRIEVAL,
        _claims(
            RETRIEVAL,
            *((f"none, {c}", f"fedcola, {c}") for c in ("3, 3, 2", "1, 1, 1", "4, 3, 2", "3, 4, 2", "3, 3, 1")),
        ), 9.0,
    ),
    Study(
        "fedcola-mat", "MCFL, Fig. 7", "papers/orderings-fedcola-mat", BOTH,
        _claims(SINGLE, *_behind("attention", ("none", "all", "ffn"))), 3.5,
    ),
    Study(
        "pretrained", "MCFL, Table 1", "papers/orderings-pretrained", BOTH,
        (
            *_claims(SINGLE[:1], ("all", "none"), ("all", "attention"), ("all", "ffn"), ("none", "attention"),
                     ("ffn", "attention")),
            *_claims(SINGLE[:1], ("all from scratch", "none from scratch"),
                     ("none from scratch - all from scratch", "none - all")),
        ), 2.0,
    ),
    Study(
        "mcfl", "MCFL, Tables 1, 3, 5 and 6", "papers/orderings-mcfl", BOTH,
        _claims(
            MEAN, ("all", "none", "attention"), ("all", "all, balanced"), ("all, balanced", "attention"),
            ("attention", "+compensation", "+image warm-up"), ("+text warm-up", "+image warm-up"),
            ("+image warm-up and heat", "+image warm-up"),
        ), 1.4,
    ),
    Study(
        "creamfl", "CreamFL, Tables 1 and 3", "papers/orderings-creamfl", RETRIEVAL,
        _claims(
            RETRIEVAL, ("mean", "avg", "iot", "gca", "gca + intra", "creamfl"),
            ("gca", "gca + inter", "creamfl"),
            *_behind("creamfl", ("fedavg", "fediot", "fedmd", "fedet", "fedgems")),
        ), 5.4,
    ),
    Study("pmcmfl", "PmcmFL, Table 2", "papers/orderings-pmcmfl", PAIRED, _claims(PAIRED, *MASKS), 1.7),
    Study(
        "pmcmfl-iid", "PmcmFL, Table 2, IID", "papers/orderings-pmcmfl", PAIRED, _claims(PAIRED, *MASKS), 1.7,
        ("data.partition=iid",),
    ),
    Study(
        "pmcmfl-methods", "PmcmFL, Table 1 at 50 %", "papers/orderings-pmcmfl-methods", PAIRED,
        _claims(
            PAIRED,
            *_behind("pmcmfl", ("fedavg", "fedprox", "fediot", "fedpac", "fedhkd", "mask + alignment",
                                "mask + distillation", "mask")),
            ("fedavg", "mask"),
        ), 1.5,
    ),
    Study(
        "pmcmfl-matching", "PmcmFL, Table 3", "papers/orderings-pmcmfl-matching", (*ALONE, *PAIRED),
        _claims(ALONE, ("zero", "random", "l1", "classifier")), 0.8,
    ),
    Study(
        "eligibility", "LW-FedMML, Table V", "papers/orderings-eligibility", RETRIEVAL,
        _claims(
            RETRIEVAL, ("end-to-end 30%", "end-to-end 50%", "end-to-end 100%"),
            ("end-to-end 30%", "layer-wise"), ("end-to-end 50%", "layer-wise"), ("end-to-end 50%", "elastic 50%"),
            ("end-to-end 30%", "elastic 30%", "end-to-end 100%"),
            *_behind("elastic 30%", ("layer-wise", "heterofl 30%", "depthfl 30%")),
        ), 5.0,
    ),
    Study(
        "lw-allocation", "LW-FedMML, Table II", "papers/orderings-lw-allocation", RETRIEVAL,
        _claims(RETRIEVAL, ("uniform", "late")), 1.0,
    ),
    Study(
        "lw-partition", "LW-FedMML, Table VII", "papers/orderings-lw-partition", SORTED,
        _claims(
            SORTED, *((f"{s} 0.05", f"{s} 0.5") for s in SCHEDULES),
            *((f"end-to-end {b}", f"layer-wise {b}") for b in ("50", "0.5")),
        ), 4.0,
    ),
    Study(
        "lw-cohort", "LW-FedMML, Table VIII", "papers/orderings-lw-cohort", SORTED,
        _claims(SORTED, *((f"layer-wise {k}", f"progressive {k}", f"end-to-end {k}") for k in (12, 8, 4))), 6.0,
    ),
)  # fmt: skip
"""Claims of the papers, in the order of the page."""
OPEN = (
    Study(
        "three-modalities", "MCFL's outlook", "open/three-modalities", (*BOTH, "audio.accuracy"),
        _claims((*BOTH, "audio.accuracy"), ("all", "none", "attention")), 1.0,
    ),
    Study(
        "wrong-labels", "PmcmFL's conclusion", "open/wrong-labels", PAIRED,
        _claims(
            PAIRED, ("zeros, wrong labels", "zeros"), ("prototypes, wrong labels", "prototypes"),
            ("zeros - zeros, wrong labels", "prototypes - prototypes, wrong labels"),
        ), 1.0,
    ),
    Study(
        "few-public-pairs", "CreamFL, A.4", "open/few-public-pairs", RETRIEVAL,
        _claims(RETRIEVAL, ("64 pairs", "128 pairs", "256 pairs", "512 pairs"), ("64 pairs", "512 pairs")), 1.5,
    ),
    Study(
        "fedcola-schedules", "FedCola's limitations", "open/fedcola-schedules", (*MEAN, "image-text.r@10"),
        _claims(
            (*MEAN, "image-text.r@10"), ("end-to-end", "everybody fits"), ("end-to-end", "elastic"),
            ("end-to-end", "layer-wise"), ("elastic", "everybody fits"),
        ), 5.0,
    ),
    Study(
        "fedcola-rounds", "FedCola, Table 2", "open/fedcola-rounds", RETRIEVAL,
        _claims(
            RETRIEVAL, ("+CA, 60 - +CA+CP, 60", "+CA, 20 - +CA+CP, 20"), ("+CA, 60", "+CA+CP, 60"),
            ("+CA, 60", "+CA+CP+CL, 60"), ("+CA, pre-trained", "+CA+CP, pre-trained"),
        ), 7.0,
    ),
    Study(
        "range-all", "FedCola, section 6.1", "open/range-all", RETRIEVAL, _claims(RETRIEVAL, ("all", "in-modality")),
        2.0,
    ),
    Study(
        "domain-gap", "FedCola, Fig. 4", "open/domain-gap", RETRIEVAL,
        _claims(
            RETRIEVAL, ("glyphs, none", "glyphs, shared"),
            ("icons, shared - icons, none", "glyphs, shared - glyphs, none"),
            ("digits, shared - digits, none", "glyphs, shared - glyphs, none"),
        ), 5.0,
    ),
)  # fmt: skip
"""Questions that the authors leave open; a claim is what would be the case if the answer is yes."""
STUDIES = {study.name: study for study in (*CLAIMED, *OPEN)}
