"""Answers of commands as tables in notebooks."""

from __future__ import annotations

import tempfile
from pathlib import Path

from edgefl.commands.fit.answer import Fit, FitCandidate
from edgefl.commands.profile.answer import Profile
from edgefl.commands.profile.chart import stages_chart
from edgefl.commands.sweep.answer import Sweep
from edgefl.drawing.figures import draw_figure
from edgefl.html import picture, table
from edgefl.units import show_bytes, show_seconds


def profile_page(profile: Profile) -> str:
    """A profile: a table of each combination's rows, and the figure of its stages."""
    parts = []
    for label, part in profile.parts.items():
        rows = [
            {
                "stage": row.stage_and_part,
                "kind": row.kind,
                "device": row.device,
                "rounds": str(row.rounds),
                "peak memory": show_bytes(row.peak_memory_bytes),
                "GFLOP": f"{row.flops / 1e9:.4g}",
                "down": show_bytes(row.download_bytes),
                "up": show_bytes(row.upload_bytes),
                "time": show_seconds(row.virtual_seconds),
                "energy, J": f"{row.energy_joules:.4g}",
            }
            for row in part.rows
        ]
        parts.append(table(f"A client's round{f', {label}' if profile.combinations else ''}", rows))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stages.png"
        draw_figure(stages_chart(profile.parts), path)
        parts.append(picture(path.read_bytes(), "peak memory, MACs and traffic of a client's round by stage"))
    return "".join(parts)


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
