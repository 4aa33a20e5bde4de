"""Progress of a command on stderr: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from edgefl import terminal, units
from edgefl.drawing.text_tables import score, screen, title_of
from edgefl.errors import visible
from edgefl.records.metrics import SHORT, own_metrics, split_of

if TYPE_CHECKING:
    from edgefl.console.told import ToldCell, ToldRound

TRAINING_SHARE = 0.9
"""Share of a round that its clients' training counts for; the rest is aggregation and evaluation.

A choice, not measured: where it is wrong the bar moves unevenly.
"""

NARROW = 80
"""Characters that a line of progress has at most, unless a name in it is longer."""

PAUSE = 15.0
"""Wall time in seconds without a line after which plain text tells of a round under way: short rounds have no line but
their own, and a log of long ones shows that they are under way."""


class ProgressDisplay:
    """State that both displays share: the current combination and round, the latest metrics, and the ETA."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.label, self.index, self.of = "", 0, 1
        self.round, self.rounds = 0, 0
        self.done, self.of_round = 0, 0
        self.opened = self.began = time.monotonic()
        self._from: float | None = None  # the finished share when the pace began to be taken
        self.latest: ToldRound | None = None
        self.record: ToldRound | None = None
        self.what = ""
        self.has_folder = False
        self.scored = ""
        self.cells: ToldCell | None = None

    def __call__(self, event: str, facts: Mapping[str, Any]) -> None:
        """Update the state by an event of a command (its ``on_progress`` callback), then display it."""
        if event == "combination":
            if facts["index"] <= self.index:  # the first, or the first of a command's next ones
                self._from = None
            self.has_folder = "folder" in facts
            self.folder = facts.get("folder", self.folder)
            self.label, self.index, self.of = facts["label"], facts["index"], facts["of"]
            self.round, self.rounds, self.latest = 0, 0, None
            self.done = self.of_round = 0
        elif event in ("prepare", "found"):
            self.what = facts["what"]
        elif event == "cells":
            self.folder = facts["folder"]
        elif event == "cell":
            from edgefl.console.told import read_cell

            cell = read_cell(facts)
            before = self.cells.share if self.cells else 0.0
            if before == 1:  # all have ended: this is the first of the command's next ones
                self._from, before = None, 0.0
            self.cells, self.label = cell, cell.label
            if cell.started:
                self._begins(cell.share - before)
        elif event == "start":
            self.round, self.rounds = facts["round"], facts["rounds"]
            self._begins(self.share - self.index / self.of)
        elif event == "round":
            self.done, self.of_round, self.scored = 0, facts["selected"], ""
        elif event == "trained":
            self.done, self.of_round = facts["done"], max(facts["of"], self.of_round)
        elif event == "scored":
            self.scored = f"{facts['done']} of {facts['of']} clients evaluated"
        elif event == "record":
            from edgefl.console.told import read_round  # few commands play rounds, and their records import slowly

            self.record = record = read_round(facts)
            self.round = record.round
            if record.stopped:
                self.rounds = self.round  # it has ended early
            self.done, self.of_round, self.scored = 0, 0, ""
            self.latest = record if record.metrics else self.latest
        self.on_event(event)

    def on_event(self, event: str) -> None:
        """Display the event."""

    def _begins(self, had: float) -> None:
        """Take the pace from now on, or go on with it: what a combination ``had`` when it begins is no work of now.

        It is below 0 where a combination begins again, without the rounds of a lost worker.
        """
        if self._from is None:
            self.began, self._from = time.monotonic(), self.share
        else:
            self._from += had

    @property
    def share(self) -> float:
        """Finished share (0 to 1) of all rounds of all combinations; every combination counts the same.

        The clients that have trained count as a part of their round, the server's works as the rest of it.
        """
        if self.cells:
            return self.cells.share
        part = TRAINING_SHARE * self.done / self.of_round if self.of_round and self.round < self.rounds else 0.0
        return (self.index + ((self.round + part) / self.rounds if self.rounds else 0.0)) / self.of

    @property
    def elapsed_text(self) -> str:
        """Wall time since the command began, as text: ``1:02:03``, ``2:03``."""
        minutes, seconds = divmod(int(time.monotonic() - self.opened), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

    @property
    def doing(self) -> str:
        """The round under way: ``round 3/12: 4 of 9 clients trained``."""
        if self.scored:
            return f"round {self.round + 1}/{self.rounds}: {self.scored}"
        if not self.of_round:
            return f"round {self.round}/{self.rounds} done"
        if self.done >= self.of_round:
            return f"round {self.round + 1}/{self.rounds}: all {self.of_round} clients trained, the server is at work"
        return f"round {self.round + 1}/{self.rounds}: {self.done} of {self.of_round} clients trained"

    @property
    def eta(self) -> str:
        """Estimated remaining wall time as text, from the pace so far; ``--`` if it is unknown."""
        done = self.share - (self._from or 0.0)
        if done < 1e-9 or (not self.cells and not self.record and self.done < self.of_round / 2):
            return "--"  # the first clients also load and measure what later ones don't
        return units.show_seconds((time.monotonic() - self.began) * (1 - self.share) / done)

    @property
    def where(self) -> str:
        """Label of the combination, with its number if there are several: ``layerwise (2 of 3)``."""
        return f"{self.label} ({self.index + 1} of {self.of})" if self.of > 1 else self.label

    def cell(self) -> str:
        """The combination that was told of last, of several side by side, as one line."""
        assert self.cells is not None
        number = f" ({self.cells.done} of {self.cells.of} ended)" if self.cells.done else ""
        words = f"{self.cells.label}: {self.cells.status}{number}"
        return f"{words}, ETA {self.eta}" if self.share < 1 else words

    def scores(self) -> str:
        """The latest metrics as text, with their split: ``validation: image acc 0.48``."""
        if self.latest is None:
            return ""
        words = []
        for kind, values in self.latest.metrics.items():
            names = {**SHORT, **{name: title_of(name) for name in own_metrics(values)}}
            words += [f"{kind} {short} {score(values, name)}" for name, short in names.items() if name in values]
        return f"{split_of(work.when for work in self.latest.server_works)}: {', '.join(words)}"

    def lines(self) -> list[str]:
        """The last finished round, in lines that fit a narrow terminal: its scores stand below it."""
        words = [f"round {self.round}/{self.rounds}", *self.status(), *([f"ETA {self.eta}"] if self.share < 1 else [])]
        told = [", ".join(words)]
        label = self.where
        if len(label) + 2 + len(told[0]) <= NARROW:
            told[0] = f"{label}: {told[0]}"
        else:
            told = [f"{label}:", f"  {told[0]}"]
        if self.record and self.record.metrics:
            told += [f"  {line}" for line in wrap_words(self.scores(), NARROW - 2)]
        return told

    @property
    def warning(self) -> str:
        """A warning that names the clients whose updates the last finished round rejected; empty if there were none."""
        if not self.record or not self.record.rejected:
            return ""
        clients = self.record.rejected
        updates = f"client {clients[0]}'s update" if len(clients) == 1 else f"updates of clients {_first(clients)}"
        pronoun = "it" if len(clients) == 1 else "them"
        counts = self.record.rejections or {}
        values = f"NaN or infinity in {pronoun}"
        reasons = (
            ", ".join(f"{reason} {n}" for reason, n in counts.items()) if counts.keys() - {"not finite"} else values
        )
        return f"warning: {self.where}: round {self.round} left out {updates}: {reasons}"

    def status(self) -> list[str]:
        """Of the last finished round: stage, clock, eligible clients, and those that finished if not all did."""
        if not (r := self.record):
            return []
        return [
            f"stage {r.stage}",
            f"clock {units.show_seconds(r.finished_virtual_seconds)}",
            f"eligible {sum(r.eligible.values())}/{sum(r.clients.values())}",
            *([] if r.finished == r.selected else [f"finished {r.finished}/{r.selected}"]),
            *([] if r.outcome == "completed" else [r.outcome]),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def wrap_words(words: str, width: int) -> list[str]:
    """The parts of ``a, b, c`` in lines of at most ``width`` characters; a longer part has a line of its own."""
    lines = [""]
    for part in words.split(", "):
        if lines[-1] and len(lines[-1]) + 2 + len(part) > width:
            lines.append("")
        lines[-1] += f", {part}" if lines[-1] else part
    return lines


def _first(clients: Sequence[int], most: int = 10) -> str:
    """The first ``most`` client numbers, and how many more there are, as text."""
    more = f" and {len(clients) - most} more" if len(clients) > most else ""
    return ", ".join(map(str, clients[:most])) + more


class Lines(ProgressDisplay):
    """Plain text: one line per round, one for each slow preparation step, and one every 15 s of a longer round."""

    def __init__(self, file: TextIO | None = None):
        super().__init__()
        self._file = file or sys.stderr
        self._last = ""
        self._written = time.monotonic()

    def on_event(self, event: str) -> None:
        """Write a line for a finished round, a preparation step, or a new combination."""
        if event == "record":
            if self.warning:
                self._write(self.warning)
            self._write("\n".join(self.lines()))
        elif event in ("trained", "scored") and time.monotonic() - self._written >= PAUSE:
            self._write(f"{self.where}: {self.doing}, ETA {self.eta}")
        elif event in ("prepare", "found"):
            self._write(self.what)
        elif event == "cell":
            self._write(self.cell())
        elif event == "combination" and self.of > 1 and not self.has_folder:
            self._write(f"{self.where}, ETA {self.eta}" if self.index else self.where)

    def _write(self, text: str) -> None:
        if text != self._last:  # combinations share their data: report their preparation once
            with suppress(OSError):  # such as a log on a full disk: the command goes on
                self._file.write("".join(f"{visible(line)}\n" for line in text.split("\n")))
                self._file.flush()
            self._last = text
            self._written = time.monotonic()


class Live(ProgressDisplay):
    """A progress bar over all rounds with status lines below it, redrawn in place."""

    def __init__(self) -> None:
        super().__init__()
        from rich.live import Live as Region
        from rich.progress_bar import ProgressBar

        self._bar = ProgressBar(total=1.0, width=24)
        self._doing = "starting"
        self._region = Region(
            get_renderable=self._render, console=screen(stderr=True), refresh_per_second=4, transient=True
        )

    def on_event(self, event: str) -> None:
        """Update the state that is drawn next.  A finished combination is printed as a permanent line."""
        if event == "prepare":
            self._doing = self.what
        elif event == "found":
            self._region.console.print(self.what, highlight=False, soft_wrap=True)
        elif event == "combination":
            self._doing = "starting"
        elif event in ("round", "trained", "scored"):
            self._doing = self.doing
        elif event == "cell" and self.cells:
            self._doing = ", ".join(f"{label}: {status}" for label, status in self.cells.running.items())
            if self.cells.done is not None:
                self._region.console.print(self.cell(), highlight=False)
        elif event == "record":
            if self.warning:
                self._region.console.print(self.warning, highlight=False)
            self._doing = self.doing
            if self.round == self.rounds:
                self._region.console.print("\n".join(self.lines()), highlight=False)

    def _render(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        self._bar.update(self.share)
        row = Table.grid(padding=(0, 1))
        row.add_row(self._bar, f"{self.share:4.0%}", self.where, f"{self.elapsed_text}, ETA {self.eta}")
        lines: list[Any] = [row]
        for text in (self._doing, ", ".join(self.status()), self.scores()):
            if text:
                lines.append(Text(text, no_wrap=True, overflow="ellipsis"))
        return Group(*lines)

    def __enter__(self) -> Self:
        from rich.file_proxy import FileProxy

        self._region.start()
        if isinstance(sys.stderr, FileProxy):
            terminal.guard()  # the region has put its own streams before those of the command, until it stops
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._region.stop()


def make_progress() -> Lines | Live:
    """``Live`` if stderr is a terminal, otherwise ``Lines``."""
    return Live() if sys.stderr.isatty() else Lines()


class Bar(ProgressDisplay):
    """tqdm's bar over all rounds of all combinations, with stage, virtual clock and metrics beside it."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tqdm warns in a notebook without widgets, where it prints a plain bar
            from tqdm.auto import tqdm

            self._bar: Any = tqdm(
                total=100, bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}<{remaining} {postfix}", leave=True
            )

    def on_event(self, event: str) -> None:
        """Move the bar and show the round under way."""
        if event == "prepare":
            self._bar.set_description_str(self.what, refresh=True)
        elif event == "found":
            self._bar.write(self.what)
        elif event == "combination":
            self._bar.set_description_str(self.where, refresh=False)
        elif event in ("round", "trained", "scored", "record"):
            words = [self.doing, *self.status()[:2], self.scores()]
            self._bar.set_description_str(self.where, refresh=False)
            self._bar.set_postfix_str(", ".join(word for word in words if word), refresh=False)
        self._bar.update(max(100 * self.share - self._bar.n, 0.0))
        self._bar.refresh()

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error_type is None:
            self._bar.update(100 - self._bar.n)
        self._bar.close()

    def __enter__(self) -> Self:
        return self


def make_bar() -> Bar | Live:
    """The bar of tqdm if that is installed, otherwise rich's."""
    return Bar() if find_spec("tqdm") is not None else Live()
