"""The pages of docs/papers: what is on each, and about how long it takes to make its tables again."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from edgefl.errors import UnknownName


@dataclass(frozen=True)
class Page:
    """A page of docs/papers, made again by the module of its name in this package.

    ``minutes`` are those of the predictions on one core with an empty cache, ``training_hours`` those of the training
    that its tables need.
    """

    name: str
    what: str
    tables: int
    figures: int = 0
    minutes: float = 0.0
    training_hours: float = 0.0

    @property
    def module(self) -> Any:
        """The module with the page's ``tables``, imported on first use."""
        return import_module(f"edgefl.commands.papers.{self.name.replace('-', '_')}")

    def facts(self) -> dict[str, Any]:
        """The page as plain data."""
        return {
            "page": self.name,
            "what": self.what,
            "tables": self.tables,
            "figures": self.figures,
            "minutes": self.minutes,
            "training_hours": self.training_hours,
        }


PAGES = {
    page.name: page
    for page in (
        Page("fedcola-colayer", "FedCola's co-layer downloads", 1, minutes=1),
        Page("mcfl-resources", "FLOPs and bytes of a round", 2, minutes=1),
        Page("pmcmfl", "PmcmFL's prototypes, memory", 5, minutes=5),
        Page("lw-fedmml", "LW-FedMML's three schedules", 8, 1, minutes=5),
        Page("fedcola-layerwise", "FedCola layer by layer", 4, 1, minutes=10),
        Page("orderings", "orderings over three seeds", 14, training_hours=1),
    )
}


def pages_of(names: tuple[str, ...]) -> list[Page]:
    """The pages of these names, all for none.  Raises UnknownName."""
    for name in names:
        if name not in PAGES:
            raise UnknownName("page of docs/papers", name, PAGES)
    return [PAGES[name] for name in dict.fromkeys(names or PAGES)]


def list_papers() -> dict[str, Any]:
    """The pages, what is on each, and about how long it takes: ``pages``."""
    return {"pages": [page.facts() for page in PAGES.values()]}
