"""One data set's part of a federation, stored on disk."""

from __future__ import annotations

from collections.abc import Collection as Names
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from edgefl.arrays import AnyArray, Integers
from edgefl.data.missing import patterns_of
from edgefl.data.split import held_out_samples
from edgefl.data.stored_arrays import Meta, StoredEntry
from edgefl.errors import DataError
from edgefl.modalities import Kind
from edgefl.models.preprocessing import (
    AudioPreprocessing,
    ImagePreprocessing,
    MotionPreprocessing,
    Preprocessing,
    TextPreprocessing,
)
from edgefl.work.description import TensorSpec
from edgefl.work.tasks import like

SCALES = ("facts", "mean", "deviation", "padding", "audio_moments", "motion_moments")
"""Metadata of a part by which its samples become a model's inputs."""


@dataclass(frozen=True)
class FederationPart:
    """A data set with its splits and its clients' samples; clients are numbered from 0 within the part.

    ``replaced`` are arrays that stand in for stored ones.
    """

    collection: StoredEntry
    entry: StoredEntry
    tasks: Mapping[Kind, str]
    replaced: Mapping[str, AnyArray] = field(default_factory=dict, repr=False)

    @property
    def dataset(self) -> str:
        """The name of its data set."""
        return self.collection.path.name.rpartition("-")[0]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of its clients."""
        return tuple(self.entry.meta["kinds"])

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of its classes."""
        return tuple(self.collection.meta["classes"])

    @property
    def server_samples(self) -> Mapping[str, Mapping[str, int]]:
        """Numbers of samples at the server, by split and pattern."""
        sizes: Mapping[str, Mapping[str, int]] = self.entry.meta["server_samples"]
        return sizes

    @property
    def clients(self) -> Integers:
        """The kind [clients] of each client, as an index into ``kinds``."""
        return np.array(self.entry.meta["client_kind"], np.int64)

    @cached_property
    def arrays(self) -> dict[str, AnyArray]:
        """All arrays of the collection and of the part, memory-mapped."""
        return {**self.collection.arrays, **self.entry.arrays, **self.replaced}

    def split_held_out(self, share: float, rng: np.random.Generator) -> tuple[FederationPart, FederationPart]:
        """The part with the samples that clients train on, and the one with those that they hold out of training.

        Each client holds out at most this share of its samples, as whole groups (``held_out_samples``).
        """
        rows, offsets = np.asarray(self.arrays["client_rows"]), self.arrays["client_offset"]
        owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        held = held_out_samples(owner, self.arrays["group"][rows], share, rng)
        parts = []
        for mask in (~held, held):
            counts = np.bincount(owner[mask], minlength=len(offsets) - 1)
            own = {"client_rows": rows[mask], "client_offset": np.concatenate([[0], np.cumsum(counts)])}
            if self.has_missing:
                own["client_pattern"] = np.asarray(self.arrays["client_pattern"])[mask]
            parts.append(replace(self, replaced=own))
        return parts[0], parts[1]

    @property
    def has_missing(self) -> bool:
        """Whether modalities may be missing from its clients' samples."""
        return "client_pattern" in self.arrays

    def rows(self, client: int, pattern: str | None = None) -> Integers:
        """Positions of a client's samples, optionally of one pattern; under ``shared`` clients may share some."""
        first, last = self.arrays["client_offset"][client : client + 2]
        rows: Integers = self.arrays["client_rows"][first:last]
        if pattern is None:
            return rows
        kind = self.kinds[self.entry.meta["client_kind"][client]]
        if not self.has_missing:
            return rows if pattern == kind else rows[:0]
        selected: Integers = rows[self.arrays["client_pattern"][first:last] == patterns_of(kind).index(pattern)]
        return selected

    def client_patterns(self) -> Integers:
        """Samples [clients, 3] of each client by pattern, in the order of ``patterns_of`` its kind."""
        offsets = self.arrays["client_offset"]
        code = self.arrays["client_pattern"] if self.has_missing else np.zeros(offsets[-1], np.int64)
        owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return np.bincount(owner * 3 + code, minlength=3 * (len(offsets) - 1)).reshape(-1, 3)

    def group_counts(self) -> Integers | None:
        """Sample groups [clients, 3] by pattern, if images may have several captions; else None."""
        if "image" not in self.arrays:
            return None
        offsets, rows = self.arrays["client_offset"], self.arrays["client_rows"]
        code = self.arrays["client_pattern"] if self.has_missing else np.zeros(offsets[-1], np.int64)
        cell = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)) * 3 + code
        pairs = np.unique(np.column_stack([cell, self.arrays["group"][rows]]), axis=0)
        return np.bincount(pairs[:, 0], minlength=3 * (len(offsets) - 1)).reshape(-1, 3)

    def class_counts(self) -> Integers:
        """Samples [clients, classes + 1] of each class; the last column counts those of no class."""
        offsets = self.arrays["client_offset"]
        clients, width = len(offsets) - 1, len(self.classes) + 1
        owner = np.repeat(np.arange(clients), np.diff(offsets))
        cell = owner * width + self.arrays["label"][self.arrays["client_rows"]]
        return np.bincount(cell, minlength=clients * width).reshape(-1, width)

    @property
    def scales(self) -> dict[str, object]:
        """What makes samples of another machine those of this part, as JSON: classes, shapes and normalisation."""
        return {"classes": self.classes, **{n: self.entry.meta[n] for n in SCALES if n in self.entry.meta}}  # type: ignore[literal-required]

    def with_scales(self, scales: Mapping[str, Any]) -> FederationPart:
        """This part by another's ``scales``.  Raises DataError for a class that the other lacks, and other shapes."""
        classes = list(scales["classes"])
        if strange := [name for name in self.classes if name not in classes]:
            raise DataError(f"the class {strange[0]!r} isn't one of the server's: {', '.join(classes)}")
        facts = {of: {**shape, "classes": len(classes)} for of, shape in self.entry.meta["facts"].items()}
        if facts != scales["facts"]:
            raise DataError(f"the samples have the shapes {facts}, the server's {scales['facts']}")
        table = np.array([*map(classes.index, self.classes), len(classes)])
        own, rest = {"classes": classes}, {name: each for name, each in scales.items() if name != "classes"}
        return replace(
            self,
            collection=replace(self.collection, meta=cast(Meta, {**self.collection.meta, **own})),
            entry=replace(self.entry, meta=cast(Meta, {**self.entry.meta, **rest})),
            replaced={**self.replaced, "label": table[self.arrays["label"]]},
        )

    @property
    def extra_specs(self) -> dict[str, TensorSpec]:
        """Specs of the optional fields that a pass may request."""
        specs = {"group": TensorSpec((), "int64"), "target": TensorSpec((len(self.classes),))}
        if "text" in self.entry.meta["facts"]:
            specs["next"] = TensorSpec((self.entry.meta["facts"]["text"]["tokens"],), "int64")
        return specs

    @cached_property
    def image_preprocessing(self) -> ImagePreprocessing:
        """How its pictures become a model's inputs."""
        meta = self.entry.meta
        shape = {name: meta["facts"]["image"][name] for name in ("channels", "size")}
        return ImagePreprocessing(**shape, mean=tuple(meta["mean"]), deviation=tuple(meta["deviation"]))

    @cached_property
    def audio_preprocessing(self) -> AudioPreprocessing:
        """How its spectrograms become a model's inputs."""
        (mean, deviation), facts = self.entry.meta["audio_moments"], self.entry.meta["facts"]["audio"]
        return AudioPreprocessing(bins=facts["bins"], frames=facts["frames"], mean=mean, deviation=deviation)

    @cached_property
    def motion_preprocessing(self) -> MotionPreprocessing:
        """How its windows of readings become a model's inputs."""
        mean, deviation = self.entry.meta["motion_moments"]
        readings = self.entry.meta["facts"]["motion"]["readings"]
        return MotionPreprocessing(readings=readings, mean=tuple(mean), deviation=tuple(deviation))

    def preprocessing(self, kind: str) -> Preprocessing:
        """How raw samples of a kind become its model's inputs, and the names of its classes."""
        modalities = kind.split("-")
        return Preprocessing(
            image=self.image_preprocessing if "image" in modalities else None,
            text=TextPreprocessing(tokens=self.entry.meta["facts"]["text"]["tokens"]) if "text" in modalities else None,
            audio=self.audio_preprocessing if "audio" in modalities else None,
            motion=self.motion_preprocessing if "motion" in modalities else None,
            classes=self.classes if self.tasks[cast(Kind, kind)] == "classify" else (),
        )

    def load(self, pattern: str, rows: Integers, names: Names[str]) -> dict[str, Tensor]:
        """The fields of these samples: those of ``names`` that the pattern has, and always the label."""
        arrays, fields = self.arrays, {}
        if "image" in pattern and "image" in names:
            pixels = arrays["images"][arrays["image"][rows] if "image" in arrays else rows]
            fields["image"] = self.image_preprocessing.normalise(torch.from_numpy(pixels))
        if "text" in pattern and ("text" in names or "next" in names):
            # Classification reads the name without the class words; retrieval and prediction read the whole one.
            retrieves = "-" in pattern and like(self.tasks.get(cast(Kind, pattern), "retrieve")) == "retrieve"
            tokens = arrays["tokens_whole" if retrieves or "next" in names else "tokens_masked"]
            fields["text"] = torch.from_numpy(tokens[arrays["text"][rows]].astype(np.int64))
            if "next" in names:
                fields["next"] = self._next(fields["text"])
        for signal, ready in (("audio", "audio_preprocessing"), ("motion", "motion_preprocessing")):
            if signal in pattern and signal in names:
                fields[signal] = getattr(self, ready).normalise(torch.from_numpy(arrays[signal][rows]))
        fields["label"] = torch.from_numpy(arrays["label"][rows].astype(np.int64))
        if "group" in names:
            fields["group"] = torch.from_numpy(arrays["group"][rows].astype(np.int64))
        if "target" in names:
            fields["target"] = self._target(rows)
        return fields

    def _next(self, tokens: Tensor) -> Tensor:
        """The token after each one ``[samples, tokens]``; -1 for the last one and for padding."""
        after = torch.full_like(tokens, -1)
        after[:, :-1] = tokens[:, 1:]
        return after.masked_fill_(after == self.entry.meta["padding"], -1)

    def _target(self, rows: Integers) -> Tensor:
        """Scores [samples, classes]: as published, else 1 for the label; zeros for samples without a class."""
        answer, score = self.arrays["label"][rows][:, None], np.ones((len(rows), 1), np.float32)
        if "answer" in self.arrays:
            answer, score = self.arrays["answer"][rows], self.arrays["score"][rows]
        target = np.zeros((len(rows), len(self.classes) + 1), np.float32)
        # entries without a class (-1, or a label past the last) go to an extra column, which is cut off
        np.put_along_axis(target, np.where(answer < 0, len(self.classes), answer).astype(np.int64), score, 1)
        return torch.from_numpy(np.ascontiguousarray(target[:, :-1]))
