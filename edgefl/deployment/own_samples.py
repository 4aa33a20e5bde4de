"""Samples that a node has of its own: they never leave it, and the server knows how many there are of which class."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.data import DataOptions, Federation, open_federation
from edgefl.data.options import PUBLIC
from edgefl.data.samples import Samples
from edgefl.deployment.transport import OwnSamples
from edgefl.errors import DataError, RunError
from edgefl.runs.durable import replace_file
from edgefl.scenario import Scenario

SCALES, TOKENIZER = "scales.json", "tokenizer.json"
"""Files of a node's folder: what the server said of its set, and the tokenizer of its texts."""


class NodeSamples:
    """The data of a node with samples of its own: whatever client it is, it has these."""

    def __init__(self, own: Federation):
        self._own = own

    def client(self, index: int) -> Samples:
        """The node's samples."""
        return self._own.client(0)

    def server(self) -> Samples:
        """Raises DataError: a node does no work of the server."""
        raise DataError("a node has no samples of the server")

    def count(self) -> OwnSamples:
        """Kind and number of the samples, by class; the last class is none."""
        [counts] = self._own.class_counts().tolist()
        return OwnSamples(kind=self._own.kinds[0], samples=tuple(counts))


def open_own(scenario: Scenario, data: Path, kind: str | None, folder: Path, scales: Mapping[str, Any]) -> NodeSamples:
    """Open a node's folder or table, which has the format of the scenario's set, by the server's ``scales``.

    ``folder`` keeps the scales for the next orders, which come without.  Raises DataError for samples that aren't of
    the kind, for other classes or shapes, and where the server's set can't be joined by samples of nodes.
    """
    if scales:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / TOKENIZER, str(scales.get("tokenizer", "")).encode())
        replace_file(folder / SCALES, json.dumps(scales).encode())
    elif not (folder / SCALES).exists():
        raise DataError("the server's set can't be joined by samples of nodes: it is declared, or of several sets")
    scales = json.loads((folder / SCALES).read_bytes())
    options = scenario.data
    kinds = [each for each, count in options.clients.items() if count]
    if kind is None and len(kinds) > 1:
        raise DataError(f"say of which kind its samples are: kind, one of {', '.join(kinds)}")
    changes = {
        "folders": {options.source: str(data)}, "clients": {kind or kinds[0]: 1}, "partition": "iid", "samples": None,
        "validation": 0, "test": 0, "public": 0, "missing": None, "draw": None,
    }  # fmt: skip
    if "tokenizer" in scales:
        changes["vocabulary"] = str(folder / TOKENIZER)
    own = DataOptions.model_validate({**options.model_dump(exclude_unset=True), **changes})
    return NodeSamples(open_federation(own, seed=scenario.seed, tokens=scenario.model.tokens).with_scales(scales))


def check_own(federation: Federation, client: int, own: OwnSamples | None, *, begun: bool) -> None:
    """Raise RunError for samples that this client can't have; once a run has ``begun`` they are those of its start."""
    if begun:
        known = federation.elsewhere.get(client)
        if (None if known is None else known.tolist()) != (None if own is None else list(own.samples)):
            raise RunError("its samples aren't those with which the run began")
    if own is None:
        return
    kind = federation.kinds[federation.client_kind[client]]
    if own.kind != kind:
        raise RunError(f"its samples are {own.kind}, and client {client} is {kind}")
    if len(own.samples) != len(federation.class_names) + 1 or min(own.samples) < 0 or not sum(own.samples):
        raise RunError(f"it says {len(own.samples)} numbers of samples {own.samples!s:.60}")
    if federation.server_samples.get(PUBLIC):
        raise RunError("clients with samples of their own have no public ones, which the scenario has (data.public)")


def compose_samples(federation: Federation, own: Mapping[int, OwnSamples]) -> Federation:
    """The server's federation with what nodes say of their samples, by client."""
    return federation.with_elsewhere({client: np.array(each.samples) for client, each in own.items()})
