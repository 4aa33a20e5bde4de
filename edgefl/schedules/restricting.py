"""Restricting a work for the full model to one stage of a schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgefl import models, registry
from edgefl.schedules.flexlora import ranked
from edgefl.schedules.frozen_prefix import keeping
from edgefl.schedules.narrowing import narrowed
from edgefl.schedules.stages import Stage
from edgefl.work.description import Item, Payload, Work
from edgefl.work.optimizer.learning_rates import at_stage


def restrict(work: Work, stage: Stage) -> Work:
    """The part of a work for the full model that belongs to ``stage``.

    The model has the stage's depth.  Active parameters train, are edited and are uploaded.  A payload to the client
    has the attached parameters, or only the active ones if it follows training (FedCola's partner weights).  Tables
    stay as they are.  A partner weight whose own block does not exist yet is left out together with its gate.
    """

    def here(item: Item) -> bool:
        return stage.attached(item.like or item.source.split("/", 1)[1])

    def down(payload: Payload) -> Payload:
        keep = stage.active if payload.follows == "trained" else stage.attached
        return payload.only(lambda i: i.is_table or (keep(i.parameter) and here(i)))

    trains = set(work.trainable)

    def copied(name: str) -> bool:
        return stage.active(name) if name in trains else stage.attached(name)

    received = tuple(down(p) for p in work.down)
    described = {item.name for payload in work.down for item in payload.items}
    names = {item.name for payload in received for item in payload.items}
    edits, gone = [], set[str]()
    for edit in work.edits:
        kind: Any = registry.get("edit", edit.name)
        kept = kind.restrict(edit, stage.active, names)
        gone |= kind.names(edit) - (kind.names(kept) if kept else set())
        if kept:
            edits.append(kept)
    part = replace(
        work,
        model=models.at_depth(work.model, stage.depth),
        trainable=tuple(n for n in work.trainable if stage.active(n) and n not in gone),
        edits=tuple(edits),
        scalars=at_stage(work.scalars, stage.index),
        down=received,
        up=tuple(p.only(lambda i: i.is_table or stage.active(i.parameter)) for p in work.up),
        keep=tuple(n for n in work.keep if n in names or (n not in described and stage.attached(n))),
        reference=work.reference if isinstance(work.reference, bool) else tuple(filter(copied, work.reference)),
    )
    if stage.keeps:
        part = keeping(part, stage.first)
    if stage.rank is not None:
        part = ranked(part, stage.rank)
    return part if stage.width == 1 else narrowed(part, stage.width, stage.scaler)
