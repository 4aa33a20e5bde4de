"""Declared: shapes without samples, to profile models at the size of a paper's data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgefl import seeds
from edgefl.data.collection import IntArray
from edgefl.data.federation import Federation
from edgefl.data.missing import draw
from edgefl.data.options import KINDS, DataOptions, Kind, Shapes
from edgefl.errors import DataError

SAMPLES = 500


def load(options: DataOptions, *, tokens: int, seed: int = 1) -> Federation:
    """A federation of ``samples`` samples for each client (500 unless said), and nothing behind them.

    Of a range each client draws its own number, evenly: arrays of a few bytes per client, for millions of them.
    ``validation`` and ``test`` of 1 and above are their numbers of samples; shares are taken of all clients' samples.
    """
    shapes = options.shapes or Shapes()
    kinds = [kind for kind in KINDS if options.clients.get(kind)]
    parts = []
    for index, kind in enumerate(kinds):
        fewest, most = options.sample_range(kind) or (SAMPLES, SAMPLES)
        draw = seeds.generator(seed, "declared samples", index)
        parts.append(draw.integers(fewest, most, options.clients[kind], np.int32, endpoint=True))
    samples = np.concatenate(parts)
    patterns, dropped = _lacking(options, kinds, parts, seed)
    if patterns is not None:
        parts = [each.sum(1) for each in patterns]
        samples = np.concatenate(parts)
    kind_of = np.repeat(np.arange(len(kinds), dtype=np.uint8), [options.clients[kind] for kind in kinds])
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
        client_patterns=None if patterns is None else np.concatenate(patterns),
        client_dropped=None if dropped is None else np.concatenate(dropped),
    )


def _lacking(
    options: DataOptions, kinds: Sequence[Kind], samples: Sequence[IntArray], seed: int
) -> tuple[list[IntArray], list[IntArray]] | tuple[None, None]:
    """Samples [clients, 3] by pattern for each kind, and those dropped; None where no sample lacks anything."""
    if not any(options.missing_of(kind) for kind in kinds):
        return None, None
    patterns, dropped = [], []
    for index, (kind, held) in enumerate(zip(kinds, samples, strict=True)):
        rates, rng = options.missing_of(kind), seeds.generator(seed, "missing", index)
        drawn = [draw(kind, rates, int(n), rng) if rates else np.zeros(int(n), np.int8) for n in held]
        patterns.append(np.stack([np.bincount(each[each >= 0], minlength=3) for each in drawn]))
        dropped.append(np.array([int((each < 0).sum()) for each in drawn]))
    return patterns, dropped
