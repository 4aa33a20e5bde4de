"""Answers of commands as tables in notebooks."""

from __future__ import annotations

from edgefl.commands.fit.answer import Fit, FitCandidate
from edgefl.commands.sweep.answer import Sweep
from edgefl.html import table
from edgefl.units import show_bytes, show_seconds


def sweep_page(sweep: Sweep) -> str:
    """A sweep: a table with a row for each cell."""
    rows = [
        {"cell": row.label, "eligible": row.refused}
        if row.refused
        else {
            "cell": row.label,
            "eligible": f"{100 * row.eligible_share:.0f} %",
            "samples": f"{100 * row.eligible_samples_share:.0f} %",
            "peak memory": show_bytes(row.peak_memory_bytes),
            "round": "-" if row.round_seconds is None else show_seconds(row.round_seconds),
            "schedule": show_seconds(row.schedule_seconds),
            "energy, J": f"{row.schedule_energy_joules:.4g}",
        }
        for row in sweep.rows
    ]
    return table(f"Sweep of {sweep.scenario}", rows)


def fit_page(fit: Fit) -> str:
    """A fit: for each kind, how it stands and the changes that make it fit."""
    parts = []
    for name, kind in fit.kinds.items():
        answers = [("as it stands", kind.as_it_stands), *((_words(each), each) for each in kind.solutions)]
        if kind.nearest:
            answers.append((f"nearest: {_words(kind.nearest)}", kind.nearest))
        rows = [
            {
                "change": words,
                "fits": "yes" if answer.fits else "no",
                "peak memory": show_bytes(answer.peak_memory_bytes),
                "binding": answer.binding or "-",
                "round": show_seconds(answer.seconds_per_round),
                "energy, J": f"{answer.joules_per_round:.4g}",
            }
            for words, answer in answers
            if answer is not None
        ]
        parts.append(table(f"{name} on {fit.device}", rows))
    return "".join(parts)


def _words(answer: FitCandidate) -> str:
    return ", ".join(change.what for change in answer.changes) or "no change"
