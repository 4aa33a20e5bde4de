"""A progress bar for programs and notebooks: tqdm's if it is installed, otherwise rich's."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

from edgefl.report.progress import Live, Progress


class Bar(Progress):
    """tqdm's bar over all rounds of all combinations, with stage, virtual clock and metrics beside it."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tqdm warns in a notebook without widgets, where it prints a plain bar
            from tqdm.auto import tqdm

            self._bar: Any = tqdm(
                total=100, bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining} {postfix}", leave=True
            )

    def on_event(self, event: str, facts: Mapping[str, Any]) -> None:
        """Move the bar and show the round under way."""
        if event == "prepare":
            self._bar.set_description_str(facts["what"], refresh=True)
        elif event == "combination":
            self._bar.set_description_str(self.where, refresh=False)
        elif event in ("round", "trained", "scored", "record"):
            words = [self.doing, *(self.status()[:2] if self.record else ()), self.scores()]
            self._bar.set_description_str(self.where, refresh=False)
            self._bar.set_postfix_str(", ".join(word for word in words if word), refresh=False)
        self._bar.update(max(100 * self.share - self._bar.n, 0.0))
        self._bar.refresh()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._bar.update(100 - self._bar.n)
        self._bar.close()

    def __enter__(self) -> Self:
        return self


def make_bar() -> Bar | Live:
    """The bar of tqdm if that is installed, otherwise rich's."""
    return Bar() if find_spec("tqdm") is not None else Live()
