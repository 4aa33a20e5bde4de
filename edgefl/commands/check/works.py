"""Checks of the description of a work, before it is run."""

from __future__ import annotations

import torch

from edgefl import models
from edgefl.commands.check import rules
from edgefl.commands.check.findings import Findings
from edgefl.methods import ServerState
from edgefl.planning.rules import broken
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
            models.build(work.model)
        findings.expect(rules.BUILT, where, True)
        runs = _check_addresses(findings, work, where, state)
        _check_waste(findings, work, where, state)
        for rule, names, fault in broken(work, stage):
            runs &= findings.expect_none(rule, where, names, fault)
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
