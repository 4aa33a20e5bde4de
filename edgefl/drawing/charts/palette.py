"""The colours of figures: a palette for each thing that colours tell apart, so that one colour never means two things.

Within a palette neighbours differ for the colour-blind too.  They are those of a light page; its script makes them
lighter on a dark one.
"""

from __future__ import annotations

INK, QUIET, UNKNOWN = "#222222", "#777777", "#dddddd"
"""Marks over others, what stands behind others, and cells without a value."""

KINDS = ("#4477aa", "#ee6677", "#aa3377", "#b8860b", "#66bbdd", "#886644", "#5d4c86", "#c48ba5")
"""Client kinds, in the scenario's order."""
RUNS = ("#004488", "#dd8833", "#1b9aaa", "#7a3f1f", "#9a9a2a", "#c05fc0", "#5c6c7c", "#d49a8a",
        "#6a9fd8", "#b59d5a", "#53296b", "#e3a2d8")  # fmt: skip
"""Runs of a comparison, variants of a bench."""

FITS, IDLE = "#228833", "#99cc99"
"""Clients that fit, and those of them that sent nothing: what is green fits.  Budgets have colours of their own."""
PHASES = {
    "start-up": "#bbbbbb", "download": "#77aadd", "compute": "#eecc66", "metering": "#ccddaa", "upload": "#ee99aa",
}  # fmt: skip
"""What a client does in its round."""
PREDICTED, MEASURED = "#b0b0b0", "#505560"
"""A cost as it was priced, and as it was."""
WORST = "#bb4466"
"""The slowest client, the worst tenth; the typical one beside it is quiet."""

PARTS = {
    "parameters": "#332288",
    "gradients": "#cc6677",
    "optimizer": "#882255",
    "activations": "#88ccee",
    "buffers": "#999933",
    "inputs": "#225555",
    "received": "#44aa99",
    "reference": "#661100",
    "outputs": "#6699cc",
    "temporaries": "#ddcc77",
    "scratch": "#999999",
}
"""Parts of memory.  The order is that of ``edgefl.work.PARTS``, which is slow to import, then what kernels take."""


def of_kind(index: int) -> str:
    """The colour of the client kind with this number."""
    return KINDS[index % len(KINDS)]


def of_run(index: int) -> str:
    """The colour of the run or variant with this number."""
    return RUNS[index % len(RUNS)]
