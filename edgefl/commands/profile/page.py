"""A profile in a notebook."""

from __future__ import annotations

import tempfile
from pathlib import Path

from edgefl.commands.profile.answer import Profile
from edgefl.commands.profile.chart import stages_chart
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
