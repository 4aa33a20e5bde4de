"""Declared: shapes without samples, to profile models at the size of a paper's data."""

from __future__ import annotations

import numpy as np

from edgefl.data.federation import Federation
from edgefl.data.options import KINDS, DataOptions, Shapes
from edgefl.errors import DataError

SAMPLES = 500


def load(options: DataOptions, *, tokens: int) -> Federation:
    """A federation of ``samples`` samples for each client (500 unless said), and nothing behind them.

    ``validation`` and ``test`` of 1 and above are their numbers of samples; shares are taken of all clients' samples.
    """
    shapes = options.shapes or Shapes()
    kinds = [kind for kind in KINDS if options.clients.get(kind)]
    samples = np.concatenate([np.full(options.clients[k], options.samples_of(k) or SAMPLES, np.int64) for k in kinds])
    kind_of = np.repeat(np.arange(len(kinds)), [options.clients[kind] for kind in kinds])
    server: dict[str, dict[str, int]] = {}
    for data in ("validation", "test", "public"):
        wanted = getattr(options, data)
        size = round(wanted * int(samples.sum())) if wanted < 1 else round(wanted)
        if size:
            server[data] = dict.fromkeys(map(str, KINDS), size)
    if options.vocabulary != DataOptions.model_fields["vocabulary"].default:
        raise DataError("a declared set has no texts to train a vocabulary on: write shapes: {text: {vocabulary: ...}}")
    return Federation(
        title="declared",
        kinds=tuple(kinds),
        client_kind=kind_of,
        client_samples=samples,
        class_names=tuple(
            f"class {i}" for i in range(max(s.classes for s in (shapes.image, shapes.text, shapes.audio)))
        ),
        facts={
            "image": shapes.image.model_dump(),
            "text": shapes.text.model_dump() | {"tokens": tokens},
            "audio": shapes.audio.model_dump(),
        },
        server_samples=server,
        tasks={kind: options.task_of(kind) for kind in kinds},
    )
