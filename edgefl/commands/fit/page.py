"""A fit as a notebook shows it."""

from __future__ import annotations

from edgefl.commands.fit.answer import Fit, FitCandidate
from edgefl.html import table
from edgefl.units import show_bytes, show_seconds


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
