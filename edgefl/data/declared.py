"""Declared data: shapes without samples, to profile models at the size of a paper's data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgefl import seeds
from edgefl.arrays import Integers
from edgefl.data.federation import Federation
from edgefl.data.missing import draw
from edgefl.data.options import DataOptions, DeclaredDataset
from edgefl.errors import DataError
from edgefl.modalities import KINDS, Kind

SAMPLES = 500
"""Samples of a client unless ``data.samples`` says otherwise: a choice, for profiles in which only shapes matter."""


def load(options: DataOptions, *, tokens: int, seed: int = 1) -> Federation:
    """Shapes without samples, to profile a model of any size.

    The federation has the number of samples of each client (default 500), but no sample values.

    If ``samples`` is a range, each client's number is drawn uniformly.  Memory is a few bytes per client.
    ``validation`` and ``test`` are numbers of samples from 1 on, and below 1 shares of all clients' samples.
    """
    facts = (options.shapes or DeclaredDataset()).facts(tokens)
    kinds = [kind for kind in KINDS if options.clients.get(kind)]
    parts = []
    for index, kind in enumerate(kinds):
        fewest, most = options.sample_range(kind) or (SAMPLES, SAMPLES)
        rng = seeds.generator(seed, "declared samples", index)
        parts.append(rng.integers(fewest, most, options.clients[kind], np.int32, endpoint=True))
    if options.public == "all":
        raise DataError("a declared set has as many public samples as data.public says: give their number")
    if options.dealt_kind:
        own = parts[kinds.index(options.dealt_kind)]
        dealt = _size(options.public, int(np.concatenate(parts).sum()))
        own += dealt // len(own) + (np.arange(len(own)) < dealt % len(own))
    samples = np.concatenate(parts)
    patterns, dropped = _missing_counts(options, kinds, parts, seed)
    if patterns is not None:
        parts = [counts.sum(1) for counts in patterns]
        samples = np.concatenate(parts)
    kind_of = np.repeat(np.arange(len(kinds), dtype=np.uint8), [options.clients[kind] for kind in kinds])
    server: dict[str, dict[str, int]] = {}
    for data in ("validation", "test") if options.dealt_kind else ("validation", "test", "public"):
        if size := _size(getattr(options, data), int(samples.sum())):
            server[data] = dict.fromkeys(map(str, KINDS), size)
    if options.vocabulary != DataOptions.model_fields["vocabulary"].default:
        raise DataError("a declared set has no texts to train a vocabulary on: write shapes: {text: {vocabulary: ...}}")
    return Federation(
        title="declared",
        kinds=tuple(kinds),
        client_kind=kind_of,
        client_samples=samples,
        class_names=(),
        facts=facts,
        server_samples=server,
        tasks={kind: options.task_of(kind) for kind in kinds},
        client_patterns=None if patterns is None else np.concatenate(patterns),
        client_dropped=None if dropped is None else np.concatenate(dropped),
    )


def _size(wanted: float, samples: int) -> int:
    """The number of samples of a split that is ``wanted`` as a share of the clients' ``samples``, or as a number."""
    return round(wanted * samples if wanted < 1 else wanted)


def _missing_counts(
    options: DataOptions, kinds: Sequence[Kind], samples: Sequence[Integers], seed: int
) -> tuple[list[Integers], list[Integers]] | tuple[None, None]:
    """Samples [clients, 3] by pattern for each kind, and dropped samples; None if no modality is missing."""
    if not any(options.missing_of(kind) for kind in kinds):
        return None, None
    patterns: list[Integers] = []
    dropped: list[Integers] = []
    for index, (kind, sizes) in enumerate(zip(kinds, samples, strict=True)):
        rates, rng = options.missing_of(kind), seeds.generator(seed, "missing", index)
        codes = [draw(kind, rates, int(n), rng) if rates else np.zeros(int(n), np.int8) for n in sizes]
        patterns.append(np.stack([np.bincount(code[code >= 0], minlength=3) for code in codes]))
        dropped.append(np.array([int((code < 0).sum()) for code in codes]))
    return patterns, dropped
