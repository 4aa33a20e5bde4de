"""The page ``bibliography.md``: the papers that parts of edgefl come from."""

from __future__ import annotations

import re

from tools.pages.markdown import page, registered, table

GROUPS = {
    "methods": "method",
    "schedules": "schedule",
    "selections": "selection",
    "policies": "round policy",
    "aggregations": "aggregation rule",
    "server_optimizers": "server optimizer",
    "optimizers": "optimizer",
    "adapters": "adapter",
}
"""The groups whose parts name their ``paper``, and what a part is called."""


def bibliography_page() -> str:
    """Every paper with the parts that are made after it."""
    found: dict[str, dict[str, list[str]]] = {}
    for group, noun in GROUPS.items():
        for name, part in registered(group).items():
            if paper := getattr(part, "paper", ""):
                found.setdefault(paper, {}).setdefault(noun, []).append(f"`{name}`")
    rows = [
        (_linked(paper), "; ".join(f"{noun} {', '.join(names)}" for noun, names in parts.items()))
        for paper, parts in sorted(found.items())
    ]
    return page(
        "Bibliography",
        [
            "What edgefl's parts are made after, as their classes say it (`paper`). "
            "[Methods](../explanation/methods.md) and [schedules](../explanation/schedules.md) say what differs from "
            "the paper, [published tables](../papers/README.md) what was held against one.",
            table(("Paper", "Parts"), rows),
        ],
    )


def _linked(paper: str) -> str:
    """The paper with a link to arXiv where its number is known."""
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", paper)
