"""What a page of ``edgefl sweep --page`` is about: a scenario, and its combinations of choices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from edgefl import __version__
from edgefl.commands.sweep.sweep_grid import SweepGrid, value_at
from edgefl.drawing.sliders.page_data import Choice, SliderAxis, SliderHead, SliderScenario
from edgefl.records.record import UNSET
from edgefl.scenario import Scenario
from edgefl.setup.compose import Given, at_most
from edgefl.yaml_lines import flow


class PageRequest(NamedTuple):
    """The combinations that a page has."""

    given: Given
    overrides: Sequence[str]
    whole: Scenario
    grid: SweepGrid

    def head(self) -> SliderScenario:
        """The fields of a page that say what was asked for."""
        given, is_path = self.given, isinstance(self.given, os.PathLike)
        return SliderScenario(
            scenario=self.whole.name,
            at_most=at_most(each for label, each in self.grid.cells if label not in self.grid.refused) or UNSET,
            given=os.fspath(given) if isinstance(given, str) or is_path else self.whole.name,  # type: ignore[arg-type]
            overrides=list(self.overrides),
            compares=bool(self.whole.compare),
            edgefl=__version__,
            axes=self.axes(),
        )

    def axes(self) -> list[SliderAxis]:
        """The fields that cells differ in."""
        grid, axes = self.grid, list[SliderAxis]()
        plain = {k: v for k, v in self.whole.to_data().items() if k != "compare"}
        step = len(grid.cells)
        for path, key, values, words in zip(grid.paths, grid.keys, grid.values, grid.words, strict=True):
            step //= len(values)
            resolved = [value_at(grid.cells[i * step][1].to_data(), key) for i in range(len(values))]
            own = value_at(plain, key)
            choices = [Choice(label=word, text=flow(value)) for word, value in zip(words, values, strict=True)]
            axes.append(SliderAxis(path=path, choices=choices, own=resolved.index(own) if own in resolved else None))
        return axes

    def cells(self) -> list[SliderHead]:
        """Label and choices of each cell."""
        choices = product(*(range(len(values)) for values in self.grid.values))
        return [SliderHead(label=label, at=list(at)) for (label, _), at in zip(self.grid.cells, choices, strict=True)]
