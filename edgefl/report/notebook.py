"""Results of commands as tables in notebooks: they stay plain dictionaries and have an HTML form beside it."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from edgefl.report.figures import draw_stages
from edgefl.units import show_bytes, show_seconds

Facts = Mapping[str, Any]

MOST_ROWS = 60
"""Rows of a table in a notebook; the rest is in the dictionary."""


class Shown(dict[str, Any]):
    """A command's result: a dictionary that a notebook shows as tables."""

    def __init__(self, facts: Facts, page: Callable[[Facts], str]):
        super().__init__(facts)
        self._page = page

    def _repr_html_(self) -> str:
        return self._page(self)


def table(title: str, rows: Sequence[Mapping[str, str]]) -> str:
    """An HTML table with a caption; the columns are those of the first row."""
    if not rows:
        return f"<p>{escape(title)}: nothing</p>"
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.values()) + "</tr>" for row in rows[:MOST_ROWS]
    )
    more = f"<p>and {len(rows) - MOST_ROWS} more rows</p>" if len(rows) > MOST_ROWS else ""
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def picture(png: bytes, words: str) -> str:
    """A PNG as an inline image with its words for screen readers."""
    return f"<img alt='{escape(words, quote=True)}' src='data:image/png;base64,{base64.b64encode(png).decode()}'/>"


def profile_page(facts: Facts) -> str:
    """A profile: a table of each combination's rows, and the figure of its stages."""
    combinations: Mapping[str, Facts] = facts.get("combinations") or {"": facts}
    parts = []
    for label, profile in combinations.items():
        rows = [
            {
                "stage": f"{row['stage']}" + (f", {row['part']}" if row.get("part") else ""),
                "kind": row["kind"],
                "device": row["device"],
                "rounds": str(row["rounds"]),
                "peak memory": show_bytes(row["peak_memory_bytes"]),
                "GFLOP": f"{(row['forward_flops'] + row['backward_flops']) / 1e9:.4g}",
                "down": show_bytes(row["download_bytes"]),
                "up": show_bytes(row["upload_bytes"]),
                "time": show_seconds(row["virtual_seconds"]),
                "energy, J": f"{row['energy_joules']:.4g}",
            }
            for row in profile["rows"]
        ]
        parts.append(table(f"A client's round{f', {label}' if label else ''}", rows))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stages.png"
        draw_stages({label or str(facts.get("scenario", "")): one for label, one in combinations.items()}, path)
        parts.append(picture(path.read_bytes(), "peak memory, MACs and traffic of a client's round by stage"))
    return "".join(parts)


def sweep_page(facts: Facts) -> str:
    """A sweep: a table with a row for each cell."""
    rows = []
    for row in facts["rows"]:
        shown = {"cell": str(row["label"])}
        if row.get("eligible_share") is None:
            rows.append({**shown, "eligible": str(row.get("refused") or row.get("reason") or "-")})
            continue
        rows.append(
            {
                **shown,
                "eligible": f"{100 * row['eligible_share']:.0f} %",
                "samples": f"{100 * row['eligible_samples_share']:.0f} %",
                "peak memory": show_bytes(row["peak_memory_bytes"]),
                "round": show_seconds(row["round_seconds"]),
                "schedule": show_seconds(row["schedule_seconds"]),
                "energy, J": f"{row['schedule_energy_joules']:.4g}",
            }
        )
    return table(f"Sweep of {facts.get('scenario', 'the scenario')}", rows)


def fit_page(facts: Facts) -> str:
    """A fit: for each kind, how it stands and the changes that make it fit."""
    parts = []
    for name, kind in facts["kinds"].items():
        answers = [("as it stands", kind["as_it_stands"]), *((_words(s), s) for s in kind["solutions"])]
        if kind.get("nearest"):
            answers.append((f"nearest: {_words(kind['nearest'])}", kind["nearest"]))
        rows = [
            {
                "change": words,
                "fits": "yes" if answer["fits"] else "no",
                "peak memory": show_bytes(answer["peak_memory_bytes"]),
                "binding": str(answer["binding"] or "-"),
                "round": show_seconds(answer["seconds_per_round"]),
                "energy, J": f"{answer['joules_per_round']:.4g}",
            }
            for words, answer in answers
        ]
        parts.append(table(f"{name} on {facts['device']}", rows))
    return "".join(parts)


def _words(answer: Facts) -> str:
    return ", ".join(map(str, answer["changes"])) or "no change"


PAGES: Mapping[str, Callable[[Facts], str]] = {"profile": profile_page, "sweep": sweep_page, "fit": fit_page}
"""The HTML form of each command's result."""
