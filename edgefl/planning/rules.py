"""Rules that a planned work keeps, checked without training: a work that breaks one trains nonsense."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from functools import lru_cache

import torch
from torch import nn

from edgefl import models, registry
from edgefl.errors import MethodError
from edgefl.methods import Method
from edgefl.methods.setting import tensors_of
from edgefl.models import Frozen
from edgefl.schedules import Schedule, Stage
from edgefl.work import Work

BLIND = "a work depends on kind, round and variant only"
WHOLE = "the client receives the whole model"
KEPT = "parameters that a client keeps have a first value"
NAMES = "trainable parameters exist after the edits"


def broken_rules(work: Work, stage: Stage | None) -> Iterator[tuple[str, Collection[str], str]]:
    """For each rule the names that break it, none where it is kept, and what is wrong with them (``{}``).

    ``stage`` is None for a model that no schedule restricts.  Raises what the model's or an edit's code raises.
    """
    arriving = {item.name for payload in work.down for item in payload.items}
    parameters, buffers = tensors_of(work.model)
    lacking = {name for name in (*parameters, *buffers) if name not in arriving}
    if lacking & buffers.keys():  # some buffers are no part of a model's state
        lacking &= models.blueprint(work.model).state_dict().keys()
    yield WHOLE, lacking, "{} isn't in down: it would start at random in every round"
    if work.keep:
        yield KEPT, set(work.keep) - arriving, "{} is kept but not in down, which gives its first value"
    names = _after_edits(_Edited(work)) if work.edits else parameters.keys()
    yield NAMES, set(work.trainable) - names, "{} is trainable but doesn't exist"
    inactive = {name for name in work.trainable if stage and not stage.is_active(name)}
    yield NAMES, inactive, "{} is trainable but not active in the stage"


class _Edited:
    """A model's description, the edits of a work and what they receive, as a hashable cache key."""

    def __init__(self, work: Work):
        own = tensors_of(work.model)[0]
        self.model, self.edits = work.model, work.edits
        self.received = {i.name: i.shape for p in work.down for i in p.items if i.name not in own}
        self._text = f"{registry.changes()} {self.model!r} {self.edits!r} {self.received!r}"

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Edited) and self._text == other._text


@lru_cache(256)
def _after_edits(of: _Edited) -> frozenset[str]:
    """Names of the model's parameters while the edits are applied."""
    module: nn.Module = models.on_meta(of.model)
    received = {name: torch.empty(shape, device="meta") for name, shape in of.received.items()}
    for edit in of.edits:
        registry.get("edit", edit.name).apply(edit, module, received)
    return frozenset(name for name, _ in module.named_parameters())


def summarise_names(names: Collection[str]) -> str:
    """The first of these names, and how many more there are."""
    first, *more = sorted(names)
    return f"{first!r}" + (f" and {len(more)} more" if more else "")


def checked_rounds(method: Method, schedule: Schedule) -> Iterator[tuple[Stage, str, int, Hashable]]:
    """``(stage, kind, round, variant)``: every stage on offer, in its first and last round, and who takes part."""
    last = 0
    rounds = {}
    for stage in schedule.stages:
        last += stage.rounds
        rounds[stage.index] = {last - stage.rounds + 1, last} if stage.rounds else set()
    for stage in schedule.offered:
        for kind in method.setting.kinds:
            for round in sorted(rounds.get(stage.index, {1, schedule.rounds})):
                for variant in method.variants[kind] if method.participates(kind, round) else ():
                    yield stage, kind, round, variant


@lru_cache(64)
def _shared_names(model: Frozen) -> list[list[str]]:
    """The names of each parameter that a model has at several places, in order."""
    by_tensor: dict[int, list[str]] = {}
    module = models.blueprint(model.description)  # holds the tensors whose ids are the keys
    for name, parameter in module.named_parameters(remove_duplicate=False):
        by_tensor.setdefault(id(parameter), []).append(name)
    return [names for names in by_tensor.values() if len(names) > 1]


def _check_shared(work: Work, stage: Stage) -> None:
    """Raise MethodError if a stage would train a shared parameter at one of its places and freeze it at another."""
    if all(map(stage.is_active, work.trainable)):
        return
    for names in _shared_names(Frozen(work.model)):
        there = [name for name in names if stage.is_attached(name)]
        active = [name for name in there if stage.is_active(name)]
        if names[0] in work.trainable and there and (there[0] != names[0] or 0 < len(active) < len(there)):
            other = next((name for name in there if (name in active) != (names[0] in active)), there[0])
            raise MethodError(
                f"{names[0]} and {other} of {work.kind} clients are one parameter, which {stage} would train at one "
                "place and freeze, or lack, at the other; allowed: a schedule that trains all its places together "
                "(end-to-end), or parts of their own (copy.deepcopy)"
            )


def check_works(method: Method, schedule: Schedule) -> None:
    """Raise MethodError if the work of a client can't be split into the schedule's stages, or breaks a rule."""
    for stage, kind, round, variant in checked_rounds(method, schedule):
        full, again = (method.client_work(kind, round, variant) for _ in range(2))
        if full != again or dict(full.scalars) != dict(again.scalars):
            raise MethodError(f"two calls of work() give different works for {kind} clients, round {round} ({BLIND})")
        _check_shared(full, stage)
        for rule, names, fault in broken_rules(stage.restrict_work(full), stage):
            if names:
                told = fault.format(summarise_names(names))
                raise MethodError(f"a work of {kind} clients at {stage} breaks a rule: {told} ({rule})")
