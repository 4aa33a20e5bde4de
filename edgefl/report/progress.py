"""Progress of a command: a live line on a terminal, plain lines elsewhere; both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

from edgefl import units

SHORT = {"accuracy": "acc", "soft_score": "score", "r@10": "R@10"}
"""The metrics that fit into a line."""


class _Progress:
    """What has been on_event so far, and how long the rest may take."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.label, self.index, self.of = "", 0, 1
        self.round, self.rounds = 0, 0
        self.began, self._from = time.monotonic(), 0.0
        self.metrics: Mapping[str, Mapping[str, float]] = {}
        self.record: Mapping[str, Any] = {}

    def __call__(self, event: str, facts: Mapping[str, Any]) -> None:
        """Hear an event of a command (``on_progress``)."""
        if event == "combination":
            self.folder = facts.get("folder", self.folder)
            self.label, self.index, self.of = facts["label"], facts["index"], facts["of"]
            self.round, self.rounds, self.metrics = 0, 0, {}
        elif event == "start":
            self.round, self.rounds = facts["round"], facts["rounds"]
            if not self._from:
                self.began, self._from = time.monotonic(), self.share
        elif event == "record":
            self.round, self.record = facts["round"], facts
            self.metrics = facts["metrics"] or self.metrics
        self.on_event(event, facts)

    def on_event(self, event: str, facts: Mapping[str, Any]) -> None:
        """Show it."""

    @property
    def share(self) -> float:
        """How much of all rounds of all combinations is done, taking them as equally long."""
        return (self.index + (self.round / self.rounds if self.rounds else 0.0)) / self.of

    @property
    def eta(self) -> str:
        """Wall time that is left at the pace so far."""
        done = self.share - self._from
        if done <= 0:
            return "--"
        return units.show_seconds((time.monotonic() - self.began) * (1 - self.share) / done)

    @property
    def where(self) -> str:
        """Label, and which combination of how many."""
        return f"{self.label} ({self.index + 1} of {self.of})" if self.of > 1 else self.label

    def scores(self) -> str:
        """The latest metrics in few words: ``image acc 0.48``."""
        words = []
        for kind, values in self.metrics.items():
            words += [f"{kind} {short} {values[name]:.3f}" for name, short in SHORT.items() if name in values]
        return ", ".join(words)

    def line(self) -> str:
        """A finished round in one line."""
        words = [f"{self.where}: round {self.record['round']}/{self.rounds}", *self.status()]
        if self.record["metrics"]:
            words.append(self.scores())
        return ", ".join([*words, f"ETA {self.eta}"] if self.share < 1 else words)

    @property
    def warning(self) -> str:
        """Whose updates the last finished round left out, in a line; empty where it took them all."""
        clients = self.record.get("rejected", ())
        if not clients:
            return ""
        whose = f"client {clients[0]}'s update" if len(clients) == 1 else f"updates of clients {_some(clients)}"
        where = "it" if len(clients) == 1 else "them"
        return f"warning: {self.where}: round {self.round} left out {whose}: NaN or infinity in {where}"

    def status(self) -> list[str]:
        """Stage, virtual clock and who took part in the last finished round."""
        r = self.record
        able, everyone = sum(r["eligible"].values()), sum(r["clients"].values())
        return [
            f"stage {r['stage']}",
            f"clock {units.show_seconds(r['started_virtual_seconds'] + r['virtual_seconds'])}",
            f"eligible {able}/{everyone}",
            f"finished {r['finished']}/{r['selected']}",
            *([] if r["outcome"] == "completed" else [r["outcome"]]),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def _some(clients: Sequence[int], most: int = 10) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(clients) - most} more" if len(clients) > most else ""
    return ", ".join(map(str, clients[:most])) + more


class Lines(_Progress):
    """One plain line per round, and one for each preparation that takes a while."""

    def __init__(self, file: TextIO | None = None):
        super().__init__()
        self._file = file or sys.stderr
        self._said = ""

    def on_event(self, event: str, facts: Mapping[str, Any]) -> None:
        """Write a line."""
        if event == "record":
            if self.warning:
                self._say(self.warning)
            self._say(self.line())
        elif event == "prepare":
            self._say(facts["what"])
        elif event == "combination" and self.of > 1 and "folder" not in facts:
            self._say(f"{self.where}, ETA {self.eta}" if self.index else self.where)

    def _say(self, text: str) -> None:
        if text != self._said:  # data of several combinations are prepared once, and said once
            self._file.write(text + "\n")
            self._file.flush()
            self._said = text


class Live(_Progress):
    """A bar over all rounds and a line below it, redrawn in place."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live as Region
        from rich.progress_bar import ProgressBar

        self._bar = ProgressBar(total=1.0, width=24)
        self._doing = "starting"
        self._selected = self._returned = 0
        self._region = Region(
            get_renderable=self._drawn, console=Console(stderr=True), refresh_per_second=4, transient=True
        )

    def on_event(self, event: str, facts: Mapping[str, Any]) -> None:
        """Keep what the next drawing shows; finished combinations stay on the screen as a line."""
        if event == "prepare":
            self._doing = facts["what"]
        elif event == "combination":
            self._doing = "starting"
        elif event == "round":
            self._selected, self._returned = facts["selected"], 0
            self._doing = f"round {facts['round']}/{self.rounds}, stage {facts['stage']}, training"
        elif event == "client":
            self._returned += 1
        elif event == "record":
            if self.warning:
                self._region.console.print(self.warning, highlight=False)
            self._doing = f"round {self.round}/{self.rounds} done"
            if self.round == self.rounds:
                self._region.console.print(self.line(), highlight=False)

    def _drawn(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        self._bar.update(self.share)
        row = Table.grid(padding=(0, 1))
        row.add_row(self._bar, f"{self.share:4.0%}", self.where, f"ETA {self.eta}")
        doing = f"{self._doing} {self._returned}/{self._selected}" if self._doing.endswith("training") else self._doing
        lines: list[Any] = [row]
        for text in (doing, ", ".join(self.status()) if self.record else "", self.scores()):
            if text:
                lines.append(Text(text, no_wrap=True, overflow="ellipsis"))
        return Group(*lines)

    def __enter__(self) -> Self:
        self._region.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._region.stop()


def make_progress() -> Lines | Live:
    """Live on a terminal, lines elsewhere."""
    return Live() if sys.stderr.isatty() else Lines()
