"""What a worker on a Ray cluster does: it opens the data once, and runs assignments."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from edgefl.data import Cargo
from edgefl.errors import text_of
from edgefl.models.model import DTYPES
from edgefl.training.assignment import Assignment
from edgefl.training.node import Node
from edgefl.training.on_ray.cluster import Greeting, greeting
from edgefl.training.worker import MOST_FORMS, open_node
from edgefl.work import Form
from edgefl.work.description import DTYPE_NAMES
from edgefl.work.torch_device import keep_freed_memory

Sent = list[tuple[str, str, list[int], Any]]
"""Names, dtypes, shapes and bytes of tensors: Ray moves NumPy's arrays without a copy."""


def to_ray(tensors: Mapping[str, Tensor]) -> Sent:
    """Tensors as Ray sends them."""
    rows = ((name, tensor.detach().cpu().contiguous()) for name, tensor in tensors.items())
    return [(n, DTYPE_NAMES[t.dtype], list(t.shape), t.view(-1).view(torch.uint8).numpy()) for n, t in rows]


def from_ray(rows: Iterable[tuple[str, str, list[int], Any]]) -> dict[str, Tensor]:
    """Tensors that ``to_ray`` made ready.  They lie in memory that others read, and nobody may write into them."""
    tensors = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        for name, dtype, shape, raw in rows:
            whole = torch.from_numpy(raw) if len(raw) else torch.empty(0, dtype=torch.uint8)
            tensors[name] = whole.view(DTYPES[dtype]).view(shape)
    return tensors


class RayWorker:
    """A Ray actor that runs assignments one after the other; it says why it can't begin if the data can't be opened."""

    def __init__(self, arguments: tuple[Any, ...], path: list[str], cargo: Cargo | None):
        self._node: Node | None = None
        self._why_not = ""
        self._forms: dict[str, Form] = {}
        self._inputs: tuple[int, Mapping[str, Tensor]] = (-1, {})
        sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]
        try:
            keep_freed_memory()
            self._node = partial(open_node, cargo=cargo)(*arguments)
        except BaseException as error:  # told by ``hello``, with the name of the node
            self._why_not = text_of(error) or type(error).__name__

    def hello(self) -> Greeting:
        """Where this is, the versions there, and why it can't begin, if so."""
        return greeting(self._why_not)

    def run_assignment(
        self, key: str, form: str, number: int, inputs: Sent, facts: str, kept: Sent | None
    ) -> tuple[str, Sent]:
        """Run an assignment: the key of its form and the form, the number of its inputs and these, its facts as JSON
        text, and what the client kept."""
        assert self._node is not None
        if key not in self._forms:
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
            self._forms[key] = Form.decode(form)
        if self._inputs[0] != number:
            self._inputs = number, from_ray(inputs)
        given = self._inputs[1] if kept is None else {**self._inputs[1], **from_ray(kept)}
        report = self._node.run_assignment(Assignment.from_data(json.loads(facts), self._forms[key], given))
        return json.dumps(report.to_data()), to_ray(report.tensors())
