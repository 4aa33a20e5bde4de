"""Checks of the description of a work, before it is run."""

from __future__ import annotations

import torch
from torch import nn

from edgefl import models, registry
from edgefl.commands.check_method import rules
from edgefl.commands.check_method.findings import Findings
from edgefl.methods import ServerState
from edgefl.schedules import Stage
from edgefl.work import Work
from edgefl.work.slices import fits


def check_work(findings: Findings, work: Work, where: str, stage: Stage | None, state: ServerState) -> bool:
    """Whether the work can be run.  ``stage`` is None for a model that no schedule restricts."""
    with findings.attempt(rules.WRITTEN, where):
        decoded = Work.decode(work.encode())
        equal = decoded == work and decoded.encode() == work.encode()
        fault = "decode(encode()) is another work; args take plain JSON: lists, no tuples"
        findings.expect(rules.WRITTEN, where, equal, fault)
    with findings.attempt(rules.BUILT, where):
        with torch.device("meta"):
            module = models.build(work.model)
        own = set(module.state_dict())
        findings.expect(rules.BUILT, where, True)
        runs = _check_addresses(findings, work, where, state)
        runs &= _check_arrivals(findings, work, where, own)
        _check_waste(findings, work, where, state)
        names = _names_after_edits(work, module)
        missing = set(work.trainable) - names
        runs &= findings.expect_none(rules.NAMES, where, missing, "{} is trainable but doesn't exist")
        inactive = {name for name in work.trainable if stage and not stage.active(name)}
        runs &= findings.expect_none(rules.NAMES, where, inactive, "{} is trainable but not active in the stage")
        return runs
    return False


def _check_addresses(findings: Findings, work: Work, where: str, state: ServerState) -> bool:
    """Whether the server has a tensor of the right shape for every payload item."""
    ok = True
    for direction, payloads in (("down", work.down), ("up", work.up)):
        for item in (item for payload in payloads for item in payload.items):
            held = state.tensors.get(item.source)
            # a table may be added later, and in another shape
            is_table = direction == "up" and item.source.startswith("table/")
            if held is None:
                if not is_table and item.like is None:
                    fault = f"{item.name!r} travels {direction} as {item.source!r}, which initial() doesn't have"
                    ok &= findings.expect(rules.ADDRESSES, where, False, fault)
            elif not fits(item.cut, held.shape, item.shape):
                fault = f"{item.name!r} travels {direction} as {item.shape}; {item.source!r} is {tuple(held.shape)}"
                ok &= findings.expect(rules.ADDRESSES, where, is_table, fault)
    findings.expect(rules.ADDRESSES, where, True)
    return ok


def _check_waste(findings: Findings, work: Work, where: str, state: ServerState) -> None:
    """Check that tables named as parameters, which no stage cuts, are described as like them."""
    items = [item for payload in (*work.down, *work.up) for item in payload.items if item.beside]
    shapes = {a.split("/", 1)[1]: tuple(t.shape) for a, t in state.tensors.items() if a.startswith(f"{work.kind}/")}
    wasteful = {}
    for item in items:
        name = item.source.rpartition("/")[2]
        if item.like is None and shapes.get(name) == item.shape:
            wasteful[item.name] = name
    if wasteful or any(item.like for item in items):
        name = min(wasteful, default="")
        like = wasteful.get(name)
        fault = f"{{}} has the name and shape of the parameter {like!r} and travels at every stage; give its item "
        fault += f"like={like!r} (Method.like_model), then stages and widths cut it"
        findings.expect_none(rules.LIKE, where, {name} if wasteful else (), fault)


def _check_arrivals(findings: Findings, work: Work, where: str, own: set[str]) -> bool:
    """Whether all tensors of the model (``own``) and all that are kept are sent down."""
    arriving = {item.name for payload in work.down for item in payload.items}
    fault = "{} isn't in down: it would start at random in every round"
    ok = findings.expect_none(rules.WHOLE, where, own - arriving, fault)
    if work.keep:
        fault = "{} is kept but not in down, which gives its first value"
        ok &= findings.expect_none(rules.KEPT, where, set(work.keep) - arriving, fault)
    return ok


def _names_after_edits(work: Work, module: nn.Module) -> set[str]:
    """Names of the model's parameters while the edits are applied."""
    own = {n for n, _ in module.named_parameters()}
    received = {i.name: torch.empty(i.shape, device="meta") for p in work.down for i in p.items if i.name not in own}
    for edit in work.edits:
        registry.get("edit", edit.name).apply(edit, module, received)
    return {n for n, _ in module.named_parameters()}
