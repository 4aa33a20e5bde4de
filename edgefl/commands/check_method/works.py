"""Checks of a work as it is described, before it is run."""

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
    """Whether the work can be run.  ``stage`` is None for a model that is under no schedule."""
    with findings.attempt(rules.WRITTEN, where):
        decoded = Work.decode(work.encode())
        equal = decoded == work and decoded.encode() == work.encode()
        found = "decode(encode()) is another work; args take plain JSON: lists, no tuples"
        findings.expect(rules.WRITTEN, where, equal, found)
    with findings.attempt(rules.BUILT, where):
        with torch.device("meta"):
            module = models.build(work.model)
        own = set(module.state_dict())
        findings.expect(rules.BUILT, where, True)
        runs = _check_addresses(findings, work, where, state)
        runs &= _check_arrivals(findings, work, where, own)
        names = _names_after_edits(work, module)
        lost = set(work.trainable) - names
        runs &= findings.expect_none(rules.NAMES, where, lost, "{} is trainable but not there")
        idle = {name for name in work.trainable if stage and not stage.active(name)}
        runs &= findings.expect_none(rules.NAMES, where, idle, "{} trains outside its stage")
        return runs
    return False


def _check_addresses(findings: Findings, work: Work, where: str, state: ServerState) -> bool:
    """Whether the server has a tensor of the right shape for everything that travels."""
    good = True
    for way, payloads in (("down", work.down), ("up", work.up)):
        for item in (item for payload in payloads for item in payload.items):
            held = state.tensors.get(item.source)
            free = way == "up" and item.source.startswith("table/")  # a table may come later, and in another shape
            if held is None:
                if not free:
                    found = f"{item.name!r} travels {way} as {item.source!r}, which initial() doesn't have"
                    good &= findings.expect(rules.ADDRESSES, where, False, found)
            elif not fits(item.cut, held.shape, item.shape):
                found = f"{item.name!r} travels {way} as {item.shape}; {item.source!r} is {tuple(held.shape)}"
                good &= findings.expect(rules.ADDRESSES, where, free, found)
    findings.expect(rules.ADDRESSES, where, True)
    return good


def _check_arrivals(findings: Findings, work: Work, where: str, own: set[str]) -> bool:
    """Whether everything that the model has (``own``) or keeps arrives first."""
    arriving = {item.name for payload in work.down for item in payload.items}
    fault = "{} isn't in down: it would start at random in every round"
    good = findings.expect_none(rules.WHOLE, where, own - arriving, fault)
    if work.keep:
        fault = "{} is kept but not in down, which gives its first value"
        good &= findings.expect_none(rules.KEPT, where, set(work.keep) - arriving, fault)
    return good


def _names_after_edits(work: Work, module: nn.Module) -> set[str]:
    """Names of the model's parameters while the edits are applied."""
    own = {n for n, _ in module.named_parameters()}
    received = {i.name: torch.empty(i.shape, device="meta") for p in work.down for i in p.items if i.name not in own}
    for edit in work.edits:
        registry.get("edit", edit.name).apply(edit, module, received)
    return {n for n, _ in module.named_parameters()}
