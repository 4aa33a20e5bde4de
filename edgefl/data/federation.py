"""A federation's data: which client holds which samples, and what the server evaluates on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, cast

import numpy as np
from tokenizers import Tokenizer
from torch import Tensor

from edgefl import seeds
from edgefl.arrays import Integers
from edgefl.data.missing import patterns_of
from edgefl.data.options import PUBLIC, TEST
from edgefl.data.samples import Samples
from edgefl.data.split import held_out_counts, held_out_samples
from edgefl.data.stored_arrays import StoredEntry
from edgefl.data.stored_set import FederationPart
from edgefl.errors import DataError
from edgefl.modalities import KINDS, MODALITIES, SIGNALS, Kind
from edgefl.models.preprocessing import Preprocessing
from edgefl.work.description import HELD_OUT, POOLED, TensorSpec
from edgefl.work.tasks import like

PAIRS = 500
"""Pairs that a retrieval evaluation ranks unless its pass says otherwise (``args.samples``): the default of
``evaluation.pairs``.  Scores take the square of it, and recalls among more pairs are lower."""


@dataclass(frozen=True)
class Federation:
    """Data of all clients and of the server.

    ``client_kind`` [clients] indexes ``kinds``; ``client_samples`` [clients] counts samples, ``client_patterns``
    [clients, 3] by modality pattern where samples may lack one (in the order of ``patterns_of``), ``client_dropped``
    [clients] those dropped for lack of both.  ``facts`` are the shapes that a model must fit: {"image": {"channels",
    "size", "classes"}, "text": {"vocabulary", "tokens", "classes"}, "audio": {"bins", "frames", "classes"}, "motion":
    {"readings", "channels", "classes"}};
    ``facts_of`` is for one kind, whose data set may have classes of its own.  ``tasks`` is the task of each kind.

    ``elsewhere`` counts samples [classes + 1] of clients whose samples are on devices of their own: here they are only
    declared, whatever the set has dealt to these clients.  ``class_names`` is empty if the whole set is declared.

    ``held_out`` has the samples that clients hold out of their training (``with_held_out``), at most ``held_out_share``
    of each client's, as a federation of the same clients; None if they train on all.  All else is about the others.
    """

    title: str
    kinds: tuple[Kind, ...]
    client_kind: Integers
    client_samples: Integers
    class_names: tuple[str, ...]
    facts: Mapping[str, Mapping[str, int]]
    server_samples: Mapping[str, Mapping[str, int]]
    tasks: Mapping[Kind, str]
    client_patterns: Integers | None = None
    client_dropped: Integers | None = None
    held_out: Federation | None = field(default=None, repr=False)
    held_out_share: float = 0.0
    elsewhere: Mapping[int, Integers] = field(default_factory=dict, repr=False)
    _parts: tuple[FederationPart, ...] = field(default=(), repr=False)
    _public: FederationPart | None = field(default=None, repr=False)
    _test: FederationPart | None = field(default=None, repr=False)

    def with_held_out(self, share: float, seed: int) -> Federation:
        """This federation with at most this share of each client's samples held out of its training.

        Of n samples floor(share x n) are held out, fewer where samples that belong together don't fit (captions of one
        image, pictures of one name), so a client with less than 1 / share samples trains on all.  Which ones is a
        function of the seed.
        """
        if not share:
            return self
        if not self._parts:  # shapes without samples
            held = held_out_counts(self.client_samples, share)
            patterns = None if self.client_patterns is None else held_out_counts(self.client_patterns, share)
            held = held if patterns is None else patterns.sum(1)
            train_patterns = None if patterns is None else cast(Integers, self.client_patterns) - patterns
            own = replace(self, client_samples=held, client_patterns=patterns)
            samples = np.asarray(self.client_samples) - held
            return replace(
                self, client_samples=samples, client_patterns=train_patterns, held_out=own, held_out_share=share
            )
        divided = [
            part.split_held_out(share, seeds.generator(seed, "samples held out", index))
            for index, part in enumerate(self._parts)
        ]
        train, own = (self._of_parts(tuple(pair[side] for pair in divided)) for side in (0, 1))
        return replace(train, held_out=own, held_out_share=share)

    def _of_parts(self, parts: tuple[FederationPart, ...]) -> Federation:
        """This federation with the clients' samples of these parts."""
        samples, counts = np.zeros(len(self.client_kind), np.int64), np.zeros((len(self.client_kind), 3), np.int64)
        for index, kind in enumerate(self.kinds):
            own, first = self._part_offsets[kind]
            part = parts[self._parts.index(own)]
            clients = np.flatnonzero(self.client_kind == index)
            samples[clients] = np.diff(part.arrays["client_offset"])[clients + first]
            counts[clients] = part.client_patterns()[clients + first]
        patterns = None if self.client_patterns is None else counts
        public = None if self._public is None else parts[self._parts.index(self._public)]
        return replace(self, client_samples=samples, client_patterns=patterns, _parts=parts, _public=public)

    def with_elsewhere(self, counts: Mapping[int, Integers]) -> Federation:
        """This federation with so many samples [classes + 1] of these clients on devices of their own."""
        samples = np.array(self.client_samples)
        for number, row in counts.items():
            samples[number] = row.sum()
        return replace(self, client_samples=samples, elsewhere=dict(counts))

    @property
    def is_declared_only(self) -> bool:
        """Whether there are shapes but no samples, which allows profiling but not training."""
        return not self._parts

    @property
    def part_keys(self) -> list[str]:
        """The cache names of the parts: hashes of everything that the data depend on."""
        return [part.entry.path.name for part in self._parts]

    @property
    def stored_sources(self) -> list[tuple[StoredEntry, StoredEntry]]:
        """What is stored of each source: its collection, and its part of the federation; empty if nothing is."""
        return [(part.collection, part.entry) for part in self._parts]

    def public_part(self, modality: str) -> FederationPart:
        """The data set's part that public samples of one modality are in."""
        return self._part(PUBLIC, modality)

    def public_digest(self, modality: str) -> str:
        """A hash of all that the public and validation samples of one modality depend on: not of the seed, which only
        deals the others to clients."""
        hashed = hashlib.blake2b(digest_size=16)
        for data in (PUBLIC, "validation"):
            if modality not in self.server_samples.get(data, {}):
                continue
            part = self._part(data, modality)
            moments = f"{modality if modality in SIGNALS else 'audio'}_moments"
            names = ("mean", "deviation", moments, "padding", "facts")
            meta = {name: part.entry.meta.get(name) for name in names}
            hashed.update(f"{data} {part.collection.path.name} {json.dumps(meta, sort_keys=True)}\n".encode())
            hashed.update(np.ascontiguousarray(part.arrays[f"{data}.{modality}"], np.int64).tobytes())
            if modality == "text":
                hashed.update(part.entry.files["tokenizer.json"].tobytes())
        return hashed.hexdigest()

    def split_public(self, modality: str, share: float, rng: np.random.Generator) -> tuple[Federation, Federation]:
        """This federation with the other public samples of one modality, and with at most this share of them.

        Samples that belong together stay together.
        """
        part = self.public_part(modality)
        name = f"{PUBLIC}.{modality}"
        rows = np.asarray(part.arrays[name])
        held = held_out_samples(np.zeros(len(rows), np.int64), part.arrays["group"][rows], share, rng)

        def with_public_rows(rows: Integers) -> Federation:
            own = replace(part, replaced={**part.replaced, name: rows})
            parts = tuple(own if each is part else each for each in self._parts)
            return replace(
                self, server_samples={**self.server_samples, PUBLIC: {modality: len(rows)}}, _parts=parts, _public=own
            )

        return with_public_rows(rows[~held]), with_public_rows(rows[held])

    def is_of_public_set(self, data: str, kind: str) -> bool:
        """Whether the server's samples of ``data`` for this kind are of the data set of its public ones."""
        return self._part(data, kind).dataset == self._part(PUBLIC, kind).dataset

    def rows_by_holder(self) -> list[tuple[FederationPart, str, Integers]]:
        """``(part, whose, positions)`` of the samples that clients, validation and test hold, by data set."""
        found: list[tuple[FederationPart, str, Integers]] = []
        held_out = self._parts if self.held_out is None else self.held_out._parts
        for part, own in zip(self._parts, held_out, strict=True):
            clients = [np.asarray(each.arrays["client_rows"]) for each in (part, own)]
            found.append((part, "samples of clients", np.unique(np.concatenate(clients))))
            for data in ("validation", "test"):
                rows = [part.arrays[f"{data}.{pattern}"] for pattern in part.server_samples.get(data, {})]
                if rows:
                    found.append((part, f"{data} samples", np.unique(np.concatenate(rows))))
        return found

    def task(self, kind: str) -> str:
        """The task of clients of this kind."""
        return self.tasks[cast(Kind, kind)]

    def patterns(self, kind: str) -> tuple[str, ...]:
        """The modality patterns that samples of this kind's clients may have, the whole one first."""
        if self.client_patterns is None:
            return (kind,)
        counts = self.client_patterns
        if self.held_out is not None and self.held_out.client_patterns is not None:
            counts = counts + self.held_out.client_patterns
        has_pattern = counts[self.client_kind == self.kinds.index(cast(Kind, kind))].any(0)
        return tuple(p for i, p in enumerate(patterns_of(kind)) if not i or has_pattern[i])

    def facts_of(self, kind: str) -> Mapping[str, Mapping[str, int]]:
        """``facts`` with the classes of this kind's own data set."""
        if not self._parts:
            return self.facts
        return {m: {**facts, "classes": len(self._part_offsets[kind][0].classes)} for m, facts in self.facts.items()}

    def classes_of(self, kind: str) -> int:
        """Number of classes of this kind's own data set."""
        return max(facts["classes"] for m, facts in self.facts_of(kind).items() if m in kind.split("-"))

    def extras(self, kind: str) -> tuple[str, ...]:
        """Optional fields of this kind's samples besides modalities and label: ``target``, ``group``, ``next``."""
        if like(self.task(kind)) == "next-token":
            return ("next",)
        if not self._parts:
            return ()
        arrays = self._part_offsets[kind][0].arrays
        if like(self.task(kind)) == "classify":
            return ("target",) if "answer" in arrays else ()
        return ("group",) if "image" in arrays else ()

    @property
    def public_facts(self) -> Mapping[str, Mapping[str, int]]:
        """``facts`` with the classes of the public samples."""
        if self._public is None:
            return self.facts
        return {m: {**facts, "classes": len(self._public.classes)} for m, facts in self.facts.items()}

    @cached_property
    def answers(self) -> Mapping[str, int]:
        """Number of answers to the server's pairs by split: in splits of the public pairs' set, if it has answers.

        In a declared set all pairs count as answered.
        """
        splits = {data: next((k for k in sizes if "-" in k), "") for data, sizes in self.server_samples.items()}
        pairs = {data: kind for data, kind in splits.items() if kind}
        if PUBLIC not in pairs:
            return {}
        if not self._parts:
            return {data: max(self.facts[m]["classes"] for m in kind.split("-")) for data, kind in pairs.items()}
        public = self._part(PUBLIC, pairs[PUBLIC])
        if "answer" not in public.arrays:
            return {}
        same = [data for data, kind in pairs.items() if self.is_of_public_set(data, kind)]
        return dict.fromkeys(same, len(public.classes))

    @cached_property
    def client_group(self) -> Integers:
        """Group index [clients]: clients with equal kind and sample counts by pattern, and so with equal costs.

        Where images have several captions, the members of a group also have equal numbers of images.
        """
        groups = self._group_counts()
        if self.client_patterns is not None or groups is not None:
            samples = self.client_samples if self.client_patterns is None else self.client_patterns
            rows = np.column_stack([self.client_kind, samples, *([] if groups is None else [groups])])
            return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int32)
        most = int(self.client_samples.max(initial=0)) + 1
        pair_of = self.client_kind.astype(np.int32) * most + self.client_samples
        pairs = np.flatnonzero(np.bincount(pair_of, minlength=1))  # few, even for many clients
        group_of: Integers = np.zeros(pairs[-1] + 1 if len(pairs) else 1, np.int32)
        group_of[pairs] = np.arange(len(pairs))
        return np.asarray(group_of[pair_of], np.int32)

    def _group_counts(self) -> Integers | None:
        """Sample groups [clients, 3] by pattern where images have several captions; None if no images do."""
        # by id, since parts can't be hashed: they have arrays; the federation holds them
        counts_of = {id(part): counts for part in self._parts if (counts := part.group_counts()) is not None}
        if not counts_of:
            return None
        groups = np.zeros((len(self.client_kind), 3), np.int64)
        for index, kind in enumerate(self.kinds):
            part, first = self._part_offsets[kind]
            if id(part) in counts_of:
                clients = np.flatnonzero(self.client_kind == index)
                groups[clients] = counts_of[id(part)][clients + first]
        return groups

    def client(self, number: int) -> Samples:
        """The samples of client ``number``: its private ones, and the public ones, which all clients have."""
        if not 0 <= number < len(self.client_kind):
            raise DataError(f"there is no client {number}: clients are 0..{len(self.client_kind) - 1}")
        kind = self.kinds[self.client_kind[number]]
        title = f"client {number} ({self.title})"
        patterns, public = self.patterns(kind), self.server_samples.get(PUBLIC, {})

        def rows_of(data: str, pattern: str) -> Integers:
            if data == PUBLIC and pattern in public:
                return self.server().rows(data, pattern)
            if data == HELD_OUT and self.held_out is not None and pattern in patterns:
                return self.held_out._private_rows(number, pattern)
            if data != "private" or pattern not in patterns:
                own = "private" if self.held_out is None else f"private and {HELD_OUT}"
                raise DataError(f"{title} has {own} {kind} samples only, not {data} {pattern}")
            return self._private_rows(number, pattern)

        def load(data: str, whole: str, pattern: str, rows: Integers, names: Collection[str]) -> dict[str, Tensor]:
            return self._part(data, kind).load(pattern, rows, names)

        def extra_specs(data: str, whole: str) -> Mapping[str, TensorSpec]:
            return self._extra_specs(data, kind)

        specs = {k: self._specs[k] for k in (*patterns, *public)}
        fields = load if self._parts and number not in self.elsewhere else None
        return Samples(title, specs, rows_of, fields, more=extra_specs)

    def _private_rows(self, number: int, pattern: str) -> Integers:
        if self._parts and number not in self.elsewhere:
            return self.rows(number, pattern)
        if self.client_patterns is None:
            return _placeholder_rows(int(self.client_samples[number]))
        kind = self.kinds[self.client_kind[number]]
        return _placeholder_rows(int(self.client_patterns[number, patterns_of(kind).index(pattern)]))

    def server(self) -> Samples:
        """The server's samples: validation, test, public ones if there are any, and those of all clients (POOLED)."""
        title = f"the server ({self.title})"

        def rows_of(data: str, pattern: str) -> Integers:
            if data == POOLED and pattern in self.kinds:
                return self._pooled_rows(pattern)
            if data not in self.server_samples or pattern not in self.server_samples[data]:
                allowed = [f"{d} {p}" for d, sizes in self.server_samples.items() for p in sizes]
                other = {
                    PUBLIC: "",
                    "validation": ", or evaluation.split: test",
                    "test": ", or evaluation.final: validation",
                }
                hint = f"; set data.{data} to give it some{other[data]}" if data in other else ""
                raise DataError(f"{title} has no {data} {pattern} samples{hint}; it has: {', '.join(allowed)}")
            if not self._parts:
                return _placeholder_rows(self.server_samples[data][pattern])
            return self._part(data, pattern).arrays[f"{data}.{pattern}"]

        def load(data: str, whole: str, pattern: str, rows: Integers, names: Collection[str]) -> dict[str, Tensor]:
            return self._part(data, whole).load(pattern, rows, names)

        pairs: dict[str, int] = {kind: PAIRS for kind, task in self.tasks.items() if like(task) == "retrieve"}
        return Samples(title, self._specs, rows_of, load if self._parts else None, pairs, self._extra_specs)

    @property
    def tokenizer(self) -> Tokenizer:
        """The WordPiece of the texts.  Raises DataError if there are none."""
        for part in self._parts:
            if "tokenizer.json" in part.entry.files:
                return Tokenizer.from_str(part.entry.text("tokenizer.json"))
        raise DataError(f"{self.title} has no tokenizer: it has no texts")

    def preprocessing(self) -> dict[str, Preprocessing]:
        """How raw samples become the inputs of each kind's model; empty for a set that is only declared."""
        return {kind: self._part_offsets[kind][0].preprocessing(kind) for kind in self.kinds} if self._parts else {}

    @property
    def scales(self) -> dict[str, object]:
        """What nodes with samples of their own need of this set, as JSON; empty for several sets or a declared one."""
        if len(self._parts) != 1 or self.client_patterns is not None or self._group_counts() is not None:
            return {}
        [part] = self._parts
        texts = {"tokenizer": self.tokenizer.to_str()} if "tokenizer.json" in part.entry.files else {}
        return {**part.scales, **texts}

    def with_scales(self, scales: Mapping[str, Any]) -> Federation:
        """This federation of one set by another's ``scales``.  Raises DataError for classes that the other lacks."""
        own = {name: each for name, each in scales.items() if name != "tokenizer"}
        parts = tuple(part.with_scales(own) for part in self._parts)
        return replace(self, class_names=tuple(own["classes"]), facts=own["facts"], _parts=parts)

    def rows(self, number: int, pattern: str | None = None) -> Integers:
        """Positions of a client's samples in its data set, of one pattern if one is given.

        No two clients share one, except under the partition ``shared``.
        """
        kind = self.kinds[self.client_kind[number]]
        part, first = self._part_offsets[kind]
        return part.rows(number + first, pattern)

    def _pooled_rows(self, kind: str) -> Integers:
        """Positions of the samples of all clients of a kind in its data set, ascending, each once."""
        numbers = np.flatnonzero(self.client_kind == self.kinds.index(cast(Kind, kind)))
        if not self._parts:
            return _placeholder_rows(int(self.client_samples[numbers].sum()))
        return np.unique(np.concatenate([self.rows(number, kind) for number in numbers.tolist()]))

    def held_rows(self, kind: str, modality: str) -> tuple[FederationPart, Integers]:
        """The data set of a kind, and the positions of its clients' samples that have this modality, ascending."""
        numbers = np.flatnonzero(self.client_kind == self.kinds.index(cast(Kind, kind))).tolist()
        patterns = [pattern for pattern in self.patterns(kind) if modality in pattern.split("-")]
        rows = [self.rows(number, pattern) for number in numbers for pattern in patterns]
        return self._part_offsets[kind][0], np.unique(np.concatenate(rows))

    def class_counts(self) -> Integers:
        """Samples [clients, classes + 1] of each class; the last column counts those of no class."""
        if not self._parts:
            raise DataError(f"{self.title} is declared only: its samples have no classes")
        counts = np.zeros((len(self.client_kind), len(self.class_names) + 1), np.int64)
        ends = [0, *accumulate(len(part.classes) for part in self._parts)]
        # by id, as in _group_counts
        counts_of = {id(part): (part.class_counts(), end) for part, end in zip(self._parts, ends, strict=False)}
        for index, kind in enumerate(self.kinds):
            part, first = self._part_offsets[kind]
            own, start = counts_of[id(part)]
            clients = np.flatnonzero(self.client_kind == index)
            rows = own[clients + first]
            counts[clients, start : start + rows.shape[1] - 1] = rows[:, :-1]
            counts[clients, -1] = rows[:, -1]
        for number, row in self.elsewhere.items():
            counts[number] = row
        return counts

    @cached_property
    def _part_offsets(self) -> dict[str, tuple[FederationPart, int]]:
        """By kind: its data set's part, and the offset from a client's number to its number in the part."""
        parts = {}
        for part in self._parts:
            for index, kind in enumerate(part.kinds):
                first_client = int(np.flatnonzero(self.client_kind == self.kinds.index(kind))[0])
                parts[str(kind)] = part, int(np.flatnonzero(part.clients == index)[0]) - first_client
        return parts

    def _part(self, data: str, kind: str) -> FederationPart:
        """The part with the samples of ``data`` for this kind or pattern."""
        if data == PUBLIC and self._public is not None:
            return self._public
        if data == TEST and self._test is not None and kind in self._test.server_samples[TEST]:
            return self._test
        if kind in self._part_offsets:
            return self._part_offsets[kind][0]
        return next(part for part in self._parts if kind in part.server_samples.get(data, {}))

    def _extra_specs(self, data: str, kind: str) -> Mapping[str, TensorSpec]:
        if self._parts:
            return self._part(data, kind).extra_specs
        classes = max((facts["classes"] for m, facts in self.facts.items() if m in kind.split("-")), default=1)
        specs = {"group": TensorSpec((), "int64"), "target": TensorSpec((classes,))}
        if text := self.facts.get("text"):
            specs["next"] = TensorSpec((text["tokens"],), "int64")
        return specs

    @cached_property
    def _specs(self) -> dict[str, dict[str, TensorSpec]]:
        specs: dict[str, dict[str, TensorSpec]] = {}
        fields = {
            modality: TensorSpec(tuple(facts[name] for name in MODALITIES[modality].shape), MODALITIES[modality].dtype)
            for modality, facts in self.facts.items()
        }
        for kind in KINDS:
            if all(modality in fields for modality in kind.split("-")):
                specs[kind] = {m: fields[m] for m in kind.split("-")} | {"label": TensorSpec((), "int64")}
        return specs


def _placeholder_rows(size: int) -> Integers:
    """``size`` rows that take no memory; only their number is used."""
    return np.broadcast_to(np.int64(0), (size,))
