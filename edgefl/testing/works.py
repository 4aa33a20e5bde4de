"""Checks of works before they run, and with shapes alone, as ``training: none`` asks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from edgefl import models
from edgefl.methods import ServerState, Update
from edgefl.planning.meta_state import shapes, shapes_alone
from edgefl.planning.rules import broken_rules
from edgefl.schedules import Stage
from edgefl.testing.findings import CheckRule, CheckScope, Findings
from edgefl.testing.tiny_federation import TinyFederation
from edgefl.work import Work
from edgefl.work.slices import fits


def check_work(findings: Findings, work: Work, where: str, stage: Stage | None, state: ServerState) -> bool:
    """Whether the work can be run.  ``stage`` is None for a model that no schedule restricts."""
    with findings.attempt(CheckRule.WRITTEN, where):
        decoded = Work.decode(work.encode())
        equal = decoded == work and decoded.encode() == work.encode()
        fault = "decode(encode()) is another work; args take plain JSON: lists, no tuples"
        findings.expect(CheckRule.WRITTEN, where, equal, fault)
    with findings.attempt(CheckRule.BUILT, where):
        with torch.device("meta"):
            models.build(work.model)
        findings.expect(CheckRule.BUILT, where, True)
        runs = _check_addresses(findings, work, where, state)
        _check_waste(findings, work, where, state)
        for rule, names, fault in broken_rules(work, stage):
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
                    ok &= findings.expect(CheckRule.ADDRESSES, where, False, fault)
            elif not fits(item.cut, held.shape, item.shape):
                fault = f"{item.name!r} travels {direction} as {item.shape}; {item.source!r} is {tuple(held.shape)}"
                ok &= findings.expect(CheckRule.ADDRESSES, where, is_table, fault)
    findings.expect(CheckRule.ADDRESSES, where, True)
    return ok


def _check_waste(findings: Findings, work: Work, where: str, state: ServerState) -> None:
    """Check that tables named as parameters, which no stage cuts, are described as like them."""
    items = [item for payload in (*work.down, *work.up) for item in payload.items if item.is_beside_model]
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
        findings.expect_none(CheckRule.LIKE, where, {name} if wasteful else (), fault)


def check_first_shapes(federation: TinyFederation, where: str, state: ServerState) -> None:
    """Check that ``initial()`` gives the same addresses and shapes on the meta device."""
    with federation.findings.attempt(CheckRule.UNTRAINED, where):
        alone = shapes(federation.method)
        same = {a: _form(t) for a, t in alone.tensors.items()}.items() ^ {
            a: _form(t) for a, t in state.tensors.items()
        }.items()
        fault = "{} has another shape without training"
        federation.findings.expect_none(CheckRule.UNTRAINED, where, {address for address, _ in same}, fault)


def check_server_works(
    federation: TinyFederation, when: str, place: CheckScope, state: ServerState, works: Sequence[Work]
) -> None:
    """Check that the works of the server ``before`` or ``after`` a round are the same without values."""
    where = place.at(f"{when}()")
    with federation.findings.attempt(CheckRule.UNTRAINED, where):
        with shapes_alone(federation.method, f"{when}()"), torch.device("meta"):
            alone = getattr(federation.new_method(), when)(_on_meta(state), place.round)
        equal = [work.encode() for work in alone] == [work.encode() for work in works]
        federation.findings.expect(CheckRule.UNTRAINED, where, equal, "without training it gives other works")


def check_untrained_aggregation(
    federation: TinyFederation, where: str, state: ServerState, updates: Sequence[Update], new: ServerState
) -> None:
    """Check that ``aggregate()`` changes the same tensors without values as it did with them (``new``).

    As in a run with ``training: none``, clients of one variant that train and send the same share one update.
    """
    with federation.findings.attempt(CheckRule.UNTRAINED, where):
        alike = {(u.kind, u.variant, u.work.trainable, repr(u.work.up)): u for u in updates}
        sent = [
            replace(
                update,
                client=update.client if federation.method.varies else number,
                payloads={name: _empty(tensors) for name, tensors in update.payloads.items()},
                base=_empty(update.base),
            )
            for number, update in enumerate(alike.values())
        ]
        with shapes_alone(federation.method, "aggregate()"), torch.device("meta"):
            alone = federation.new_method().aggregate(_on_meta(state), sent)
        different = _changed_addresses(state, alone) ^ _changed_addresses(state, new)
        fault = "{} changes either with training or without it, not both"
        federation.findings.expect_none(CheckRule.UNTRAINED, where, different, fault)


def _changed_addresses(old: ServerState, new: ServerState) -> set[str]:
    return {address for address, version in new.versions.items() if version != old.versions.get(address)}


def _on_meta(state: ServerState) -> ServerState:
    return ServerState(_empty(state.tensors), dict(state.versions))


def _empty(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}


def _form(tensor: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype
