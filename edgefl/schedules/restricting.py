"""Restricting a work for the full model to one stage of a schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgefl import models, registry
from edgefl.schedules.narrowing import narrowed
from edgefl.schedules.stages import Stage
from edgefl.work.description import Payload, Work
from edgefl.work.learning_rates import at_stage


def restrict(work: Work, stage: Stage) -> Work:
    """The part of a work for the full model that belongs to ``stage``.

    The model has the stage's depth.  Active parameters train, are edited and are uploaded.  A payload to the client
    has the attached parameters, or only the active ones if it follows training (FedCola's partner weights).  Tables
    stay as they are.  A partner weight whose own block does not exist yet is left out together with its gate.
    """

    def tail(address: str) -> str | None:
        return None if address.startswith("table/") else address.split("/", 1)[1]

    def down(payload: Payload) -> Payload:
        keep = stage.active if payload.follows == "trained" else stage.attached
        return payload.only(lambda i: (t := tail(i.source)) is None or (keep(i.name) and stage.attached(t)))

    received = tuple(down(p) for p in work.down)
    tables = {item.name for payload in work.down for item in payload.items if tail(item.source) is None}
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
        up=tuple(p.only(lambda i: tail(i.source) is None or stage.active(i.name)) for p in work.up),
        keep=tuple(n for n in work.keep if n in tables or stage.attached(n)),
    )
    return part if stage.width == 1 else narrowed(part, stage.width, stage.scaler)
